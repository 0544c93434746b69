"""`embinit export-hf`: what it writes and prints, that a wrong model is noticed, what is refused.

The export is opened in this process (`hf_exports.read_back_here`); the integration tests open it in another one.
"""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from expand_checkpoints import WORDS, make
from hf_exports import CLASSES, checkpoint_of, export_hf, read_back_here, refused, seq2seq_checkpoint

pytest.importorskip("transformers")
from safetensors.torch import load_file

from embinit_fairseq.interop import architectures, export, trained, verify
from embinit_fairseq.interop.architectures import ROBERTA, TRANSFORMER, TUPE
from embinit_fairseq.interop.remote import code_files

FILES = {"README.md", "config.json", "dict.txt", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
REGRESSION = f"{CLASSES} --num-classes 1 --regression-target --best-checkpoint-metric loss"
HEAD = "sentence_classification_head"


@pytest.fixture(autouse=True)
def opened_here(monkeypatch):
    monkeypatch.setattr(verify.subprocess, "run", read_back_here)


@pytest.fixture
def checkpoint(tmp_path):
    """A pre-trained TUPE-R over w0 ... w8 and two fillers."""
    return checkpoint_of(tmp_path / "c", fillers=2)


def files_of(folder) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_pre_trained_model(checkpoint, tmp_path, capsys):
    (tmp_path / "text").write_text("w1 w2 <unk>\nw3\n")
    assert export_hf(checkpoint, "--json", "--verify-text", tmp_path / "text") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["text_lines"] == 205  # 203 made up
    assert files_of(checkpoint.output) == {*record["files"]} == FILES | {*code_files(*TUPE.code)}
    assert record["dictionary"] == checkpoint.dictionary  # in the data folder of the training
    differences = record["verified"]["differences"]
    assert differences["float64"]["difference"] <= 1e-12 < differences["float64"]["allowed"]
    assert differences["float32"]["difference"] <= 1e-5 * differences["float32"]["scale"]
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
    parts = [f"{HEAD}: a, b, c", "parameters in bfloat16", "bfloat16: differs", "float64: differs"]
    assert all(part in text for part in parts), text
    config = json.loads((checkpoint.output / "config.json").read_text())
    assert config["id2label"] == {"0": "a", "1": "b", "2": "c"}
    assert (config["problem_type"], config["torch_dtype"]) == ("single_label_classification", "bfloat16")
    stored = load_file(checkpoint.output / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.bfloat16}
    words = checkpoint.state["model"]["encoder.sentence_encoder.embed_tokens.weight"]
    assert torch.equal(stored["tupe.embed_tokens.weight"], words.bfloat16())


@pytest.mark.parametrize(
    ("family", "target"), [("transformer", {"target/dict.txt", "target/tokenizer.json"}), ("bart_shared", set())]
)
def test_files_of_a_translation_model(tmp_path, capsys, family, target):
    checkpoint = seq2seq_checkpoint(tmp_path / "c", family)
    assert export_hf(checkpoint, "--json") == 0
    assert json.loads(capsys.readouterr().out)["verified"]["differences"]["float64"]["difference"] <= 1e-12
    target = target | {"target/tokenizer_config.json"} if target else target
    assert files_of(checkpoint.output) == FILES | {"generation_config.json"} | target
    assert "trust_remote_code" not in (checkpoint.output / "README.md").read_text()
    assert export_hf(checkpoint, "--force", "--dtype", "float16") == 0  # the folder has files of an export only


def test_a_regression_says_its_units_and_nothing_of_labels(tmp_path, capsys):
    checkpoint = checkpoint_of(tmp_path / "c", "roberta_base", "", task=REGRESSION)
    labels = checkpoint.folder / "data" / "label"
    for file, text, units in (
        ("train.label", "0.5\n0.04\n1\n0.2\n", "which are 0.04 to 1\n"),
        ("scale", "0.2\n", "which are 0.04 to 1 (those of the data set times 0.2)\n"),
    ):
        (labels / file).write_text(text)
        assert export_hf(checkpoint, "--force") == 0
        text = capsys.readouterr().out
        assert f"{HEAD}: a number in the units of the labels of the training, {units}" in text
        assert "label" not in text.replace("labels of the training", "")
        assert units.strip() in (checkpoint.output / "README.md").read_text()
    config = json.loads((checkpoint.output / "config.json").read_text())
    assert (config["problem_type"], len(config["id2label"])) == ("regression", 1)
    checkpoint = checkpoint_of(tmp_path / "d", "roberta_base", "", task=REGRESSION)
    (tmp_path / "d" / "data" / "label" / "train.label").write_text("good\n")
    assert "train.label" in refused(capsys, checkpoint)


def test_languages_that_fairseq_inferred(tmp_path, capsys):
    """A training without -s and -t leaves none in the checkpoint: they are in the names of the binarised data."""
    checkpoint = seq2seq_checkpoint(tmp_path / "c", "transformer")
    checkpoint.state["cfg"]["task"].update(source_lang=None, target_lang=None)
    checkpoint.save()
    assert "--dict and --target-dict" in refused(capsys, checkpoint)
    (checkpoint.folder / "data" / "train.de-en.de.idx").touch()
    assert export_hf(checkpoint) == 0
    assert "de to en" in capsys.readouterr().out


# ---- A wrong model is noticed


SCALE = "self.scale = (num_terms * (embed_dim // num_heads)) ** -0.5"
#: part of the exported code -> the part broken, --dtype, exit code, part of the message
BROKEN = [
    (SCALE, f"{SCALE} * 1.001", "bfloat16", 1, " in float64 (allowed: "),  # hidden in the rounding of bfloat16
    ("masked_fill(padding_mask[:", "masked_fill(False & padding_mask[:", "float32", 1, " in float32 (allowed: "),
    ("import math\nfrom typing", "import math\nimport fairseq\nfrom typing", "float32", 2, "transformers cannot open"),
]


@pytest.mark.parametrize(("right", "wrong", "dtype", "status", "message"), BROKEN)
def test_broken_code_is_not_written(checkpoint, capsys, monkeypatch, right, wrong, dtype, status, message):
    def changed(*names):
        texts = code_files(*names)
        assert "".join(texts.values()).count(right) == 1
        return {name: text.replace(right, wrong) for name, text in texts.items()}

    monkeypatch.setattr(export, "code_files", changed)
    assert message in refused(capsys, checkpoint, "--dtype", dtype, code=status)


def with_names(monkeypatch, architecture, names):
    """Export with other patterns of names."""
    wrong = replace(architecture, names=names)
    wrong_ones = tuple(wrong if one is architecture else one for one in architectures.ARCHITECTURES)
    monkeypatch.setattr(trained, "ARCHITECTURES", wrong_ones)


def test_wrong_names_are_noticed(checkpoint, tmp_path, capsys, monkeypatch):
    with_names(monkeypatch, TUPE, [(r"encoder\.sentence_encoder\.(?!layers\.0\.fc1\.bias)", "tupe."), *TUPE.names[1:]])
    assert "fc1" in refused(capsys, checkpoint, code=1)  # missing: transformers would draw it
    exchanged = [
        (pattern, name.replace("query", "KEY").replace("key", "query").replace("KEY", "key"))
        for pattern, name in ROBERTA.names
    ]
    assert exchanged != list(ROBERTA.names)
    with_names(monkeypatch, ROBERTA, exchanged)
    other = checkpoint_of(tmp_path / "d", "roberta_base", "")
    assert "in float32 (allowed: " in refused(capsys, other, code=1)
    positions = "model.encoder.embed_positions.weight"
    rolled = replace(
        TRANSFORMER,
        extra=lambda model: {
            name: value.roll(int(name == positions), 0) for name, value in architectures.fsmt_extra(model).items()
        },
    )
    monkeypatch.setattr(trained, "ARCHITECTURES", (rolled,))
    assert "in float32 (allowed: " in refused(capsys, seq2seq_checkpoint(tmp_path / "e", "transformer"), code=1)


def test_numbers_beyond_half_precision():
    """In a trained model they overflow on their way, not in the weights."""
    with pytest.raises(verify.DifferentOutput, match=r"nan in float16 .*--dtype float32"):
        verify.check_difference("c.pt", "float16", {"difference": float("nan"), "scale": 1.0})


# ---- Refused


def test_wrong_options_and_files(checkpoint, capsys, monkeypatch):
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


def test_labels_and_machines(tmp_path, capsys, monkeypatch):
    checkpoint = checkpoint_of(tmp_path / "c", "tupe_tiny", "", task=f"{CLASSES} --num-classes 2")
    assert f"3 labels, the head '{HEAD}' has 2 classes" in refused(capsys, checkpoint)
    (tmp_path / "labels.txt").write_text("no 4\nyes 3\nmadeupword0000 0\n")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers", None)
        assert "export-hf needs transformers: pip install transformers safetensors" in refused(capsys, checkpoint)
    assert export_hf(checkpoint, "--label-dict", tmp_path / "labels.txt", "--json") == 0
    assert json.loads(capsys.readouterr().out)["head"]["labels"] == ["no", "yes"]


def test_dictionaries_of_another_model(tmp_path, capsys):
    checkpoint = seq2seq_checkpoint(tmp_path / "c", "transformer")
    german, english = checkpoint.folder / "data" / "dict.de.txt", checkpoint.folder / "data" / "dict.en.txt"
    for flags, message in (
        (("--dict", english), f"--dict {english}: the checkpoint has 15 symbols, the dictionary 13"),
        (("--target-dict", german), f"--target-dict {german}: the checkpoint has 13 symbols, the dictionary 15"),
        (("--sentencepiece-model", english), f"--sentencepiece-model {english}: "),
    ):
        assert message in refused(capsys, checkpoint, *flags)
    encoder = make(tmp_path / "d", "roberta", words=["x"])
    assert f"--target-dict {german}" in refused(capsys, encoder, "--target-dict", german)
    english.unlink()
    error = refused(capsys, checkpoint)
    assert all(part in error for part in ("no dict.en.txt in ", "--target-dict"))
    english.write_text("".join(f"{word} 1\n" for word in WORDS))
    assert export_hf(checkpoint) == 0


def test_several_heads(tmp_path):
    """One of them is chosen; the others are not exported."""
    checkpoint = checkpoint_of(tmp_path / "c", "tupe_tiny", "", task=f"{CLASSES} --num-classes 3")
    for name, value in list(checkpoint.state["model"].items()):
        if name.startswith(f"classification_heads.{HEAD}."):
            checkpoint.state["model"][name.replace(HEAD, "other")] = 2 * value
    checkpoint.save()
    opened = {name: trained.open_trained(checkpoint.path, None, None, name) for name in (None, "other")}
    assert [one.head for one in opened.values()] == [HEAD, "other"]
    assert [one.left_out for one in opened.values()] == [["head 'other'"], [f"head '{HEAD}'"]]
    plain, other = (TUPE.weights(one)["classifier.dense.weight"] for one in opened.values())
    assert torch.equal(2 * plain, other)
