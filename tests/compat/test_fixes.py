"""Each fix cures its symptom; and without the fix the symptom is there, else the fix is no longer needed."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from fairseq_commands import module, run

runner = pytest.importorskip("fairseq_compat.runner")
pytest.importorskip("torch")

SYMPTOMS = Path(__file__).with_name("symptoms.py")
FIXES = runner.fix_names()
# nothing else can be looked at without this one
FIRST = "hashable_dataclasses"


def look_for(names: list[str], without: list[str]) -> dict[str, str | None]:
    """The symptoms that show with the fixes ``without`` switched off: name of the fix to error or None."""
    command = [sys.executable, SYMPTOMS, *names]
    return json.loads(run(command, FAIRSEQ_COMPAT_DISABLE=",".join(without)).stdout)


# what must be as it is without the fixes, in the order in which one process can look at all of it
UNTOUCHED = ["genuine_warnings", "registry_with_schema_of_its_own"]


@pytest.fixture(scope="module")
def with_fixes() -> dict[str, str | None]:
    return look_for([*FIXES, *UNTOUCHED], without=[])


@pytest.fixture(scope="module")
def without_fixes() -> dict[str, str | None]:
    others = [name for name in FIXES if name != FIRST]
    return {**look_for(others, without=others), **look_for([FIRST], without=[FIRST])}


@pytest.mark.parametrize("name", [*FIXES, *UNTOUCHED])
def test_symptom_is_cured(name: str, with_fixes: dict[str, str | None]) -> None:
    assert with_fixes[name] is None


@pytest.mark.parametrize("name", FIXES)
def test_fix_is_still_needed(name: str, without_fixes: dict[str, str | None]) -> None:
    fix = runner.load_fix(name)
    if not fix.needed():
        assert without_fixes[name] is None, f"{name} says that it is not needed here, but its symptom shows"
        pytest.skip(f"not needed with the versions installed here ({fix.REASON})")
    assert without_fixes[name] is not None, f"{name} can go for these versions: without it the symptom does not show"


@pytest.mark.parametrize("message", runner.load_fix("quiet_hydra").EXPECTED)
def test_every_silenced_warning_still_comes_without_the_fix(message: str, without_fixes: dict[str, str | None]) -> None:
    shown = without_fixes["quiet_hydra"]
    assert re.search(message, shown), f"{message!r} can go from quiet_hydra's list: hydra's warnings are now\n{shown}"


@pytest.mark.parametrize("name", FIXES)
def test_fix_says_what_it_is_for(name: str) -> None:
    text = runner.load_fix(name).__doc__
    for heading in ("Symptom:", "Versions:", "Where:", "Remedy:", "Upstream:", "Can go:"):
        assert f"\n{heading}" in text


def test_status_command_tells_what_is_switched_off() -> None:
    result = run([*module("fairseq_compat"), "--json"], check=False, FAIRSEQ_COMPAT_DISABLE="encoder_copies")
    rows = {row["fix"]: row for row in json.loads(result.stdout)}
    assert result.returncode == 1
    assert not rows["encoder_copies"]["active"]
    assert "FAIRSEQ_COMPAT_DISABLE" in rows["encoder_copies"]["reason"]
    assert list(rows) == FIXES
    assert [name for name, row in rows.items() if row["needed"] and not row["active"]] == ["encoder_copies"]


def test_files_are_never_loaded_by_the_broadcast(tmp_path: Path) -> None:
    import torch
    from fairseq.distributed import utils

    path = tmp_path / "weights.pt"
    torch.save({"a": 1}, path)
    with path.open("rb") as file, pytest.raises(TypeError, match="never a file"):
        utils.torch.load(file)
    assert utils.torch.load is not torch.load


def test_a_save_dir_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    from fairseq.checkpoint_utils import verify_checkpoint_directory

    occupied = tmp_path / "file"
    occupied.touch()
    with pytest.raises(OSError, match=r"--save-dir .*file: cannot be written .*choose a folder"):
        verify_checkpoint_directory(str(occupied))
    verify_checkpoint_directory(str(tmp_path / "new"))
    assert list((tmp_path / "new").iterdir()) == []


def test_a_copy_that_fails_names_the_checkpoint_and_the_remedy(tmp_path: Path) -> None:
    from fairseq.file_io import PathManager

    target = tmp_path / "checkpoint_last.pt"
    target.write_bytes(b"old")
    with pytest.raises(OSError, match=r"checkpoint .*checkpoint_last\.pt was not written: .*--save-dir"):
        PathManager.copy(str(tmp_path / "missing.pt"), str(target), overwrite=True)
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_last.pt"]
