"""Input that fairseq cannot use: the error names the file, line or flag, and the remedy."""

from __future__ import annotations

import os
import pickle
import re
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import hypothesis
import pytest

torch = pytest.importorskip("torch")
checkpoint_utils = pytest.importorskip("fairseq.checkpoint_utils")

from data_symptoms import labelled  # noqa: E402
from fairseq import models, tasks  # noqa: E402
from fairseq.distributed import utils as distributed  # noqa: E402
from fairseq.models.lstm import LSTMModel  # noqa: E402
from fairseq.utils import import_user_module  # noqa: E402
from fairseq_compat.fixes.empty_user_dirs import resolved  # noqa: E402
from fairseq_compat.fixes.half_precision import obstacle  # noqa: E402
from fairseq_compat.refusals import show_as_lines  # noqa: E402


def cut(content: object, share: float, zipped: bool = True):
    def write(path: Path) -> None:
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
        os.truncate(path, int(path.stat().st_size * share))

    return write


MODEL = {"model": {"weight": torch.ones(1000)}}
BROKEN = {
    "empty": (Path.touch, "the file is empty"),
    "half a file": (cut(MODEL, 0.5), "cut short"),
    "half an old file": (cut(MODEL, 0.5, zipped=False), "cut short"),
    "text": (lambda path: path.write_text("hello, world\n"), "another kind of file"),
    "a list": (cut([1, 2], 1), "no 'model', but list"),
    "a state dict": (cut({"encoder.weight": torch.ones(2)}, 1), "no 'model', but 'encoder.weight'"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_checkpoint_that_cannot_be_loaded(kind: str, tmp_path: Path) -> None:
    write, reason = BROKEN[kind]
    path = tmp_path / "last.pt"
    write(path)
    with pytest.raises(pickle.UnpicklingError, match=f"checkpoint {path} cannot be loaded: .*{reason}.*Give another"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


def test_an_error_of_a_registered_model_or_task_stays_as_it_is() -> None:
    with pytest.raises(ValueError, match=r"--arch mine .*--user-dir"):
        models.build_model(Namespace(arch="mine"), None)
    with pytest.raises(ValueError, match=r"--task mine .*--user-dir"):
        tasks.setup_task(Namespace(task="mine"))
    with (
        pytest.raises(KeyError, match="its own"),
        mock.patch.object(LSTMModel, "build_model", side_effect=KeyError("its own")),
    ):
        models.build_model(Namespace(arch="lstm"), None)
    with pytest.raises(AssertionError, match="Could not infer task"):
        tasks.setup_task(Namespace())


def test_a_user_dir_is_a_plugin(tmp_path: Path) -> None:
    folder = tmp_path / "no_plugin_here"
    folder.mkdir()
    (folder / "setup.py").touch()
    with pytest.raises(ImportError, match=f"--user-dir {folder}: .*give the folder of the plugin's package"):
        import_user_module(Namespace(user_dir=str(folder)))
    (folder / "tasks").mkdir()
    import_user_module(Namespace(user_dir=str(folder)))
    import_user_module(Namespace(user_dir=None))


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
    (["yes", "never"], "label/valid, line 2: '<unk>' is not one of .*label/dict.txt"),
    (["yes", "maybe"], r"label/valid, line 2: 'maybe' is not one of the 2 .*--num-classes \(no, yes, "),
    (["yes no", "yes"], "label/valid, line 1: 'yes no' is not"),
    (["yes", ""], "label/valid, line 2: '' is not"),
    (["1", "nan"], "label/valid.label, line 2: found 'nan', expected .*--num-classes"),
    (["-inf", "1"], "label/valid.label, line 1: found '-inf'"),
    (["1", "oui"], "label/valid.label, line 2: found 'oui'"),
    (["1 2", "1"], "label/valid.label, line 1: found '1 2'"),
]


@pytest.mark.parametrize(("labels", "message"), LABELS)
def test_a_label_that_does_not_fit(labels: list[str], message: str, tmp_path: Path) -> None:
    regression = "valid.label" in message
    with pytest.raises(ValueError, match=message):
        labelled(tmp_path, labels, 1 if regression else 2, regression)


def test_labels_that_fit(tmp_path: Path) -> None:
    dataset = labelled(tmp_path / "classes", ["yes", "no"])
    assert sorted(dataset[at]["target"].item() for at in range(2)) == [0, 1]
    assert len(labelled(tmp_path / "more", ["yes", "maybe"], 3)) == 2
    dataset = labelled(tmp_path / "numbers", ["0.5", "-1e3"], 1, regression=True)
    assert sorted(dataset[at]["target"] for at in range(2)) == [[-1000.0], [0.5]]


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
        ("bf16 cpu memory_efficient_bf16", False, None),
        ("cpu", False, None),
    ],
)
def test_half_precision_by_device(flags: str, cuda: bool, expected: str | None) -> None:
    names = "fp16 bf16 cpu memory_efficient_fp16 memory_efficient_bf16 fp16_no_flatten_grads".split()
    problem = obstacle(SimpleNamespace(**{name: name in flags.split() for name in names}), cuda)
    assert re.search(f"{expected}.*give --amp", problem) if expected else problem is None


def test_files_are_never_loaded_by_the_broadcast(tmp_path: Path) -> None:
    torch.save({"a": 1}, tmp_path / "weights.pt")
    with (tmp_path / "weights.pt").open("rb") as file, pytest.raises(TypeError, match="never a file"):
        distributed.torch.load(file)
    assert distributed.torch.load is not torch.load


# ---- how a refusal is shown


def raised(function) -> BaseException:
    with pytest.raises(BaseException) as caught:
        function()
    return caught.value


@pytest.mark.parametrize("program", ["/bin/fairseq-preprocess", "/x/fairseq_cli/preprocess.py", "/bin/another"])
def test_a_refusal_of_a_fix_is_one_line_in_fairseqs_commands(program: str, monkeypatch, capsys) -> None:
    """Errors of what a fix calls, faults of a fix and other programs keep their traceback."""
    monkeypatch.setattr(sys, "excepthook", lambda *_: print("others", file=sys.stderr))
    for _ in range(2):  # calling it again is harmless
        show_as_lines()
    monkeypatch.setattr(sys, "argv", [program])
    refusal = raised(lambda: resolved(models, "/none/such"))
    for error in (refusal, raised(lambda: resolved(models, 3)), raised(lambda: int("x")), ValueError("never raised")):
        sys.excepthook(type(error), error, error.__traceback__)
        is_line = error is refusal and "fairseq" in program
        expected = f"{program.split('/')[-1]}: error: {refusal}\n" if is_line else "others\n"
        assert capsys.readouterr().err == expected
