"""Programs with a log: each in a process group of its own, and its log locked as long as anybody writes to it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import IO


def lock(log: IO[bytes]) -> bool:
    """Lock it for this process and those it starts; False: another one has it. A file system without locks: True."""
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def start(
    command: Sequence[str], log: IO[bytes], environment: Mapping[str, str], before: Callable[[], None] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command that prints to `log` and reads nothing; a signal of the terminal does not reach it.

    before: called in the new process.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
        preexec_fn=before,
    )


def send(process: subprocess.Popen[bytes], number: int) -> None:
    """A signal to a process that `start` has made, and to all that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
