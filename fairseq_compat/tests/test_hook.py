"""The start-up hook and what it says, without torch: small stand-ins of fairseq's modules are written here."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

hook = pytest.importorskip("fairseq_compat.hook")
from fairseq_compat.patches import shadow, wrap  # noqa: E402

from fairseq_compat import __main__ as command  # noqa: E402
from fairseq_compat import report, runner, status  # noqa: E402

CONFIGS = """
from dataclasses import dataclass

@dataclass
class FairseqDataclass:
    size: int = 1

@dataclass
class Whole:
    part: FairseqDataclass = FairseqDataclass()
"""
OF_FAIRSEQ = "fairseq.dataclass.configs"
UNCURED = sys.version_info >= (3, 11)  # which refuses what CONFIGS does


def write(folder: Path, **modules: str) -> Path:
    """A package ``fairseq`` with these modules (dots are underscores)."""
    for name, text in modules.items():
        path = folder.joinpath("fairseq", *name.split("_")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for package in {path.parent, folder / "fairseq"}:
            (package / "__init__.py").touch()
        path.write_text(text)
    return folder / "fairseq"


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder in front of sys.path with a package ``fairseq`` whose configs break on Python >= 3.11."""
    loaded = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "fairseq"}
    monkeypatch.setattr(runner, "APPLIED", {})
    monkeypatch.delenv(runner.PRINTED, raising=False)
    monkeypatch.setitem(os.environ, runner.PRINTED, "")  # what the test adds is taken away again
    monkeypatch.syspath_prepend(tmp_path)
    # a plugin that other tests of this process imported may wait for modules of fairseq, too
    others = [one for one in sys.meta_path if (getattr(one, "__module__", None) or "").startswith("embinit_fairseq")]
    monkeypatch.setattr(sys, "meta_path", [one for one in sys.meta_path if one not in others])
    yield write(tmp_path, dataclass_configs=CONFIGS)
    for name in [name for name in sys.modules if name.partition(".")[0] == "fairseq"]:
        del sys.modules[name]
    sys.modules.update(loaded)


def python(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env={**os.environ, **environment}
    )
    return done.stdout + done.stderr


def test_every_interpreter_has_the_hook_and_it_imports_nothing_but_sys() -> None:
    code = "print(sorted(name for name in sys.modules if name.startswith('fairseq')))"
    assert python("-c", f"import sys; {code}").strip() == "['fairseq_compat', 'fairseq_compat.hook']"
    code = f"sys.path.insert(0, {str(Path(hook.__file__).parents[1])!r}); before = {{*sys.modules}}"
    code = f"import sys; {code}; import fairseq_compat.hook; print(sorted({{*sys.modules}} - before))"
    assert python("-I", "-S", "-c", code).strip() == "['fairseq_compat', 'fairseq_compat.hook']"


def test_stand_in_is_fixed_and_leaves_no_trace(stand_in: Path) -> None:
    """Only the classes of the named module become hashable, not those that it imports meanwhile."""
    original = dataclasses.dataclass
    write(stand_in.parent, dataclass_other=CONFIGS.partition("@dataclass\nclass W")[0])
    (stand_in / "dataclass" / "configs.py").write_text("import fairseq.dataclass.other\n" + CONFIGS)
    configs = importlib.import_module(OF_FAIRSEQ)
    assert configs.Whole().part.size == 1
    assert dataclasses.dataclass is original
    assert not isinstance(configs.__loader__, hook.FixingLoader)
    assert not isinstance(configs.__spec__.loader, hook.FixingLoader)
    with pytest.raises(TypeError, match="unhashable"):
        hash(sys.modules["fairseq.dataclass.other"].FairseqDataclass())


@pytest.mark.parametrize(
    ("switch", "error"),
    [("hashable_dataclasses, numpy_aliases", "mutable default"), ("all", "mutable"), ("none", "none")],
)
@pytest.mark.skipif(not UNCURED, reason="dataclass defaults are refused from Python 3.11 on")
def test_fix_can_be_switched_off_by_its_name(switch: str, error: str, stand_in: Path, monkeypatch) -> None:
    monkeypatch.setenv(runner.DISABLE, switch)
    with pytest.raises(ValueError, match=error):
        importlib.import_module(OF_FAIRSEQ)


@pytest.mark.skipif(not UNCURED, reason="dataclass defaults are refused from Python 3.11 on")
def test_fix_that_these_versions_do_not_need(stand_in: Path, monkeypatch) -> None:
    monkeypatch.setattr(runner.load_fix("hashable_dataclasses"), "needed", lambda: False)
    with pytest.raises(ValueError, match="mutable default"):
        importlib.import_module(OF_FAIRSEQ)
    (row,) = [row for row in status() if row.fix == "hashable_dataclasses"]
    assert (row.needed, row.active, row.reason[:8]) == (False, False, "not here")


class Owner:
    """Has a function of every kind."""

    def method(self, number: int = 1) -> tuple:
        return self, number

    @classmethod
    def of_class(cls, number: int = 1) -> tuple:
        return cls, number

    @staticmethod
    def static(number: int = 1) -> int:
        return number


def test_a_function_of_any_kind_is_wrapped_and_keeps_its_signature() -> None:
    for name in ("method", "of_class", "static"):
        wrap(Owner, name)(lambda original, *args, **options: ("wrapped", original(*args, **options)))
    one = Owner()
    assert one.method(2) == ("wrapped", (one, 2))
    assert one.of_class(number=3) == Owner.of_class(3) == ("wrapped", (Owner, 3))
    assert one.static() == Owner.static() == ("wrapped", 1)
    assert inspect.getfullargspec(one.method).args == ["self", "number"]  # as fairseq looks for from_checkpoint

    @wrap(one)
    def method(original, number):
        return original(number + 1)

    assert one.method(1) == ("wrapped", (one, 2))
    assert Owner().method(1)[1][1] == 1


def test_one_module_alone_sees_another_object() -> None:
    module = ModuleType("one")
    module.os = os
    shadow(module, "os.path.join", "other")
    shadow(module, "os.path.split", "too")
    shadow(module, "open", len)
    assert (module.os.path.join, module.os.path.split, module.open) == ("other", "too", len)
    assert (module.os.path.exists, module.os.sep) == (os.path.exists, os.sep)
    assert os.path.join("a", "b") == "a/b"


def test_what_is_compiled_comes_before_what_stands_for_it(stand_in: Path) -> None:
    write(stand_in.parent, libbleu="compiled = True")
    assert importlib.import_module("fairseq.libbleu").compiled
    assert importlib.util.find_spec("fairseq.libnat").origin == str(Path(hook.__file__).with_name("pure") / "libnat.py")


def test_error_of_the_module_passes_and_everything_is_restored(stand_in: Path) -> None:
    (stand_in / "dataclass" / "configs.py").write_text("class FairseqDataclass: ...\nraise LookupError('its own')")
    original = dataclasses.dataclass
    with pytest.raises(LookupError, match="its own"):
        importlib.import_module(OF_FAIRSEQ)
    assert dataclasses.dataclass is original


def test_finder_returns_to_the_front(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was put in front of it later (pytest's assertion rewriter, for one) does not hide fairseq from it."""

    class Greedy:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return next(spec for finder in rest if (spec := finder.find_spec(name, path, target)))

    rest = [finder for finder in sys.meta_path if finder is not hook.FairseqFinder and hasattr(finder, "find_spec")]
    monkeypatch.setattr(sys, "meta_path", [Greedy, hook.FairseqFinder, *rest])
    assert importlib.util.find_spec("json") is not None
    hook.FairseqFinder.find_spec("fairseq")
    assert sys.meta_path[0] is hook.FairseqFinder
    assert importlib.import_module(OF_FAIRSEQ).Whole().part.size == 1
    assert hook.FairseqFinder.find_spec("json") is hook.FairseqFinder.find_spec("fairseq.tokenizer") is None
    before = list(sys.meta_path)
    hook.install()
    assert sys.meta_path == before


@pytest.mark.parametrize(
    ("source", "fixed", "expected"),
    [
        ("x = 1\nbroken()", "whole", "APPLIES"),
        ("broken() or whole()", "whole", "APPLIES"),
        ("x = 1\nwhole()", r"^whole", "FIXED"),
        ("else", "whole", "UNKNOWN"),
        ("whole()", None, "UNKNOWN"),
        (None, "", "UNKNOWN"),
    ],
)
def test_a_fix_looks_at_the_source(source: str | None, fixed: str | None, expected: str) -> None:
    fix = SimpleNamespace(BROKEN=r"^broken\(", **({} if fixed is None else {"FIXED": fixed}))
    assert runner.verdict(fix, source) is runner.Verdict[expected]
    assert runner.read_source(sys.executable) is runner.read_source("none.py") is None


@pytest.mark.parametrize("name", runner.fix_names())
def test_a_fix_changes_each_of_its_modules_in_one_way(name: str) -> None:
    fix = runner.load_fix(name)
    modules = {module for module, names in hook.FIXES.items() if name in names}
    patches = vars(fix).get("PATCHES", {})
    assert patches.keys() <= modules
    assert hasattr(fix, "patch") or hasattr(fix, "executing") or patches.keys() == modules
    assert patches.keys() != modules or not hasattr(fix, "patch")


def test_a_fairseq_that_a_fix_does_not_know(stand_in: Path, capsys: pytest.CaptureFixture) -> None:
    """It is left alone, and one line says so, in this process and all that it starts."""
    write(stand_in.parent, dataclass_configs="known = False", trainer="known = False")
    assert importlib.import_module(OF_FAIRSEQ).known is False
    importlib.import_module("fairseq.trainer")
    lines = capsys.readouterr().err.splitlines()
    fixes = *hook.FIXES[OF_FAIRSEQ], *hook.FIXES["fairseq.trainer"]
    needed = [name for name in fixes if runner.is_needed(runner.load_fix(name))]
    assert [name for line, name in zip(lines, needed) if f"fix {name}, " in line and str(stand_in) in line] == needed
    assert len(lines) == len(needed)
    assert runner.APPLIED == {}
    code, folders = f"import {OF_FAIRSEQ}, fairseq.trainer", {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert python("-c", code, **folders) == ""
    assert len(python("-c", code, **folders, **{runner.PRINTED: "x,cpu_autocast"}).splitlines()) == len(needed) - 1


def test_a_fairseq_that_an_importer_of_its_own_finds(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``pip install --editable`` does with a checkout, which is on no path then."""
    spec = importlib.util.spec_from_file_location("fairseq", stand_in / "__init__.py")
    editable = SimpleNamespace(find_spec=lambda name, path=None, target=None: spec if name == "fairseq" else None)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(stand_in.parent)])
    monkeypatch.setattr(sys, "meta_path", [hook.FairseqFinder, editable, *sys.meta_path])
    assert report.fairseq_folders()[0] == str(stand_in)


def test_status_of_each_fix(stand_in: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """What is mended or unknown, which of two fairseqs it is about, and the exit code."""
    write(stand_in.parent, scoring_bleu="class Scorer(): ...", models_distributed_fairseq_model="")
    second = write(stand_in.parent / "second", dataclass_configs="")
    (second / "version.txt").write_text("0.12.3\n")
    (stand_in / "version.py").write_text('__version__ = "0.13"\n')
    monkeypatch.syspath_prepend(second.parent)
    monkeypatch.syspath_prepend(stand_in.parent)
    monkeypatch.setenv(runner.DISABLE, "hashable_dataclasses")
    monkeypatch.setattr(sys, "argv", ["fairseq_compat"])
    assert command.main() == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == [f"fairseq 0.13 in {stand_in}", f"hidden by it: fairseq 0.12.3 in {second}"]
    rows = {row.fix: row for row in status()}
    assert list(rows) == runner.fix_names() == [line.split()[0] for line in shown[-len(rows) :]]
    assert (rows["uncompiled_bleu"].needed, rows["uncompiled_bleu"].active) == (False, False)
    assert "does not apply" in rows["uncompiled_bleu"].reason
    assert (rows["empty_hypotheses"].needed, rows["empty_hypotheses"].active) == (True, False)
    assert "fairseq.scoring.bleu" in rows["empty_hypotheses"].reason
    assert rows["hashable_dataclasses"].needed is UNCURED
    assert not UNCURED or runner.DISABLE in rows["hashable_dataclasses"].reason
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if finder is not hook.FairseqFinder])
    (row,) = [row for row in status() if row.fix == "hashable_dataclasses"]
    assert not UNCURED or "python -S" in row.reason
