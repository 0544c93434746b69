"""How the tests start programs: much faster than in new processes, unless a test is about starts and stops.

Programs whose start itself is tested get ``sys.executable`` and ``sys.prefix`` instead, and so do those that are killed
with their group.
With EMBINIT_TESTS_COLD_START=1, and without OMP_NUM_THREADS=1, all of them are new processes. See warm_start/server.py.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent / "warm_start"
# environment variable with the folder: the processes of pytest-xdist use one server
FOLDER = "EMBINIT_TESTS_WARM_START"


def environment() -> Path:
    """The folder to use as virtual environment: with a server that ends with this process, or this one itself."""
    if os.environ.get("EMBINIT_TESTS_COLD_START", "0") != "0" or not possible():
        return Path(sys.prefix)
    if FOLDER not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="embinit"))
        fill(folder)
        start_server(folder)
        os.environ[FOLDER] = str(folder)
    return Path(os.environ[FOLDER], "venv")


def possible() -> bool:
    """Linux has what the server needs; CUDA does not survive a fork, nor do the threads of several cores."""
    gpu, one_thread = Path("/dev/nvidiactl").exists(), os.environ.get("OMP_NUM_THREADS") == "1"
    return hasattr(os, "pidfd_open") and one_thread and not gpu


def fill(folder: Path) -> None:
    """``venv/bin`` with links to everything beside this Python, but for what is to be started by client.py."""
    binaries, program = folder / "venv" / "bin", folder / "program"
    binaries.mkdir(parents=True)
    client = [sys.executable, "-ISE", str(HERE / "client.py"), str(folder), sys.executable]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "${{0##*/}}" "$@"\n')
    program.chmod(0o755)
    for real in Path(sys.executable).parent.iterdir():
        ours = re.fullmatch(
            r"python[\d.]*|fairseq-.*|embinit|sacremoses|subword-nmt|torchrun|ct2-.*|launch_pickled_pipeline", real.name
        )
        (binaries / real.name).symlink_to(program if ours else real)


def start_server(folder: Path) -> None:
    with (folder / "log").open("w") as log, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(64)
        server = subprocess.Popen(
            [sys.executable, HERE / "server.py", str(listener.fileno()), os.environ.get("PYTHONPATH", "")],
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            start_new_session=True,  # Ctrl-C reaches the programs through their clients
        )
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.communicate)  # closes its input, and comes first


#: for VENV of the scripts
VENV = environment()
#: in place of sys.executable
PYTHON = sys.executable if Path(sys.prefix) == VENV else str(VENV / "bin" / "python")
