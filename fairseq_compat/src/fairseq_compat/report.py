"""What is needed in this environment, and what is active."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass

from fairseq_compat import runner
from fairseq_compat.hook import FIXES, FairseqFinder
from fairseq_compat.runner import Verdict


@dataclass(frozen=True)
class FixStatus:
    """State of one fix in this process.

    ``active`` means: applied to the modules that are loaded already, and ready for those that are not. ``needed`` is
    False where the versions installed do not ask for it, and where this fairseq has nothing to mend.
    """

    fix: str
    needed: bool
    active: bool
    reason: str


def fairseq_folders() -> list[str]:
    """The folders that hold a package ``fairseq``: the one that is imported, then those on ``sys.path``.

    A checkout that was installed by ``pip install --editable`` need not be there: an importer of its own finds it.
    """
    importlib.invalidate_caches()  # fairseq may just have been installed
    spec = importlib.util.find_spec("fairseq")
    places = [os.path.dirname(spec.origin)] if spec and spec.origin else []
    places += [os.path.join(place, "fairseq") for place in sys.path]
    found = [os.path.realpath(place) for place in places if os.path.isfile(os.path.join(place, "__init__.py"))]
    return list(dict.fromkeys(found))


def fairseq_version(folder: str) -> str:
    """What the file of its version says; of the main branch, whose file says 0.12.2, that it is that."""
    for name in ("version.txt", "version.py"):
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                version = file.read().rpartition("=")[2].strip(" \"'\n")
                later = os.path.isfile(os.path.join(folder, "tasks", "audio_classification.py"))
                return f"{version}, main branch" if later else version
        except OSError:
            continue
    return "of unknown version"


def _sources(name: str, folder: str) -> dict[str, str | None]:
    """The source of each module that a fix acts on, without importing any; programs beside fairseq may be missing."""
    modules = [module for module, names in FIXES.items() if name in names]
    paths = {module: os.path.join(os.path.dirname(folder), *module.split(".")) for module in modules}
    found = {
        module: runner.read_source(f"{path}.py") or runner.read_source(f"{path}/__init__.py")
        for module, path in paths.items()
    }
    return {module: text for module, text in found.items() if text is not None or module.startswith("fairseq")}


def _state(name: str, targets: set[str]) -> tuple[bool, str]:
    if FairseqFinder not in sys.meta_path:
        return False, "the start-up hook is not installed (python -S, or pip install --target)"
    if name in runner.disabled():
        return False, f"switched off by {runner.DISABLE}"
    missed = {module for module in targets if module in sys.modules} - runner.APPLIED.get(name, set())
    if missed:
        return False, f"loaded before the hook: {', '.join(sorted(missed))}"
    return True, ""


def _status(name: str, folder: str | None) -> FixStatus:
    fix = runner.load_fix(name)
    if not fix.needed():
        return FixStatus(name, False, False, f"not here: {fix.REASON}")
    found = {module: runner.verdict(fix, text) for module, text in (_sources(name, folder) if folder else {}).items()}
    targets = {module for module, one in found.items() if one is Verdict.APPLIES}
    unknown = sorted(module for module, one in found.items() if one is Verdict.UNKNOWN)
    if found and not targets and not unknown:
        return FixStatus(name, False, False, "does not apply: this fairseq has nothing to mend there")
    if unknown:
        return FixStatus(name, True, False, f"leaves alone what it does not know: {', '.join(unknown)}")
    active, obstacle = _state(name, targets)
    return FixStatus(name, True, active, obstacle or fix.REASON)


def status() -> list[FixStatus]:
    """The state of every fix, in the order of the table in :mod:`fairseq_compat.hook`."""
    folder = next(iter(fairseq_folders()), None)
    return [_status(name, folder) for name in runner.fix_names()]


def heading() -> str:
    """Which fairseq this is about."""
    folders = fairseq_folders()
    if not folders:
        return "fairseq is not installed here: python -m fairseq_compat install"
    lines = [f"fairseq {fairseq_version(folders[0])} in {folders[0]}"]
    lines += [f"hidden by it: fairseq {fairseq_version(other)} in {other}" for other in folders[1:]]
    return "\n".join(lines)


def table(rows: list[FixStatus]) -> str:
    """The rows as text with aligned columns."""
    cells = [("fix", "needed", "active", "reason")]
    cells += [(row.fix, "yes" if row.needed else "no", "yes" if row.active else "no", row.reason) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return "\n".join("  ".join([*(text.ljust(width) for text, width in zip(row, widths)), row[3]]) for row in cells)
