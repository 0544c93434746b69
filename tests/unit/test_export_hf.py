"""`embinit export-hf`: what it writes and prints, tokenizers, that a wrong model is noticed, errors of one line.

What is exported is opened in this process (`hf_exports.read_back_here`), and in another one in the integration tests.
"""

from __future__ import annotations

import copy
import importlib
import io
import json
import shutil
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from expand_checkpoints import make
from hf_exports import CLASSES, MLM, checkpoint_of, export_hf, read_back_here, trained

pytest.importorskip("transformers")
from safetensors.torch import load_file
from transformers import AutoTokenizer, pipeline

from embinit_fairseq.export import files, tokenizer, tupe, verify
from embinit_fairseq.export.files import code_files
from embinit_fairseq.export.request import ExportRequest
from embinit_fairseq.export.tokenizer import choose_tokenizer
from embinit_fairseq.models.tupe import TupeModel
from embinit_fairseq.vocab import preparation

FILES = {"README.md", "config.json", "dict.txt", "model.safetensors", *code_files(*tupe.CODE)}


@pytest.fixture(autouse=True)
def opened_here(monkeypatch):
    monkeypatch.setattr(verify.subprocess, "run", read_back_here)


@pytest.fixture
def checkpoint(tmp_path):
    """A TUPE-R over w0 ... w8 and two fillers, pre-trained."""
    return checkpoint_of(tmp_path / "c", fillers=2)


def refused(capsys, checkpoint, *flags, code=2) -> str:
    """The last line of a call that writes nothing."""
    assert export_hf(checkpoint, *flags) == code
    assert not checkpoint.output.exists()
    assert not list(checkpoint.folder.glob("*.tmp"))
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("embinit export-hf: error: ")
    return error


def test_a_pre_trained_model(checkpoint, tmp_path, capsys):
    (tmp_path / "text").write_text("w1 w2 <unk>\nw3\n")
    assert export_hf(checkpoint, "--json", "--verify-text", tmp_path / "text") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["text_lines"] == 205  # 203 made up
    names = {path.name for path in checkpoint.output.iterdir()}
    assert names == {*record["files"]} == FILES | {"tokenizer.json", "tokenizer_config.json"}
    assert record["dictionary"] == checkpoint.dictionary  # found in the data folder of the training
    found = record["verified"]["differences"]
    assert found["float64"]["difference"] <= 1e-12 < found["float64"]["allowed"]
    assert found["float32"]["difference"] <= 1e-5 * found["float32"]["scale"]
    names, parameters = set(load_file(checkpoint.output / "model.safetensors")), list(checkpoint.model.parameters())
    assert "lm_head.decoder.weight" not in names  # tied: stored once
    assert (len(names), record["parameters"]) == (len(parameters), sum(value.numel() for value in parameters))
    card = (checkpoint.output / "README.md").read_text()
    assert all(part in card for part in ("# TUPE-R", 'AutoModelForMaskedLM.from_pretrained("', "| float64 |"))
    assert (checkpoint.output / "model.safetensors").stat().st_mode == (checkpoint.output / "dict.txt").stat().st_mode


def test_half_precision_of_a_fine_tuned_model(tmp_path, capsys):
    checkpoint = checkpoint_of(tmp_path / "c", "bert_ad_tiny", "", task=f"{CLASSES} --num-classes 3")
    assert export_hf(checkpoint, "--dtype", "bfloat16", "--dict", checkpoint.dictionary) == 0
    text = capsys.readouterr().out
    parts = ["sentence_classification_head: a, b, c", "parameters in bfloat16", "bfloat16: differs", "float64: differs"]
    assert all(part in text for part in parts), text
    config = json.loads((checkpoint.output / "config.json").read_text())
    assert config["id2label"] == {"0": "a", "1": "b", "2": "c"}
    assert (config["problem_type"], config["torch_dtype"]) == ("single_label_classification", "bfloat16")
    stored = load_file(checkpoint.output / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.bfloat16}
    table = checkpoint.state["model"]["encoder.sentence_encoder.embed_tokens.weight"]
    assert torch.equal(stored["tupe.embed_tokens.weight"], table.bfloat16())


SCALE = "self.scale = (num_terms * (embed_dim // num_heads)) ** -0.5"
#: text of the exported code -> broken, as by whoever writes it down a second time; --dtype, exit code, what is said
MUTANTS = [
    (SCALE, f"{SCALE} * 1.001", "bfloat16", 1, " in float64 (allowed: "),  # lost in the rounding of bfloat16
    ("where(padding_mask, ", "where(padding_mask & False, ", "float32", 1, " in float32 (allowed: "),
    ("import math\nfrom typing", "import math\nimport fairseq\nfrom typing", "float32", 2, "transformers cannot open"),
]


def broken(monkeypatch, module, right, wrong):
    """Let exported code have `wrong` in the place of `right`, which is once in it."""

    def changed(*names):
        found = code_files(*names)
        assert "".join(found.values()).count(right) == 1
        return {name: text.replace(right, wrong) for name, text in found.items()}

    monkeypatch.setattr(module, "code_files", changed)


def test_a_model_that_computes_something_else_is_not_written(checkpoint, capsys, monkeypatch):
    for right, wrong, dtype, status, said in MUTANTS:
        broken(monkeypatch, files, right, wrong)
        assert said in refused(capsys, checkpoint, "--dtype", dtype, code=status)
    monkeypatch.setattr(files, "code_files", code_files)
    whole = tupe.weights  # and a tensor is missing, which transformers would draw
    monkeypatch.setattr(tupe, "weights", lambda of: {k: v for k, v in whole(of).items() if "fc1.bias" not in k})
    assert "fc1" in refused(capsys, checkpoint, code=1)


# --- what is refused


def test_numbers_beyond_half_precision():
    """Of a trained model they overflow on their way, not in the weights."""
    with pytest.raises(verify.DifferentOutput, match=r"nan in float16 .*--dtype float32"):
        verify._check(Namespace(path="c.pt"), "float16", {"difference": float("nan"), "scale": 1.0})


def test_mistakes(checkpoint, capsys, monkeypatch):
    monkeypatch.chdir(checkpoint.folder)
    Path("short.txt").write_text("w0 1\n")
    Path("empty.txt").write_text(" \n")
    state = copy.deepcopy(checkpoint.state)
    state["model"]["encoder.lm_head.bias"][3] = float("nan")
    torch.save(state, "bad.pt")
    state["cfg"]["task"]["data"] = "elsewhere"
    torch.save(state, "moved.pt")
    for flags, message in (
        ("--checkpoint bad.pt", "encoder.lm_head.bias holds NaN or infinity"),
        ("--checkpoint moved.pt", "--dict"),
        ("--dict short.txt", "the checkpoint has 16 symbols, the dictionary 6"),
        ("--head x", "--head x: "),
        ("--label-dict short.txt", "--label-dict short.txt: "),
        ("--bpe-codes short.txt --tokenizer x", "--bpe-codes and --tokenizer"),
        ("--verify-text empty.txt", "--verify-text empty.txt: no text in it"),
        ("--tokenizer none", "--tokenizer none: "),
    ):
        assert message in refused(capsys, checkpoint, *flags.split())


def test_other_models_labels_and_machines_are_refused(tmp_path, capsys, monkeypatch):
    error = refused(capsys, make(tmp_path / "other", "lm"))
    assert all(part in error for part in ("--arch transformer_lm", "roberta_base", "tupe_*"))
    checkpoint = checkpoint_of(tmp_path / "c", "tupe_tiny", "", task=f"{CLASSES} --num-classes 2")
    assert "3 labels, the head 'sentence_classification_head' has 2 classes" in refused(capsys, checkpoint)
    (tmp_path / "labels.txt").write_text("no 4\nyes 3\nmadeupword0000 0\n")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers", None)
        assert "export-hf needs transformers: pip install transformers safetensors" in refused(capsys, checkpoint)
    assert export_hf(checkpoint, "--label-dict", tmp_path / "labels.txt", "--json") == 0
    assert json.loads(capsys.readouterr().out)["head"]["labels"] == ["no", "yes"]


# --- tokenizers against fairseq's own pipeline: dictionary, subword-nmt, inputs of the tasks


def load(folder):
    return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=True)


def write(found, folder, **options):
    folder.mkdir()
    tokenizer = choose_tokenizer(ExportRequest("c.pt", "out", **options), found)
    tokenizer.write(folder)
    return tokenizer


def ids_of(found, text):
    """What fairseq gives the model."""
    dictionary = found.model.encoder.dictionary
    return [0, *dictionary.encode_line(text, append_eos=False, add_if_not_exist=False).tolist(), 2]


def test_words_are_split_where_fairseq_splits_them(tmp_path):
    """Every kind of white space that Python knows, and characters that look like it."""
    found = trained(tmp_path / "c")
    write(found, tmp_path / "out")
    tokenizer = load(tmp_path / "out")
    odd = [chr(code) for code in range(sys.maxunicode) if chr(code).isspace() or code in (0, 0x200B, 0x180E, 0xFEFF)]
    for text in ["w1 <mask> nothing w8", *(f"w1{space}w2 {space} w8" for space in odd)]:
        assert tokenizer(text)["input_ids"] == ids_of(found, text), ascii(text)
    assert tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))) == found.symbols
    padded = tokenizer(["w1", "w1 w2 w3"], padding=True)
    assert (padded["input_ids"][0], padded["attention_mask"][0]) == ([0, 5, 2, 1, 1], [1, 1, 1, 0, 0])


def test_pairs_are_the_inputs_of_the_task(tmp_path):
    """As `TupeHub.encode`, or as --init-token and --separator-token say."""
    plain = CLASSES.partition("--init-token")[0]
    for number, (task, expected) in enumerate(((MLM, [0, 5, 2, 2, 6, 2]), (f"{plain} --num-classes 3", [5, 2, 6, 2]))):
        write(trained(tmp_path / f"{number}", "bert_a_tiny", "", task=task), tmp_path / f"out{number}")
        assert load(tmp_path / f"out{number}")("w1", "w2")["input_ids"] == expected


#: a dictionary of text that scripts/glue/encode.py prepared
WORDS = "the a man dog went to is on , . 's an or@@ an@@ ge or low <file> <email> <url>".split()
MERGES = "t h,th e</w>,m a,ma n</w>,d o,do g</w>,w e,we n,wen t</w>,t o</w>,i s</w>,o n</w>,' s</w>,l o,lo w</w>"
CODES = "\n".join(["#version: 0.2", *MERGES.split(","), "o r", "a n", "g e</w>", "a n</w>", "o r</w>", ""])
RAW = ["The Man went to an Orange.", "the DOG's low, SLOW", "An or is on www.x.org/a.", "He is on"]
CUT = ["the man went to an or@@ an@@ ge .", "the dog 's low , s@@ low", "an or is on <url> .", "h@@ e is on"]


@pytest.fixture
def prepared(tmp_path):
    """A checkpoint over WORDS beside its codes, raw text and the same text in sub-words."""
    pytest.importorskip("sacremoses")
    pytest.importorskip("spacy")
    checkpoint = checkpoint_of(tmp_path / "c", words=WORDS)
    for name, lines in (("codes", [CODES]), ("raw", RAW), ("cut", CUT)):
        (checkpoint.folder / name).write_text("\n".join(lines))
    return checkpoint


def test_raw_text_and_sub_words_get_the_ids_of_the_training(prepared, tmp_path, capsys, monkeypatch):
    codes = prepared.folder / "codes"
    found = ["--bpe-codes", codes]
    for name, form in (("raw", "raw text"), ("cut", "sub-words")):
        assert export_hf(prepared, *found, "--force", "--verify-text", prepared.folder / name, "--json") == 0
        record = json.loads(capsys.readouterr().out)
        text = record["verified_text"]
        assert (text["lines"], text["form"].startswith(form), text["unknown"]) == (4, True, 3 / 26)  # s@@ h@@ e
        assert "4 lines of " + form in (prepared.output / "README.md").read_text()
        assert "lower case" in record["tokenizer"]
    opened, dictionary = load(prepared.output), prepared.task.source_dictionary
    for raw, cut in zip(RAW, CUT):
        expected = [0, *dictionary.encode_line(cut, append_eos=False, add_if_not_exist=False).tolist(), 2]
        assert opened(raw)["input_ids"] == opened(cut)["input_ids"] == expected
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "scripts"))
    for name in ("raw", "cut"):
        files = ["--input", str(prepared.folder / name), "--output", str(tmp_path / "encoded")]
        monkeypatch.setattr(sys, "argv", ["encode.py", "--codes", str(codes), *files])
        importlib.import_module("glue.encode").main()
        assert (tmp_path / "encoded").read_text().splitlines() == CUT
    assert opened("low", "on")["input_ids"] == [0, 20, 2, 2, 11, 2]
    assert opened("low", return_special_tokens_mask=True)["special_tokens_mask"] == [1, 0, 1]
    assert opened.decode(opened(RAW[0]).input_ids, skip_special_tokens=True) == "the man went to an orange ."
    opened.save_pretrained(str(tmp_path / "again"))
    assert [load(tmp_path / "again")(line)["input_ids"] for line in RAW] == [opened(line)["input_ids"] for line in RAW]
    settings = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())["preparation"]
    assert (settings["preparation"], settings["lowercase"], settings["lang"]) == ("wikibooks", True, "en")


@pytest.mark.parametrize("form", ["{} 7\n", "{}\n", "\ufeff{}\n"])
def test_the_hub_reads_codes_of_all_kinds(prepared, tmp_path, form):
    """With fastBPE's counts, without a version, behind a byte order mark: the pieces are the same."""
    version, *merges = (prepared.folder / "codes").read_text().splitlines()
    head, codes = version + "\n" if form.startswith("\ufeff") else "", tmp_path / "codes"
    codes.write_text(form[: form.index("{")] + head + "".join(form.lstrip("\ufeff").format(merge) for merge in merges))
    folders = str(prepared.folder), "c.pt", str(prepared.folder / "data")
    hub = TupeModel.from_pretrained(*folders, bpe_codes=str(codes))
    assert [" ".join(hub.segment(line)) for line in RAW] == CUT
    assert hub.decode(hub.encode(RAW[0])) == "the man went to an orange ."


def test_the_pipeline_fills_masks_as_the_hub_does(prepared):
    assert export_hf(prepared, "--bpe-codes", prepared.folder / "codes") == 0
    folders, where = (str(prepared.folder), "c.pt", str(prepared.folder / "data")), str(prepared.output)
    hub = TupeModel.from_pretrained(*folders, bpe_codes=str(prepared.folder / "codes"))
    fill = pipeline("fill-mask", model=where, tokenizer=where, trust_remote_code=True)
    everything = len(prepared.task.source_dictionary)
    for text in ("The Man went to the <mask>.", "the man went to the <mask> .", "an or@@ an@@ ge <mask> dog"):
        expected, answers = hub.fill_mask(text, topk=everything), fill(text, top_k=everything)
        assert [hub.task.source_dictionary[answer["token"]] for answer in answers] == [
            token for _, _, token in expected
        ]
        for (_, probability, _), answer in zip(expected, answers):
            assert answer["score"] == pytest.approx(probability, rel=1e-4)
    words = hub.encode("The Man went to the <mask>.").tolist()
    assert (
        words == hub.encode("the man went to the <mask> .").tolist() == fill.tokenizer(text_of(words, hub))["input_ids"]
    )


def text_of(ids, hub) -> str:
    return hub.task.source_dictionary.string(ids[1:-1])


def test_options_say_how_raw_text_is_prepared(prepared):
    options = "--preparation moses --lowercase no --lang deu_Latn".split()
    assert export_hf(prepared, "--bpe-codes", prepared.folder / "codes", *options) == 0
    settings = json.loads((prepared.output / "tokenizer_config.json").read_text())["preparation"]
    assert (settings["preparation"], settings["lowercase"], settings["lang"]) == ("moses", False, "de")
    assert load(prepared.output)("SLOW man.")["input_ids"] == [0, 3, 3, 3, 3, 6, 13, 2]


def test_text_in_the_wrong_form_is_refused(prepared, tmp_path, capsys):
    folder, codes = prepared.folder, prepared.folder / "codes"
    (folder / "others").write_text(CODES.replace("g e</w>\n", ""))
    for flags, said in (
        (["--verify-text", folder / "raw"], ("--verify-text", "--bpe-codes")),
        (["--bpe-codes", folder / "others", "--verify-text", folder / "cut"], ("1 line of 4", "--bpe-codes")),
        (["--tokenizer", folder, "--lowercase", "yes"], ("--tokenizer", "--lowercase")),
        (["--bpe-codes", codes, "--lang", "xq"], ("--lang", "xq")),
    ):
        error = refused(capsys, prepared, *flags)
        assert all(part in error for part in said), error
    words = checkpoint_of(tmp_path / "w", words=[word for word in WORDS if "@" not in word])
    assert "--preparation wikibooks" in refused(capsys, words, "--verify-text", folder / "raw")
    (folder / "words").write_text("the man , an or\n")
    assert export_hf(words, "--verify-text", folder / "words") == 0
    (folder / "cut").write_text("▁the ▁man\n")
    assert "before it was cut" in refused(capsys, prepared, "--bpe-codes", codes, "--verify-text", folder / "cut")


def test_ids_that_differ_on_a_text_are_an_error(prepared, capsys, monkeypatch):
    """As before: an exported tokenizer that cuts sub-words again."""
    broken(monkeypatch, tokenizer, "if self.is_segmented(words):", "if not words:")
    flags = ["--bpe-codes", prepared.folder / "codes", "--verify-text", prepared.folder / "cut"]
    assert "would get the ids" in refused(capsys, prepared, *flags, code=1)


def test_a_missing_library_is_one_line(prepared, capsys, monkeypatch):
    flags = ["--bpe-codes", prepared.folder / "codes"]
    assert export_hf(prepared, *flags) == 0
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(ImportError, match=r"pip install sacremoses$"):
        load(prepared.output)
    shutil.rmtree(prepared.output)
    preparation._loaded.cache_clear()
    assert "pip install sacremoses" in refused(capsys, prepared, *flags)


def test_a_tokenizer_of_ones_own(checkpoint, tmp_path, capsys):
    """Its ids must be the dictionary's."""
    write(trained(tmp_path / "t", fillers=2), tmp_path / "right")
    assert export_hf(checkpoint, "--tokenizer", tmp_path / "right") == 0
    assert load(checkpoint.output)("w1 w2")["input_ids"] == [0, 5, 6, 2]
    shutil.rmtree(checkpoint.output)
    content = json.loads((tmp_path / "right" / "tokenizer.json").read_text())
    words = content["model"]["vocab"]
    content["model"]["vocab"] = {**words, "w1": 6, "w2": 5}
    (tmp_path / "right" / "tokenizer.json").write_text(json.dumps(content))
    assert "w1 has the id 6" in refused(capsys, checkpoint, "--tokenizer", tmp_path / "right")


def test_the_code_of_a_tokenizer_is_never_run(checkpoint, tmp_path, capsys, monkeypatch):
    """Nor is it named in what is written, where opening the export would run it; also if transformers has no other."""
    given = tmp_path / "given"
    write(trained(tmp_path / "t", fillers=2), given)
    config = json.loads((given / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": ["code.Mine", "code.Mine"]}
    (given / "tokenizer_config.json").write_text(json.dumps(config))
    (given / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Mine: pass\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    assert export_hf(checkpoint, "--tokenizer", given) == 0
    assert "auto_map" not in (checkpoint.output / "tokenizer_config.json").read_text()
    shutil.rmtree(checkpoint.output)
    (given / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "Mine"}))
    (given / "tokenizer.json").unlink()
    shutil.copyfile(checkpoint.dictionary, given / "vocab.txt")
    assert "--tokenizer" in refused(capsys, checkpoint, "--tokenizer", given)
    assert not (tmp_path / "ran").exists()


def test_a_dictionary_that_no_tokenizer_expresses(tmp_path, capsys):
    """A word that holds a special symbol: transformers would cut it. The model is written without a tokenizer."""
    checkpoint = checkpoint_of(tmp_path / "c", words=["w1", "a<s>b"])
    (tmp_path / "text").write_text("a<s>b\n")
    error = refused(capsys, checkpoint, "--verify-text", tmp_path / "text", code=1)
    assert "'a<s>b' would get the ids [0, 3, 0, 3, 2], in fairseq [0, 5, 2]" in error
    assert export_hf(checkpoint) == 0
    assert "a<s>b" in capsys.readouterr().out.partition("tokenizer      none, since ")[2].splitlines()[0]
    assert {path.name for path in checkpoint.output.iterdir()} == FILES
    assert "AutoTokenizer.from_pretrained" not in (checkpoint.output / "README.md").read_text()
