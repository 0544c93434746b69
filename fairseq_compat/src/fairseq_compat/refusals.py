"""Print the errors of fixes as one line in fairseq's commands, without a traceback."""

from __future__ import annotations

import os
import pickle
import sys
from types import TracebackType

#: errors that fixes raise and a user can correct; other errors are faults and keep their traceback
REFUSALS = (ValueError, ImportError, OSError, pickle.UnpicklingError)


def is_refusal(error: BaseException) -> bool:
    """Return True if a fix raised the error itself: an error of a function that the fix calls is a fault."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or not isinstance(error, REFUSALS):
        return False
    return traceback.tb_frame.f_globals.get("__name__", "").startswith("fairseq_compat.")


def show_as_lines() -> None:
    """Let the interpreter print a refusal in a command of fairseq as one line; other errors are shown as before."""
    if getattr(sys.excepthook, "__module__", None) == __name__:
        return
    others = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        folder, program = os.path.split(sys.argv[0])
        if is_refusal(error) and (program.startswith("fairseq-") or os.path.basename(folder) == "fairseq_cli"):
            print(f"{program}: error: {error}", file=sys.stderr)
        else:
            others(kind, error, traceback)

    sys.excepthook = show
