"""Input that fairseq cannot use: the error names the file, line or flag, and the remedy."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest

torch = pytest.importorskip("torch")
checkpoint_utils = pytest.importorskip("fairseq.checkpoint_utils")

from fairseq.distributed import utils as distributed  # noqa: E402
from fairseq.file_io import PathManager  # noqa: E402
from fairseq_compat.fixes.empty_user_dirs import resolved  # noqa: E402
from fairseq_compat.fixes.half_precision import obstacle  # noqa: E402
from fairseq_compat.fixes.unknown_architectures import explanation as unknown  # noqa: E402
from fairseq_compat.fixes.unnamed_tasks import trained_task  # noqa: E402
from training_symptoms import labelled  # noqa: E402


class Payload:
    """Unpickling it creates a file."""

    def __reduce__(self):
        return os.system, ("touch executed",)


def cut(content: object, share: float, zipped: bool = True):
    def write(path: Path) -> None:
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
        os.truncate(path, int(path.stat().st_size * share))

    return write


def other_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("name", "content")


MODEL = {"model": {"weight": torch.ones(1000)}}
BROKEN = {
    "empty": (Path.touch, "the file is empty"),
    "half a file": (cut(MODEL, 0.5), "cut short"),
    "half an old file": (cut(MODEL, 0.5, zipped=False), "cut short"),
    "text": (lambda path: path.write_text("hello, world\n"), "another kind of file"),
    "bytes": (lambda path: path.write_bytes(bytes(range(255, -1, -1)) * 9), "another kind of file"),
    "another zip": (other_zip, "the file is damaged"),
    "a list": (cut([1, 2], 1), "it holds a list"),
    "a state dict": (cut({"encoder.weight": torch.ones(2)}, 1), "it has no 'model', but 'encoder.weight'"),
    "code": (cut({"model": Payload()}, 1), r"it holds \w+.system, which is not plain data and could execute code"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_checkpoint_that_cannot_be_loaded(kind: str, tmp_path: Path, monkeypatch) -> None:
    """Another checkpoint helps against damage only; what is refused is taken out where it is made."""
    write, reason = BROKEN[kind]
    path, remedy = tmp_path / "last.pt", r"state_dict\(\)" if kind == "code" else "Give another"
    monkeypatch.chdir(tmp_path)
    write(path)
    message = f"checkpoint {path} cannot be loaded: .*{reason}.*{remedy}"
    with pytest.raises(pickle.UnpicklingError, match=message) as error:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert ("Give another" in str(error.value)) == (kind != "code")
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]


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


def test_an_error_of_a_known_model_stays_as_it_is_and_its_task_is_known(tmp_path: Path) -> None:
    options, path = {"model": {"_name": "lstm"}, "task": {"_name": "translation"}}, str(tmp_path / "best.pt")
    history = {"num_updates": 0, "optimizer_name": "", "criterion_name": "", "lr_scheduler_state": {}}
    torch.save({"cfg": options, "model": {}, "optimizer_history": [history], "extra_state": {}}, path)
    assert trained_task(f"{path}{os.pathsep}other.pt") == "translation"
    torch.save({"cfg": options, "model": {}, "optimizer_history": []}, path)
    with pytest.raises(IndexError, match="list index out of range"):
        checkpoint_utils.load_model_ensemble_and_task([path])
    assert trained_task(str(tmp_path / "none.pt")) is trained_task(None) is None


@pytest.mark.parametrize(
    ("name", "holds_one"), [("__init__.py", True), ("models", True), ("tasks", True), ("setup.py", False)]
)
def test_a_user_dir_without_a_plugin(name: str, holds_one: bool, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    if holds_one:
        assert resolved(checkpoint_utils, str(tmp_path)) == str(tmp_path)
    else:
        with pytest.raises(ImportError, match="give the folder of the plugin's package"):
            resolved(checkpoint_utils, str(tmp_path))


def test_a_user_dir_is_a_folder_or_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fairseq = Path(checkpoint_utils.__file__).parent  # fairseq looks in this folder and next to it, too
    assert resolved(checkpoint_utils, "models") == str(fairseq / "models")
    assert Path(resolved(checkpoint_utils, "fairseq_cli")).samefile(fairseq.parent / "fairseq_cli")
    assert resolved(checkpoint_utils, "hypothesis") == str(Path(hypothesis.__file__).parent)
    with pytest.raises(ImportError, match=f"did you mean {Path(hypothesis.__file__).parent}?"):
        resolved(checkpoint_utils, str(tmp_path / "hypothesis"))
    for name in ("no_such_plugin", "argparse", "no.such.plugin", ""):
        with pytest.raises(ImportError, match="--user-dir"):
            resolved(checkpoint_utils, name)


LABELS = [  # of two examples and two classes, or of numbers
    (["yes", "never"], "label/valid, line 2: this label is not in .*/label/dict.txt"),
    (["yes", "maybe"], r"label/valid, line 2: the label 'maybe' is none of the 2 .*--num-classes \(no, "),
    (["yes no", "yes"], "label/valid, line 1: 2 labels instead of one"),
    (["yes", ""], "label/valid, line 2: 0 labels instead of one"),
    (["yes"], "label/valid: 1 lines of labels for the 2 examples of input0"),
    (["yes"] * 3, "label/valid: 3 lines of labels for the 2 examples of input0"),
    (["1", "nan"], "label/valid.label, line 2: 'nan' is no number that --regression-target can learn"),
    (["-inf", "1"], "label/valid.label, line 1: '-inf' is no number"),
    (["1", "oui"], "label/valid.label, line 2: 'oui' is no number"),
    (["1 2", "1"], "label/valid.label, line 1: 2 numbers, but --num-classes is 1: '1 2'"),
    (["1", ""], "label/valid.label, line 2: 0 numbers"),
    (["1"], "label/valid.label: 1 lines of labels for the 2 examples of input0"),
]


@pytest.mark.parametrize(("labels", "message"), LABELS)
def test_a_label_that_does_not_fit(labels: list[str], message: str, tmp_path: Path) -> None:
    regression = "valid.label" in message
    with pytest.raises(ValueError, match=message):
        labelled(tmp_path, labels, 2, 1 if regression else 2, regression)


def test_labels_that_fit(tmp_path: Path) -> None:
    dataset = labelled(tmp_path / "classes", ["yes", "no"])
    assert sorted(dataset[at]["target"].item() for at in range(2)) == [0, 1]
    assert len(labelled(tmp_path / "more", ["yes", "maybe"], 2, 3)) == 2
    dataset = labelled(tmp_path / "numbers", ["0.5", "-1e3"], 2, 1, regression=True)
    assert sorted(dataset[at]["target"] for at in range(2)) == [[-1000.0], [0.5]]
    with pytest.raises(ValueError, match="needs --num-classes"):
        labelled(tmp_path / "none", ["yes"], 1, num_classes=-1)


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
    names = "fp16 bf16 amp cpu tpu memory_efficient_fp16 memory_efficient_bf16 fp16_no_flatten_grads".split()
    found = obstacle(SimpleNamespace(**{name: name in flags.split() for name in names}), cuda)
    assert re.search(f"{expected}.*give --amp", found) if expected else found is None


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A --save-dir, and a copy that fails, which leaves what was there."""
    target, folder = tmp_path / "checkpoint_last.pt", tmp_path / "new"
    target.write_bytes(b"old")
    with pytest.raises(OSError, match=r"--save-dir .*last\.pt: cannot be written .*choose a folder"):
        checkpoint_utils.verify_checkpoint_directory(str(target))
    checkpoint_utils.verify_checkpoint_directory(str(folder))
    assert list(folder.iterdir()) == []
    with pytest.raises(OSError, match=r"checkpoint .*checkpoint_last\.pt was not written: .*--save-dir"):
        PathManager.copy(str(tmp_path / "missing.pt"), str(target), overwrite=True)
    assert target.read_bytes() == b"old"
    assert set(tmp_path.iterdir()) == {target, folder}


def test_files_are_never_loaded_by_the_broadcast(tmp_path: Path) -> None:
    torch.save({"a": 1}, tmp_path / "weights.pt")
    with (tmp_path / "weights.pt").open("rb") as file, pytest.raises(TypeError, match="never a file"):
        distributed.torch.load(file)
    assert distributed.torch.load is not torch.load
