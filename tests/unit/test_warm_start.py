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
MODULES = "import sys; print(*sys.modules)"


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
    environment = {**os.environ, "PYTHONPATH": "/elsewhere:relative", "MARK": "\udcff ä"}
    command = [*program, "an argument", "\udcfe"]
    results = [run(python, *command, env=environment, cwd=folder, input="words") for python in (PYTHON, sys.executable)]
    assert results[0].returncode == 0, results[0].stderr
    assert results[0].stdout == results[1].stdout
    assert results[0].stderr == results[1].stderr == "to stderr"


@pytest.mark.parametrize(
    ("options", "variables", "forked"),
    [
        ([], {}, True),
        ([], {"PYTHONWARNINGS": "ignore:x:UserWarning", "TORCHINDUCTOR_CACHE_DIR": "/x"}, True),  # what libraries set
        ([], {"OMP_NUM_THREADS": "7"}, False),  # what is read at the start
        (["-E"], {}, False),
    ],
)
def test_what_is_forked_has_torch_and_nothing_of_what_is_tested(options, variables, forked) -> None:
    modules = run(PYTHON, *options, "-c", MODULES, env={**os.environ, **variables}).stdout.split()
    assert "sys" in modules
    assert not {"fairseq", "embinit_fairseq", "fairseq_compat.runner"} & set(modules)
    assert ("torch" in modules) == forked


@pytest.mark.parametrize(
    "code",
    [
        "raise ValueError('of the program')",
        "import sys; sys.exit('words')",
        "import sys; sys.exit(259)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import atexit; atexit.register(print, 'the end'); print('before')",
        "import threading, time; threading.Timer(0.1, print, ['a thread']).start(); print('before')",
    ],
)
def test_programs_end_alike(code: str) -> None:
    fork, new = (run(python, "-c", code) for python in (PYTHON, sys.executable))
    assert (fork.returncode, fork.stdout) == (new.returncode, new.stdout)
    assert fork.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]


def test_random_numbers_differ_from_fork_to_fork() -> None:
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    numbers = [number for _ in range(2) for number in run(PYTHON, "-c", code).stdout.split()]
    assert len(set(numbers)) == 4


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
