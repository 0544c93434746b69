"""Report which fixes are needed in this environment, and which are active."""

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
    """Hold the state of one fix in this process.

    Attributes:
        fix: name of the fix.
        needed: False if the installed versions do not need it, or this fairseq has the repaired code.
        active: True if the fix is applied to the loaded modules, and will be applied to the others.
        reason: symptom without the fix, or why it is not needed or not active.
    """

    fix: str
    needed: bool
    active: bool
    reason: str


def fairseq_folders() -> list[str]:
    """Return the folders with a package ``fairseq``: first the one that is imported, then others on ``sys.path``."""
    importlib.invalidate_caches()  # fairseq may just have been installed
    spec = importlib.util.find_spec("fairseq")  # pip install --editable has an importer of its own
    places = [os.path.dirname(spec.origin)] if spec and spec.origin else []
    places += [os.path.join(place, "fairseq") for place in sys.path]
    packages = [os.path.realpath(place) for place in places if os.path.isfile(os.path.join(place, "__init__.py"))]
    return list(dict.fromkeys(packages))


def fairseq_version(folder: str) -> str:
    """Return the version of a fairseq; the main branch, whose version file says 0.12.2, is named."""
    for name in ("version.txt", "version.py"):
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                version = file.read().rpartition("=")[2].strip(" \"'\n")
        except OSError:
            continue
        is_main = os.path.isfile(os.path.join(folder, "tasks", "audio_classification.py"))
        return f"{version}, main branch" if is_main else version
    return "of unknown version"


def _sources(name: str, folder: str) -> dict[str, str | None]:
    """Return the source of each module on which a fix acts, without importing it; tools of others may be missing."""
    sources = {}
    for module in (module for module, names in FIXES.items() if name in names):
        path = os.path.join(os.path.dirname(folder), *module.split("."))
        source = runner.read_source(f"{path}.py") or runner.read_source(f"{path}/__init__.py")
        if source is not None or module.startswith("fairseq"):
            sources[module] = source
    return sources


def _status(name: str, folder: str | None) -> FixStatus:
    fix = runner.load_fix(name)
    symptom = (fix.__doc__ or name).splitlines()[0].rstrip(".")
    if not runner.is_needed(fix):
        return FixStatus(name, False, False, f"not here: {symptom}")
    sources = _sources(name, folder) if folder else {}
    verdicts = {module: runner.verdict(fix, source) for module, source in sources.items()}
    targets = {module for module, state in verdicts.items() if state is Verdict.APPLIES}
    unknown = sorted(module for module, state in verdicts.items() if state is Verdict.UNKNOWN)
    missed = sorted({module for module in targets if module in sys.modules} - runner.APPLIED.get(name, set()))
    if verdicts and not targets and not unknown:
        return FixStatus(name, False, False, "does not apply: this fairseq has the repaired code")
    obstacle = ""
    if unknown:
        obstacle = f"leaves unknown code as it is: {', '.join(unknown)}"
    elif FairseqFinder not in sys.meta_path:
        obstacle = "the start-up hook is not installed (python -S, or pip install --target)"
    elif name in runner.disabled():
        obstacle = f"switched off by {runner.DISABLE}"
    elif missed:
        obstacle = f"loaded before the hook: {', '.join(missed)}"
    return FixStatus(name, True, not obstacle, obstacle or symptom)


def status() -> list[FixStatus]:
    """Return the state of every fix, in the order of the table in :mod:`fairseq_compat.hook`."""
    folder = next(iter(fairseq_folders()), None)
    return [_status(name, folder) for name in runner.fix_names()]


def heading() -> str:
    """Return the version and the folder of the imported fairseq."""
    folders = fairseq_folders()
    if not folders:
        return "fairseq is not installed here: python -m fairseq_compat install"
    lines = [f"fairseq {fairseq_version(folders[0])} in {folders[0]}"]
    lines += [f"hidden by it: fairseq {fairseq_version(other)} in {other}" for other in folders[1:]]
    return "\n".join(lines)


def table(rows: list[FixStatus]) -> str:
    """Return the rows as text with aligned columns."""
    cells = [("fix", "needed", "active", "reason")]
    cells += [(row.fix, "yes" if row.needed else "no", "yes" if row.active else "no", row.reason) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return "\n".join("  ".join([*(text.ljust(width) for text, width in zip(row, widths)), row[3]]) for row in cells)
