"""The start-up hook by itself: no torch, no fairseq needed (small stand-ins of fairseq's modules are written here)."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

hook = pytest.importorskip("fairseq_compat.hook")

CONFIGS = """
    from dataclasses import dataclass

    @dataclass
    class Part:
        size: int = 1

    @dataclass
    class Whole:
        part: Part = Part()
"""


def python(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, **options)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of sys.path with a package ``fairseq`` whose configs break on Python >= 3.11."""
    package = tmp_path / "fairseq" / "dataclass"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    (package / "configs.py").write_text(textwrap.dedent(CONFIGS))
    for name in [name for name in sys.modules if name.split(".")[0] == "fairseq"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    yield package
    for name in [name for name in sys.modules if name.split(".")[0] == "fairseq"]:
        monkeypatch.delitem(sys.modules, name)


def test_every_interpreter_has_the_hook_and_nothing_more() -> None:
    code = "import sys; print(sorted(name for name in sys.modules if name.startswith('fairseq')))"
    assert python("-c", code).stdout.strip() == "['fairseq_compat', 'fairseq_compat.hook']"


def test_hook_imports_nothing_but_sys() -> None:
    """Its whole cost is reading two small files; they may bring no other module."""
    folder = str(Path(hook.__file__).parent.parent)
    code = f"import sys; sys.path.insert(0, {folder!r}); before = set(sys.modules); import fairseq_compat.hook\n"
    output = python("-I", "-S", "-c", code + "print(sorted(set(sys.modules) - before))").stdout
    assert output.strip() == "['fairseq_compat', 'fairseq_compat.hook']"


def test_stand_in_is_fixed_and_leaves_no_trace(stand_in: Path) -> None:
    original = dataclasses.dataclass
    configs = importlib.import_module("fairseq.dataclass.configs")
    assert configs.Whole().part.size == 1
    assert dataclasses.dataclass is original
    assert not isinstance(configs.__loader__, hook.FixingLoader)
    assert not isinstance(configs.__spec__.loader, hook.FixingLoader)


@pytest.mark.parametrize(
    ("switch", "error"), [("hashable_dataclasses, numpy_aliases", "mutable default"), ("no_such_fix", "no_such_fix")]
)
def test_fix_can_be_switched_off_by_its_name(switch: str, error: str, stand_in: Path, monkeypatch) -> None:
    if sys.version_info < (3, 11) and error == "mutable default":
        pytest.skip("dataclass defaults are refused from Python 3.11 on")
    monkeypatch.setenv("FAIRSEQ_COMPAT_DISABLE", switch)
    with pytest.raises(ValueError, match=error):
        importlib.import_module("fairseq.dataclass.configs")


def test_error_of_the_module_passes_and_everything_is_restored(stand_in: Path) -> None:
    (stand_in / "configs.py").write_text("raise LookupError('its own')")
    original = dataclasses.dataclass
    with pytest.raises(LookupError, match="its own"):
        importlib.import_module("fairseq.dataclass.configs")
    assert dataclasses.dataclass is original


def test_other_dataclasses_keep_their_rules(stand_in: Path) -> None:
    """Only the classes of the named module become hashable, not those that it imports meanwhile."""
    other = "from dataclasses import dataclass\n\n@dataclass\nclass Other:\n    size: int = 1\n"
    (stand_in / "other.py").write_text(other)
    text = (stand_in / "configs.py").read_text()
    (stand_in / "configs.py").write_text("from fairseq.dataclass.other import Other\n" + text)
    configs = importlib.import_module("fairseq.dataclass.configs")
    with pytest.raises(TypeError, match="unhashable"):
        hash(configs.Other())


def test_finder_returns_to_the_front(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was put in front of it later (pytest's assertion rewriter, for one) does not hide fairseq from it."""

    class Greedy:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return next(f for f in rest if f.find_spec(name, path, target)).find_spec(name, path, target)

    rest = [finder for finder in sys.meta_path if finder is not hook.FairseqFinder and hasattr(finder, "find_spec")]
    monkeypatch.setattr(sys, "meta_path", [Greedy, hook.FairseqFinder, *rest])
    assert importlib.util.find_spec("json") is not None
    hook.FairseqFinder.find_spec("fairseq")
    assert sys.meta_path[0] is hook.FairseqFinder
    assert importlib.import_module("fairseq.dataclass.configs").Whole().part.size == 1


def test_only_named_modules_are_touched_and_installing_twice_changes_nothing() -> None:
    assert hook.FairseqFinder.find_spec("json") is None
    assert hook.FairseqFinder.find_spec("fairseq.tokenizer") is None
    before = list(sys.meta_path)
    hook.install()
    assert sys.meta_path == before
