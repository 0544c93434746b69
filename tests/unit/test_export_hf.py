"""`embinit export-hf`: what it writes and prints, tokenizers, that a wrong model is noticed, errors of one line.

What is exported is opened in this process (`hf_exports.read_back_here`); `integration/test_export_hf_training.py` has
the other one.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from expand_checkpoints import make
from hf_exports import CLASSES, GENERATOR, MLM, checkpoint_of, export_hf, read_back_here, trained
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers")
from safetensors.torch import load_file
from subword_nmt.apply_bpe import BPE

from embinit_fairseq.cli.main import main
from embinit_fairseq.export import files, verify
from embinit_fairseq.export import tokenizer as tokenizers
from embinit_fairseq.export.remote.tokenization_tupe import TupeTokenizer
from embinit_fairseq.export.tokenizer import choose_tokenizer

FILES = ["README.md", "config.json", "configuration_tupe.py", "dict.txt", "model.safetensors", "modeling_tupe.py"]
FILES += ["tokenizer.json", "tokenizer_config.json"]
CODE = files.modelling_code()


@pytest.fixture(autouse=True)
def opened_here(monkeypatch):
    monkeypatch.setattr(verify.subprocess, "run", read_back_here)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_nothing_written(checkpoint):
    assert not checkpoint.output.exists()
    assert not [path for path in checkpoint.folder.iterdir() if path.name.endswith(".tmp")]


def test_a_pre_trained_model(tmp_path, capsys):
    checkpoint = checkpoint_of(tmp_path / "c", fillers=2)
    assert export_hf(checkpoint, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert names_in(checkpoint.output) == FILES == sorted(record["files"])
    assert record["auto_class"] == "AutoModelForMaskedLM"
    assert record["dictionary"] == checkpoint.dictionary  # found in the data folder of the training
    found = record["verified"]["differences"]
    assert found["float64"]["difference"] <= 1e-12 < found["float64"]["allowed"]
    assert found["float32"]["difference"] <= 1e-5 * found["float32"]["scale"]
    config = json.loads((checkpoint.output / "config.json").read_text())
    said = (config["vocab_size"], config["architectures"], config["torch_dtype"])
    assert said == (16, ["TupeForMaskedLM"], "float32")
    names = set(load_file(checkpoint.output / "model.safetensors"))
    assert "lm_head.decoder.weight" not in names  # tied: stored once
    assert record["parameters"] == sum(value.numel() for value in checkpoint.model.parameters())
    assert len(names) == len(list(checkpoint.model.parameters()))
    card = (checkpoint.output / "README.md").read_text()
    opens = 'AutoModelForMaskedLM.from_pretrained("THIS_FOLDER", trust_remote_code=True)'
    assert all(part in card for part in ("# TUPE-R", opens, "| float64 |"))
    assert (checkpoint.output / "model.safetensors").stat().st_mode == (checkpoint.output / "dict.txt").stat().st_mode


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_of_a_fine_tuned_model(tmp_path, capsys, dtype):
    checkpoint = checkpoint_of(tmp_path / "c", "bert_ad_tiny", "", task=f"{CLASSES} --num-classes 3")
    assert export_hf(checkpoint, "--dtype", dtype, "--dict", checkpoint.dictionary) == 0
    text = capsys.readouterr().out
    for part in ("sentence_classification_head: a, b, c", f"parameters in {dtype}", f"{dtype}: differs"):
        assert part in text
    assert "float64: differs" in text
    config = json.loads((checkpoint.output / "config.json").read_text())
    assert config["id2label"] == {"0": "a", "1": "b", "2": "c"}
    assert (config["problem_type"], config["torch_dtype"]) == ("single_label_classification", dtype)
    stored = load_file(checkpoint.output / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {getattr(torch, dtype)}
    table = checkpoint.state["model"]["encoder.sentence_encoder.embed_tokens.weight"]
    assert torch.equal(stored["tupe.embed_tokens.weight"], table.to(getattr(torch, dtype)))


def test_a_discriminator(tmp_path, capsys):
    checkpoint = checkpoint_of(tmp_path / "c", "electra_tiny", "", task=f"{MLM} {GENERATOR}")
    assert export_hf(checkpoint) == 0
    text = capsys.readouterr().out
    assert "left out       generator, replaced-token head" in text
    assert "opened by      AutoModel," in text


SCALE = "self.scale = (num_terms * (embed_dim // num_heads)) ** -0.5"
#: in the exported code -> broken, as somebody might who writes it down a second time
MUTANTS = {
    "scaling": (SCALE, "self.scale = (embed_dim // num_heads) ** -0.5"),
    "a thousandth": (SCALE, f"{SCALE} * 1.001"),
    "rows of the reset": ("to_cls=scores[:, 0, 0]", "to_cls=(q[:, 0] * k[:, 0]).sum(-1)"),
    "bucket": ("offset = (relative_position > 0)", "offset = (relative_position >= 0)"),
    "padding": (
        "padding_mask = padding_mask[:, None, None]",
        "padding_mask = torch.zeros_like(padding_mask)[:, None, None]",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_model_that_computes_something_else_is_not_written(tmp_path, capsys, monkeypatch, mutant):
    right, wrong = MUTANTS[mutant]
    assert CODE["modeling_tupe.py"].count(right) == 1
    broken = {**CODE, "modeling_tupe.py": CODE["modeling_tupe.py"].replace(right, wrong)}
    monkeypatch.setattr(files, "modelling_code", lambda: broken)
    checkpoint = checkpoint_of(tmp_path / "c")
    slight = mutant == "a thousandth"  # is lost in the rounding of bfloat16
    assert export_hf(checkpoint, "--dtype", "bfloat16" if slight else "float32") == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith(
        f"embinit export-hf: error: {checkpoint.path}: the exported model differs from fairseq's by"
    )
    assert f" in {'float64' if slight else 'float32'} (allowed: " in error
    assert_nothing_written(checkpoint)


@pytest.mark.parametrize(
    ("what", "code", "part"), [("an import", 2, "transformers cannot open"), ("a tensor", 1, "fc1")]
)
def test_files_that_lack_something_are_not_written(tmp_path, capsys, monkeypatch, what, code, part):
    """Code that needs more than transformers; a tensor, which transformers would draw."""
    text, whole = CODE["modeling_tupe.py"].replace("import math\n", "import math\nimport fairseq\n"), files.weights
    if what == "an import":
        monkeypatch.setattr(files, "modelling_code", lambda: {**CODE, "modeling_tupe.py": text})
    else:
        kept = lambda trained: {k: v for k, v in whole(trained).items() if "fc1.bias" not in k}  # noqa: E731
        monkeypatch.setattr(files, "weights", kept)
    checkpoint = checkpoint_of(tmp_path / "c")
    assert export_hf(checkpoint) == code
    assert part in capsys.readouterr().err
    assert_nothing_written(checkpoint)


# --- what is refused


def bad_weights(checkpoint):
    checkpoint.state["model"]["encoder.lm_head.bias"][3] = float("nan")
    checkpoint.save()


def cut_short(checkpoint):
    content = Path(checkpoint.path).read_bytes()
    Path(checkpoint.path).write_bytes(content[: len(content) // 2])


def without_dictionary(checkpoint):
    checkpoint.state["cfg"]["task"]["data"] = "elsewhere"
    checkpoint.save()


@pytest.mark.parametrize(
    ("prepare", "flags", "message"),
    [
        (cut_short, (), "c.pt: not a fairseq checkpoint that can be read safely"),
        (bad_weights, (), "encoder.lm_head.bias holds NaN or infinity"),
        (without_dictionary, (), "--dict"),
        (None, ("--dict", "short.txt"), "the checkpoint has 14 symbols, the dictionary 6"),
        (None, ("--dict", "none.txt"), "--dict none.txt: no such file"),
        (None, ("--checkpoint", "none.pt"), "none.pt: no such checkpoint"),
        (None, ("--head", "x"), "--head x: "),
        (None, ("--label-dict", "short.txt"), "--label-dict short.txt: "),
        (None, ("--output", "short.txt"), "another --output"),
        (None, ("--output", "data", "--dict", "data/dict.txt"), "another --output"),
        (None, ("--bpe-codes", "short.txt", "--tokenizer", "x"), "--bpe-codes and --tokenizer"),
        (None, ("--bpe-codes", "none.txt"), "--bpe-codes none.txt: no such file"),
        (None, ("--bpe-codes", "codes.txt"), "codes.txt:2: expected two pieces, found 'a b c'"),
        (None, ("--verify-text", "none.txt"), "--verify-text none.txt: no such file"),
        (None, ("--verify-text", "empty.txt"), "--verify-text empty.txt: no text in it"),
        (None, ("--tokenizer", "none"), "--tokenizer none: "),
        (None, ("--dtype", "int8"), "--dtype"),
    ],
)
def test_mistakes(tmp_path, capsys, monkeypatch, prepare, flags, message):
    checkpoint = checkpoint_of(tmp_path / "c")
    monkeypatch.chdir(checkpoint.folder)
    for name, text in {"short.txt": "w0 1\n", "codes.txt": "#version: 0.2\na b c\n", "empty.txt": " \n"}.items():
        (checkpoint.folder / name).write_text(text)
    if prepare is not None:
        prepare(checkpoint)
    assert export_hf(checkpoint, *flags) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in error
    assert error.startswith("embinit export-hf: error: ")
    assert_nothing_written(checkpoint)


@pytest.mark.parametrize("family", ["roberta", "tupe_transformer"])
def test_other_models_are_refused(tmp_path, capsys, family):
    checkpoint = make(tmp_path, family)
    assert export_hf(checkpoint, "--dict", checkpoint.dictionary) == 2
    assert "export-hf knows tupe_*" in capsys.readouterr().err
    assert_nothing_written(checkpoint)


def test_labels_that_do_not_fit(tmp_path, capsys):
    checkpoint = checkpoint_of(tmp_path / "c", "tupe_tiny", "", task=f"{CLASSES} --num-classes 2")
    assert export_hf(checkpoint) == 2
    assert "3 labels, the head 'sentence_classification_head' has 2 classes" in capsys.readouterr().err
    assert export_hf(checkpoint, "--label-dict", tmp_path / "none.txt") == 2
    assert f"--label-dict {tmp_path / 'none.txt'}: no such file; check the path" in capsys.readouterr().err
    (tmp_path / "labels.txt").write_text("no 4\nyes 3\nmadeupword0000 0\n")
    assert export_hf(checkpoint, "--label-dict", tmp_path / "labels.txt", "--json") == 0
    assert json.loads(capsys.readouterr().out)["head"]["labels"] == ["no", "yes"]


def test_without_transformers(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["export-hf", "--checkpoint", "c.pt", "--output", str(tmp_path / "x")]) == 2
    assert "export-hf needs transformers: pip install transformers safetensors" in capsys.readouterr().err


# --- the code that is written


def test_exported_code_is_that_of_the_modules():
    """Every class and function of our modules stands in it unchanged; it imports torch, transformers and itself."""
    import ast

    text = CODE["modeling_tupe.py"]
    tree = ast.parse(text)
    modules = ("encoder_layer", "position_bias", "position_encoding", "initialisation")
    theirs = {node.name: ast.unparse(node) for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    compared = set()
    for module in modules:
        for node in ast.parse((Path(files.__file__).parents[1] / "modules" / f"{module}.py").read_text()).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name in theirs:
                assert theirs[node.name] == ast.unparse(node)
                compared.add(node.name)
    assert {"SelfAttention", "EncoderLayer", "RelativeTerm", "UntiedPositions", "init_bert_params"} < compared
    assert "embinit_fairseq" not in text
    imported = {line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert imported <= {"__future__", "collections", "math", "dataclasses", "typing", "torch", "transformers", ""}


# --- tokenizers against fairseq's own pipeline: dictionary, subword-nmt, inputs of the tasks


CODES = "#version: 0.2\nl o\nlo w</w>\ne r</w>\nlo w\nn e\nne w</w>\nlow er</w>\nlow est</w>\n"
PIECES = ["low", "er", "lo@@", "new", "ne@@", "lower", "e@@", "l@@", "o@@", "w", "w@@", "n@@", "r", "s@@", "t"]


def load(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=True)


def write(found, folder, *arguments):
    folder.mkdir()
    tokenizer = choose_tokenizer(found, *arguments)
    tokenizer.write(folder)
    return tokenizer


def plain_ids(found, text):
    dictionary = found.model.encoder.dictionary
    return dictionary.encode_line(text, append_eos=False, add_if_not_exist=False).tolist()


def test_words_are_split_where_fairseq_splits_them(tmp_path):
    """Every kind of white space that Python knows, and characters that look like it."""
    found = trained(tmp_path / "c")
    write(found, tmp_path / "out", None, None, None)
    tokenizer = load(tmp_path / "out")
    assert len(tokenizer) == len(found.symbols)
    odd = [chr(code) for code in range(sys.maxunicode) if chr(code).isspace() or code in (0, 0x200B, 0x180E, 0xFEFF)]
    for space in odd:
        text = f"w1{space}w2 {space} w8"
        assert tokenizer(text)["input_ids"] == [0, *plain_ids(found, text), 2], f"U+{ord(space):04X}"
    assert tokenizer("w1 <mask> nothing w8")["input_ids"] == [0, *plain_ids(found, "w1 <mask> nothing w8"), 2]
    assert tokenizer.decode(tokenizer("w1 w2")["input_ids"], skip_special_tokens=True) == "w1 w2"
    assert tokenizer.convert_ids_to_tokens(list(range(len(found.symbols)))) == found.symbols
    padded = tokenizer(["w1", "w1 w2 w3"], padding=True)
    assert padded["input_ids"][0] == [0, 5, 2, 1, 1]
    assert padded["attention_mask"][0] == [1, 1, 1, 0, 0]


def test_pairs_are_the_inputs_of_the_task(tmp_path):
    """masked_lm: as `TupeHub.encode`. sentence_prediction: --init-token and --separator-token."""
    pre_trained = trained(tmp_path / "a")
    fine_tuned = trained(tmp_path / "b", "bert_a_tiny", "", task=f"{CLASSES} --num-classes 3")
    without = CLASSES.replace("--init-token 0 --separator-token 2", "")
    plain = trained(tmp_path / "c", "bert_a_tiny", "", task=f"{without} --num-classes 3")
    for found, expected in (
        (pre_trained, [0, 5, 2, 2, 6, 2]),
        (fine_tuned, [0, 5, 2, 2, 6, 2]),
        (plain, [5, 2, 6, 2]),
    ):
        folder = tmp_path / f"out{len(expected)}{found.arch}"
        write(found, folder, None, None, None)
        assert load(folder)("w1", "w2")["input_ids"] == expected


def sub_words(tmp_path, codes, words):
    """(model over these words, path of the codes)."""
    (tmp_path / "codes").write_text(codes)
    return trained(tmp_path / "c", words=words), str(tmp_path / "codes")


def test_sub_words_as_tokenizer_json_where_every_merge_is_a_symbol(tmp_path):
    words = ["l@@", "l", "o@@", "lo@@", "low", "w", "e@@", "er", "r", "x@@", "<url>"]
    found, codes = sub_words(tmp_path, "#version: 0.2\nl o\nlo w</w>\ne r</w>\n", words)
    tokenizer = write(found, tmp_path / "out", codes, None, None)
    assert tokenizer.why == "sub-words of subword-nmt"
    opened = load(tmp_path / "out")
    assert opened.is_fast
    assert len(opened) == len(found.symbols)
    for text, cut in (("low  loer xlow", "low lo@@ er x@@ low"), ("<url> q low", "<url> q low"), ("el", "e@@ l")):
        assert opened(text)["input_ids"] == [0, *plain_ids(found, cut), 2]
    assert opened.decode(opened("low loer").input_ids, skip_special_tokens=True).strip() == "low loer"


def test_sub_words_in_python_where_a_merge_is_no_symbol(tmp_path):
    found, codes = sub_words(tmp_path, CODES, [*PIECES, "l", "o", "e", "n", "<url>", "lowest", "est", "est@@"])
    tokenizer = write(found, tmp_path / "out", codes, None, None)
    assert tokenizer.why.endswith("in Python: the dictionary lacks 1 piece of the codes")  # low@@
    opened = load(tmp_path / "out")
    assert [opened(line)["input_ids"] for line in tokenizer.lines] == tokenizer.expected
    assert len(opened) == len(found.symbols)
    assert opened.decode(opened("lower newest").input_ids, skip_special_tokens=True).startswith("lower")
    assert opened("low", "new")["input_ids"] == [0, 4, 2, 2, 7, 2]
    assert opened("low", return_special_tokens_mask=True)["special_tokens_mask"] == [1, 0, 1]
    assert opened("<url> low <mask>")["input_ids"] == [0, *plain_ids(found, "<url> low <mask>"), 2]
    opened.save_pretrained(str(tmp_path / "again"))
    assert load(tmp_path / "again")("lower new")["input_ids"] == opened("lower new")["input_ids"]


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="lowernst", min_size=1, max_size=12))
def test_pieces_are_those_of_subword_nmt(tmp_path_factory, word):
    folder = tmp_path_factory.getbasetemp()
    for version in ("#version: 0.2\n", "#version: 0.1\n"):
        text = CODES.replace("#version: 0.2\n", version) + "l l\nll l\nlo lo\nlolo lo\nlo l\n"
        (folder / "codes").write_text(text)
        (folder / "vocab.txt").write_text("<s>\n<pad>\n</s>\n<unk>\n")
        with open(folder / "codes") as file:
            expected = BPE(file).process_line(word).split()
        assert TupeTokenizer(folder / "vocab.txt", folder / "codes")._pieces(word) == expected


def test_a_tokenizer_of_ones_own(tmp_path, capsys):
    """Its ids must be the dictionary's."""
    checkpoint = checkpoint_of(tmp_path / "c")
    for name, (one, other) in {"right": (None, None), "wrong": ("w1", "w2"), "longer": ("<mask>", "<other>")}.items():
        write(trained(tmp_path / "t"), tmp_path / name, None, None, None)
        content = json.loads((tmp_path / name / "tokenizer.json").read_text())
        words = content["model"]["vocab"]
        if one:
            words[one], words[other] = words.get(other, 99), words[one]
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(content))
    for name, message in (("wrong", "w1 has the id 6"), ("longer", "--tokenizer")):
        assert export_hf(checkpoint, "--tokenizer", tmp_path / name) == 2
        assert message in capsys.readouterr().err
    assert export_hf(checkpoint, "--tokenizer", tmp_path / "right") == 0
    assert "copied from" in capsys.readouterr().out
    assert load(checkpoint.output)("w1 w2")["input_ids"] == [0, 5, 6, 2]


@pytest.mark.parametrize("needed", [False, True])
def test_the_code_of_a_tokenizer_is_never_run(tmp_path, capsys, monkeypatch, needed):
    """Nor is it named in what is written, where opening the export would run it. needed: transformers has no other."""
    checkpoint, given = checkpoint_of(tmp_path / "c"), tmp_path / "given"
    write(trained(tmp_path / "t"), given, None, None, None)
    config = json.loads((given / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": ["code.Mine", "code.Mine"]}
    config["tokenizer_class"] = "Mine" if needed else config["tokenizer_class"]
    (given / "tokenizer_config.json").write_text(json.dumps(config))
    if needed:
        (given / "tokenizer.json").unlink()
        shutil.copyfile(checkpoint.dictionary, given / "vocab.txt")
    (given / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Mine: pass\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    status = export_hf(checkpoint, "--tokenizer", given)
    assert not (tmp_path / "ran").exists()
    assert status == (2 if needed else 0)
    if needed:
        assert "--tokenizer" in capsys.readouterr().err
    else:
        assert "auto_map" not in (checkpoint.output / "tokenizer_config.json").read_text()


def test_text_of_ones_own_is_compared_too(tmp_path, capsys, monkeypatch):
    checkpoint = checkpoint_of(tmp_path / "c")
    (tmp_path / "text").write_text("w1 w2 <unk>\nw3\n")
    assert export_hf(checkpoint, "--verify-text", tmp_path / "text", "--json") == 0
    assert json.loads(capsys.readouterr().out)["text_lines"] == 205
    words = tokenizers.words_json

    def other_ids(layout):
        text = words(layout)["tokenizer.json"].replace('"w1": 5', '"w1": 6').replace('"w2": 6', '"w2": 5')
        return {**words(layout), "tokenizer.json": text}

    monkeypatch.setattr(tokenizers, "words_json", other_ids)
    other = checkpoint_of(tmp_path / "d")
    assert export_hf(other, "--verify-text", tmp_path / "text") == 1
    assert "'w1 w2 <unk>' would get the ids [0, 6, 5, 3, 2], in fairseq [0, 5, 6, 3, 2]" in capsys.readouterr().err
    assert not other.output.exists()


def test_a_dictionary_that_no_tokenizer_expresses(tmp_path, capsys):
    """A word that holds a special symbol: transformers would cut it. The model is written without a tokenizer."""
    checkpoint = checkpoint_of(tmp_path / "c", words=["w1", "a<s>b"])
    assert export_hf(checkpoint) == 0
    assert "a<s>b" in capsys.readouterr().out.partition("tokenizer      none, since ")[2].splitlines()[0]
    assert not [path.name for path in checkpoint.output.iterdir() if "token" in path.name]
    assert "AutoTokenizer.from_pretrained" not in (checkpoint.output / "README.md").read_text()
    (tmp_path / "text").write_text("a<s>b\n")
    assert export_hf(checkpoint, "--force", "--verify-text", tmp_path / "text") == 1
    assert "'a<s>b' would get the ids [0, 3, 0, 3, 2], in fairseq [0, 5, 2]" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["", "#version: 0.1\n"])
def test_old_codes_are_cut_in_python(tmp_path, version):
    """Before 0.2 the end of a word was a symbol of its own."""
    words = ["low", "lo@@", "l@@", "o@@", "w", "low@@", "e@@", "r"]
    found, codes = sub_words(tmp_path, f"{version}l o\nlo w\nlow </w>\n", words)
    tokenizer = write(found, tmp_path / "out", codes, None, None)
    assert "in Python" in tokenizer.why
    opened = load(tmp_path / "out")
    assert [opened(line)["input_ids"] for line in tokenizer.lines] == tokenizer.expected
    assert opened.tokenize("low lower") == ["low", "low@@", "e@@", "r"]
