"""Programs that are forks of tests/warm_start/server.py do what new processes do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from programs import PYTHON

pytestmark = pytest.mark.skipif(sys.executable == PYTHON, reason="every program is a new process here")

SCRIPT = """
import os, sys
from pathlib import Path
def said(words):
    print(__name__, sys.modules["__main__"].said is said, sys.argv, sys.path, os.getcwd(), sys.executable)
    print(sorted(item for item in os.environ.items() if item[0] not in ("_", "SHLVL", "PWD", "OLDPWD")))
    print(sys.stdin.read(), sys.stdout.isatty(), sys.stdout.line_buffering, sys.flags, os.listdir("/proc/self/fd"))
    sys.stderr.write(words)
said("to stderr")
"""


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script and a module, which like ``python -c`` were started once, so that they are forked from now on."""
    folder = tmp_path_factory.mktemp("a script")
    for name in ("a_script.py", "a_module.py"):
        (folder / name).write_text(SCRIPT)
    for program in (["a_script.py"], ["-m", "a_module"], ["-c", ""]):
        subprocess.run([PYTHON, *program], check=True, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True)
    return folder


def run(python: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([python, *arguments], capture_output=True, text=True, timeout=60, **options)


@pytest.mark.parametrize("program", [["a_script.py"], ["-m", "a_module"], ["-c", SCRIPT]], ids=["file", "-m", "-c"])
def test_a_fork_sees_what_a_new_process_sees(folder: Path, program: list[str]) -> None:
    told = {"env": {**os.environ, "PYTHONPATH": "/elsewhere:relative", "MARK": "\udcff ä"}, "cwd": folder}
    fork, new = (
        run(python, *program, "an argument", "\udcfe", input="words", **told) for python in (PYTHON, sys.executable)
    )
    assert (fork.returncode, fork.stdout) == (0, new.stdout)
    assert fork.stderr == new.stderr == "to stderr"


ENDS = [
    "raise ValueError('of the program')",
    "import sys; sys.exit('words')",
    "import sys; sys.exit(259)",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "import atexit; atexit.register(print, 'the end'); print('before')",
    "import threading, time; threading.Timer(0.1, print, ['a thread']).start(); print('before')",
]


@pytest.mark.parametrize("code", ENDS)
def test_programs_end_alike(code: str) -> None:
    fork, new = (run(python, "-c", code) for python in (PYTHON, sys.executable))
    assert (fork.returncode, fork.stdout) == (new.returncode, new.stdout)
    assert fork.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signals_reach_the_program_and_its_workers(number: signal.Signals) -> None:
    code = "import os, time; child = os.fork(); child and print(child, flush=True); time.sleep(60)"
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    process = subprocess.Popen([PYTHON, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, handler)
    worker = int(process.stdout.readline())
    process.send_signal(number)
    process.stderr.close()
    assert process.wait(timeout=20) == -number
    if number != signal.SIGKILL:  # as without a server, a worker is then on its own
        os.kill(worker, signal.SIGKILL)
    end = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < end, "it still runs"
        time.sleep(0.02)
