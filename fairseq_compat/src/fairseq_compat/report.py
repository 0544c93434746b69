"""What is needed in this environment, and what is active."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from fairseq_compat import runner
from fairseq_compat.hook import FIXES, FairseqFinder


@dataclass(frozen=True)
class FixStatus:
    """State of one fix in this process.

    ``active`` means: applied to the modules that are loaded already, and ready for those that are not.
    """

    fix: str
    needed: bool
    active: bool
    reason: str


def _state(name: str) -> tuple[bool, str]:
    if FairseqFinder not in sys.meta_path:
        return False, "the start-up hook is not installed (python -S, or pip install --target)"
    if name in runner.disabled():
        return False, f"switched off by {runner.DISABLE}"
    targets = {module for module, names in FIXES.items() if name in names}
    missed = {module for module in targets if module in sys.modules} - runner.APPLIED.get(name, set())
    if missed:
        return False, f"loaded before the hook: {', '.join(sorted(missed))}"
    return True, ""


def status() -> list[FixStatus]:
    """The state of every fix, in the order of the table in :mod:`fairseq_compat.hook`."""
    rows = []
    for name in runner.fix_names():
        fix = runner.load_fix(name)
        needed = fix.needed()
        active, obstacle = _state(name) if needed else (False, "")
        rows.append(FixStatus(name, needed, active, obstacle or (fix.REASON if needed else f"not here: {fix.REASON}")))
    return rows


def table(rows: list[FixStatus]) -> str:
    """The rows as text with aligned columns."""
    cells = [("fix", "needed", "active", "reason")]
    cells += [(row.fix, "yes" if row.needed else "no", "yes" if row.active else "no", row.reason) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return "\n".join("  ".join([*(text.ljust(width) for text, width in zip(row, widths)), row[3]]) for row in cells)
