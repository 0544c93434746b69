"""Programs with a log: each in a process group of its own, and its log locked as long as anybody writes to it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO

#: seconds of silence that nobody doubts; less patience is needed with what takes hours, and its log shall not be full
SILENCE, LONG, LONG_SILENCE = 9.0, 600.0, 60.0
_DIED_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Pulse:
    """When to say that work goes on: after ten seconds without a word; after ten minutes of work, once a minute."""

    def __init__(self) -> None:
        self.begin = self.said = time.monotonic()

    def due(self) -> bool:
        """Whether something should be said now."""
        now = time.monotonic()
        return now - self.said > (SILENCE if now - self.begin < LONG else LONG_SILENCE)

    def beat(self) -> None:
        """Something has been said."""
        self.said = time.monotonic()

    @property
    def seconds(self) -> str:
        """Since the beginning, for people."""
        return f"{time.monotonic() - self.begin:,.0f} s"


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
