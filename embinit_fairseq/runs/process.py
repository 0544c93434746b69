"""Programs with a log: each in a process group of its own, and its log locked as long as anybody writes to it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

_DIED_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def lock(log: IO[bytes]) -> bool:
    """Lock it for this process and those it starts; False: another one has it. A file system without locks: True."""
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def start(command: Sequence[str], log: IO[bytes], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a command that prints to `log` and reads nothing; a signal of the terminal does not reach it.

    Linux: it does not outlive this process, even if that is killed.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
        preexec_fn=_end_with_parent if sys.platform == "linux" else None,
    )


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DIED_WITH_PARENT, int(signal.SIGTERM))


def send(process: subprocess.Popen[bytes], number: int) -> None:
    """A signal to a process that `start` has made, and to all that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
