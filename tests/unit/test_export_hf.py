"""`embinit export-hf`: what it writes and prints, tokenizers, that a wrong model is noticed, errors of one line.

What is exported is opened in this process (`hf_exports.read_back_here`), and in another one in the integration tests.
"""

from __future__ import annotations

import copy
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
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers")
from safetensors.torch import load_file
from subword_nmt.apply_bpe import BPE
from transformers import AutoTokenizer

from embinit_fairseq.export import tupe, verify
from embinit_fairseq.export.remote.tokenization_tupe import TupeTokenizer
from embinit_fairseq.export.tokenizer import choose_tokenizer

FILES = {"README.md", "config.json", "configuration_tupe.py", "dict.txt", "model.safetensors", "modeling_tupe.py"}


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
MASK = "padding_mask = padding_mask[:, None, None]"
#: in the exported code -> broken, as somebody might who writes it down a second time; --dtype, exit code, what is said
MUTANTS = [
    (SCALE, f"{SCALE} * 1.001", "bfloat16", 1, " in float64 (allowed: "),  # lost in the rounding of bfloat16
    (MASK, MASK.replace("padding_mask[", "torch.zeros_like(padding_mask)["), "float32", 1, " in float32 (allowed: "),
    ("import math\n", "import math\nimport fairseq\n", "float32", 2, "transformers cannot open"),
]


def test_a_model_that_computes_something_else_is_not_written(checkpoint, capsys, monkeypatch):
    code, whole = tupe.code(), tupe.weights
    for right, wrong, dtype, status, said in MUTANTS:
        assert code["modeling_tupe.py"].count(right) == 1
        broken = {**code, "modeling_tupe.py": code["modeling_tupe.py"].replace(right, wrong)}
        monkeypatch.setattr(tupe, "code", lambda broken=broken: broken)
        assert said in refused(capsys, checkpoint, "--dtype", dtype, code=status)
    monkeypatch.setattr(tupe, "code", lambda: code)  # and a tensor is missing, which transformers would draw
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


CODES = "#version: 0.2\nl o\nlo w</w>\ne r</w>\nlo w\nn e\nne w</w>\nlow er</w>\nlow est</w>\n"
PIECES = ["low", "er", "lo@@", "new", "ne@@", "lower", "e@@", "l@@", "o@@", "w", "w@@", "n@@", "r", "s@@", "t"]


def load(folder):
    return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=True)


def write(found, folder, *arguments):
    folder.mkdir()
    tokenizer = choose_tokenizer(found, *(arguments or (None, None, None)))
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


def sub_words(tmp_path, codes, words):
    """(model over these words, what it chooses for the codes, that tokenizer as it is opened)."""
    (tmp_path / "codes").write_text(codes)
    found = trained(tmp_path / "c", words=words)
    tokenizer = write(found, tmp_path / "out", str(tmp_path / "codes"), None, None)
    return found, tokenizer, load(tmp_path / "out")


def test_sub_words_as_tokenizer_json_where_every_merge_is_a_symbol(tmp_path):
    words = ["l@@", "l", "o@@", "lo@@", "low", "w", "e@@", "er", "r", "x@@", "<url>"]
    found, tokenizer, opened = sub_words(tmp_path, "#version: 0.2\nl o\nlo w</w>\ne r</w>\n", words)
    assert (tokenizer.why, opened.is_fast, len(opened)) == ("sub-words of subword-nmt", True, len(found.symbols))
    for text, cut in (("low  loer xlow", "low lo@@ er x@@ low"), ("<url> q low", "<url> q low"), ("el", "e@@ l")):
        assert opened(text)["input_ids"] == ids_of(found, cut)
    assert opened.decode(opened("low loer").input_ids, skip_special_tokens=True).strip() == "low loer"


def test_sub_words_in_python_where_a_merge_is_no_symbol(tmp_path):
    words = [*PIECES, "l", "o", "e", "n", "<url>", "lowest", "est", "est@@"]
    found, tokenizer, opened = sub_words(tmp_path, CODES, words)
    assert tokenizer.why.endswith("in Python: the dictionary lacks 1 piece of the codes")  # low@@
    assert [opened(line)["input_ids"] for line in tokenizer.lines] == tokenizer.expected
    assert opened("low", "new")["input_ids"] == [0, 4, 2, 2, 7, 2]
    assert opened("low", return_special_tokens_mask=True)["special_tokens_mask"] == [1, 0, 1]
    assert opened("<url> low <mask>")["input_ids"] == ids_of(found, "<url> low <mask>")
    opened.save_pretrained(str(tmp_path / "again"))
    assert load(tmp_path / "again")("lower new")["input_ids"] == opened("lower new")["input_ids"]


@settings(max_examples=100, deadline=None)
@given(st.text("lowernst", min_size=1, max_size=12), st.sampled_from(["#version: 0.2\n", "#version: 0.1\n", ""]))
def test_pieces_are_those_of_subword_nmt(tmp_path_factory, word, version):
    folder = tmp_path_factory.getbasetemp()
    text = CODES.replace("#version: 0.2\n", version) + "l l\nll l\nlo lo\nlolo lo\nlo l\n"
    (folder / "codes").write_text(text)
    (folder / "vocab.txt").write_text("<s>\n<pad>\n</s>\n<unk>\n")
    expected = BPE(io.StringIO(text)).process_line(word).split()
    assert TupeTokenizer(folder / "vocab.txt", folder / "codes")._pieces(word) == expected


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
