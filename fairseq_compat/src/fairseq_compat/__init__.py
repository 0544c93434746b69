"""Make unmodified fairseq 0.12 run on current Python, torch, numpy and hydra.

Nothing needs to be imported: ``fairseq_compat_hook.pth`` runs :mod:`fairseq_compat.hook` at interpreter start.
This file has no imports, because every interpreter of the environment reads it.
"""

__version__ = "0.2.0"

TYPE_CHECKING = False  # importing typing would cost every interpreter time
if TYPE_CHECKING:
    from fairseq_compat.report import FixStatus


def status() -> "list[FixStatus]":
    """Return a :class:`fairseq_compat.report.FixStatus` (fix, needed, active, reason) for each fix."""
    from fairseq_compat.report import status as report_status

    return report_status()
