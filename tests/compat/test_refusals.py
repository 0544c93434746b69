"""Input that fairseq cannot use: the error names the file, line or flag, and the remedy."""

from __future__ import annotations

import os
import pickle
import re
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
checkpoint_utils = pytest.importorskip("fairseq.checkpoint_utils")

from fairseq_compat.fixes.empty_user_dirs import explanation as no_plugin  # noqa: E402
from fairseq_compat.fixes.half_precision import obstacle  # noqa: E402
from fairseq_compat.fixes.unknown_architectures import explanation as unknown  # noqa: E402
from training_symptoms import sentence_task  # noqa: E402


class Payload:
    """Unpickling it would call a function."""

    def __reduce__(self):
        return os.getcwd, ()


def cut(content: object, share: float, new_format: bool = True):
    def write(path: Path) -> None:
        torch.save(content, path, _use_new_zipfile_serialization=new_format)
        os.truncate(path, int(path.stat().st_size * share))

    return write


MODEL = {"model": {"weight": torch.ones(1000)}}
BROKEN = {
    "empty": (Path.touch, "the file is empty"),
    "half a file": (cut(MODEL, 0.5), "cut short"),
    "half an old file": (cut(MODEL, 0.5, new_format=False), "cut short"),
    "text": (lambda path: path.write_text("hello, world\n"), "another kind of file"),
    "bytes": (lambda path: path.write_bytes(bytes(range(255, -1, -1)) * 9), "another kind of file"),
    "a list": (cut([1, 2], 1), "it holds a list"),
    "a state dict": (cut({"encoder.weight": torch.ones(2)}, 1), "it has no 'model', but 'encoder.weight'"),
    "code": (cut({"model": Payload()}, 1), r"it holds \w+.getcwd, which is not plain data and could execute code"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_checkpoint_that_cannot_be_loaded(kind: str, tmp_path: Path) -> None:
    write, reason = BROKEN[kind]
    path = tmp_path / "checkpoint_last.pt"
    write(path)
    with pytest.raises(pickle.UnpicklingError, match=f"checkpoint {path} cannot be loaded: .*{reason}.*Give another"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


PLUGINS = {
    "a model": ({"cfg": {"model": {"_name": "mine"}, "task": {"_name": "translation"}}}, "--arch mine, .*FOLDER: the"),
    "a task": ({"cfg": {"model": {"_name": "lstm"}, "task": {"_name": "mine"}}}, "--task mine, "),
    "an old one": ({"args": Namespace(arch="mine", task="mine", user_dir="p/q")}, "--arch mine, .*--user-dir p/q, as"),
    "of fairseq": ({"cfg": {"model": {"_name": "lstm"}, "task": Namespace(_name="translation")}}, None),
    "a silent one": ({"cfg": {"model": None}}, None),
    "no options": ({"model": {}}, None),
}


@pytest.mark.parametrize("kind", PLUGINS)
def test_a_checkpoint_of_a_plugin_that_is_not_loaded(kind: str) -> None:
    state, message = PLUGINS[kind]
    said = unknown("best.pt", state)
    assert re.search(f"^checkpoint best.pt is of {message}", said) if message else said is None


def test_an_error_of_a_known_model_stays_as_it_is(tmp_path: Path) -> None:
    state = {"cfg": {"model": {"_name": "lstm"}, "task": {"_name": "translation"}}, "model": {}}
    torch.save({**state, "optimizer_history": []}, tmp_path / "best.pt")
    with pytest.raises(IndexError, match="list index out of range"):
        checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "best.pt")])


@pytest.mark.parametrize(("name", "holds_one"), [("__init__.py", True), ("tasks", True), ("setup.py", False)])
def test_a_user_dir_without_a_plugin(name: str, holds_one: bool, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    said = no_plugin(str(tmp_path))
    assert said is None if holds_one else said.endswith("give the folder of the plugin's package")


def test_a_user_dir_that_is_not_there(tmp_path: Path) -> None:
    """Named where a plugin of that name can be imported from."""
    assert f"did you mean {Path(torch.__file__).parent}?" in no_plugin(str(tmp_path / "torch"))
    assert "check the path" in no_plugin(str(tmp_path / "no_such_plugin"))


LABELS = {
    "unknown": (["yes", "never"], "label/valid, line 2: this label is not in .*/label/dict.txt"),
    "a third class": (
        ["yes", "maybe"],
        r"label/valid, line 2: the label 'maybe' is none of the 2 .*--num-classes \(no, ",
    ),
    "two": (["yes no", "yes"], "label/valid, line 1: 2 labels instead of one"),
    "none": (["yes", ""], "label/valid, line 2: 0 labels instead of one"),
    "too few": (["yes"], "label/valid: 1 lines of labels for the 2 examples of input0"),
    "too many": (["yes"] * 3, "label/valid: 3 lines of labels for the 2 examples of input0"),
}
NUMBERS = {
    "nan": (["1", "nan"], "label/valid.label, line 2: 'nan' is no number that --regression-target can learn"),
    "infinite": (["-inf", "1"], "label/valid.label, line 1: '-inf' is no number"),
    "a word": (["1", "yes"], "label/valid.label, line 2: 'yes' is no number"),
    "two": (["1 2", "1"], "label/valid.label, line 1: 2 numbers, but --num-classes is 1: '1 2'"),
    "none": (["1", ""], "label/valid.label, line 2: 0 numbers"),
    "too few": (["1"], "label/valid.label: 1 lines of labels for the 2 examples of input0"),
}


@pytest.mark.parametrize("kind", LABELS)
def test_a_class_that_does_not_fit(kind: str, tmp_path: Path) -> None:
    labels, message = LABELS[kind]
    with pytest.raises(ValueError, match=message):
        sentence_task(tmp_path, labels, 2).load_dataset("valid")


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_number_that_does_not_fit(kind: str, tmp_path: Path) -> None:
    labels, message = NUMBERS[kind]
    with pytest.raises(ValueError, match=message):
        sentence_task(tmp_path, labels, 2, 1, regression=True).load_dataset("valid")


def test_labels_that_fit(tmp_path: Path) -> None:
    dataset = sentence_task(tmp_path / "classes", ["yes", "no"], 2).load_dataset("valid")
    assert sorted(dataset[at]["target"].item() for at in range(2)) == [0, 1]
    assert len(sentence_task(tmp_path / "more", ["yes", "maybe"], 2, 3).load_dataset("valid")) == 2
    dataset = sentence_task(tmp_path / "numbers", ["0.5", "-1e3"], 2, 1, regression=True).load_dataset("valid")
    assert sorted(dataset[at]["target"] for at in range(2)) == [[-1000.0], [0.5]]


def test_the_number_of_classes_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs --num-classes"):
        sentence_task(tmp_path, ["yes"], 1, num_classes=-1)


@pytest.mark.parametrize(
    ("flags", "cuda", "expected"),
    [
        ("fp16", True, None),
        ("fp16", False, "--fp16, but PyTorch finds no GPU"),
        ("fp16 cpu", True, "--fp16 with --cpu"),
        ("fp16 cpu memory_efficient_fp16", False, None),
        ("fp16 cpu fp16_no_flatten_grads", False, None),
        ("bf16", True, None),
        ("bf16", False, "--bf16, but PyTorch finds no GPU"),
        ("bf16 cpu", True, "--bf16 with --cpu"),
        ("bf16 cpu memory_efficient_bf16", False, None),
        ("bf16 tpu", True, "--tpu: there is no torch_xla"),
        ("tpu", False, "--tpu: there is no torch_xla"),
        ("amp cpu", False, None),
        ("", False, None),
    ],
)
def test_half_precision_by_device(flags: str, cuda: bool, expected: str | None) -> None:
    names = ("fp16", "bf16", "amp", "cpu", "tpu", "memory_efficient_fp16", "memory_efficient_bf16")
    names += ("fp16_no_flatten_grads",)
    found = obstacle(SimpleNamespace(**{name: name in flags.split() for name in names}), cuda)
    if expected is None:
        assert found is None
    else:
        assert re.search(f"{expected}.*give --amp", found)
