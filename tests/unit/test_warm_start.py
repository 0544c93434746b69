"""Programs that are forks of tests/warm_start/server.py do what new processes do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import PYTHON, VENV

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
def started() -> None:
    """``python -c`` was started once, so that it is forked from now on."""
    subprocess.run([PYTHON, "-c", ""], check=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script and a module with it, both of which were started once."""
    folder = tmp_path_factory.mktemp("a script")
    (folder / "a_script.py").write_text(SCRIPT)
    (folder / "a_module.py").write_text(SCRIPT)
    for program in (["a_script.py"], ["-m", "a_module"]):
        subprocess.run([PYTHON, *program], check=True, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True)
    return folder


def run(python: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([python, *arguments], capture_output=True, text=True, timeout=60, **options)


def is_forked(python: str, *arguments: str, **options) -> bool:
    """Whether a program that prints its modules has torch, which nobody imported, but nothing of what is tested."""
    modules = run(python, *arguments, **options).stdout.split()
    assert "sys" in modules
    assert not {"fairseq", "embinit_fairseq", "fairseq_compat.runner", "numpy.testing"} & set(modules)
    return "torch" in modules


MODULES = "import sys; print(*sys.modules)"


@pytest.mark.parametrize("program", [["a_script.py"], ["-m", "a_module"], ["-c", SCRIPT]], ids=["file", "-m", "-c"])
def test_a_fork_sees_what_a_new_process_sees(folder: Path, program: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": "/elsewhere:relative", "MARK": "\udcff ä"}
    command = [*program, "an argument", "\udcfe"]
    results = [run(python, *command, env=environment, cwd=folder, input="words") for python in (PYTHON, sys.executable)]
    assert results[0].returncode == 0, results[0].stderr
    assert results[0].stdout == results[1].stdout
    assert results[0].stderr == results[1].stderr == "to stderr"


def test_torch_is_there_and_nothing_of_what_is_tested() -> None:
    assert is_forked(PYTHON, "-c", MODULES)


def test_the_first_start_is_a_new_process(tmp_path: Path) -> None:
    name = f"script{time.time_ns()}.py"
    (tmp_path / name).write_text(MODULES)
    assert not is_forked(PYTHON, str(tmp_path / name))
    assert is_forked(PYTHON, str(tmp_path / name))


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "PYTHONHASHSEED", "CUDA_VISIBLE_DEVICES", "TORCH_LOGS"])
def test_what_is_read_at_the_start_asks_for_a_new_process(name: str) -> None:
    assert not is_forked(PYTHON, "-c", MODULES, env={**os.environ, name: "7" if name != "TORCH_LOGS" else ""})


def test_what_libraries_set_for_themselves_asks_for_none() -> None:
    """It is in the environment of every test after one that used fairseq's iterators, torch's optimizers or sklearn."""
    theirs = {"PYTHONWARNINGS": "ignore:semaphore_tracker:UserWarning", "TORCHINDUCTOR_CACHE_DIR": "/elsewhere"}
    theirs.update(KMP_DUPLICATE_LIB_OK="True", KMP_INIT_AT_FORK="FALSE")
    assert is_forked(PYTHON, "-c", MODULES, env={**os.environ, **theirs})


def test_options_of_the_interpreter_ask_for_a_new_process() -> None:
    assert not is_forked(PYTHON, "-E", "-c", MODULES)


@pytest.mark.parametrize(
    "code",
    [
        "raise ValueError('of the program')",
        "import sys; sys.exit('words')",
        "import sys; sys.exit(259)",
        "raise SystemExit",
        "import os; os._exit(4)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "raise KeyboardInterrupt",
        "import atexit; atexit.register(print, 'the end'); print('before')",
        "import threading, time; threading.Timer(0.1, print, ['a thread']).start(); print('before')",
        "def broken(: pass",
    ],
)
def test_programs_end_alike(code: str) -> None:
    fork, new = (run(python, "-c", code) for python in (PYTHON, sys.executable))
    assert (fork.returncode, fork.stdout) == (new.returncode, new.stdout)
    assert fork.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]


def test_random_numbers_differ_from_fork_to_fork() -> None:
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    numbers = [number for _ in range(3) for number in run(PYTHON, "-c", code).stdout.split()]
    assert len(set(numbers)) == 6


SLEEPING = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
WITH_A_WORKER = "import os, time; print(os.fork() or os.getpid(), flush=True); time.sleep(60)"


def sleeping(code: str = SLEEPING) -> tuple[subprocess.Popen, int]:
    """A program, and the number of the process that prints one first."""
    process = subprocess.Popen([PYTHON, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())


def wait_for_end_of(number: int) -> None:
    end = time.monotonic() + 20
    while Path(f"/proc/{number}").exists():
        assert time.monotonic() < end, "it is still there"
        time.sleep(0.02)


@pytest.fixture(params=[signal.SIG_DFL, signal.SIG_IGN], ids=["heeded", "ignored"])
def signals(request: pytest.FixtureRequest) -> Iterator[list[signal.Signals]]:
    """What is done about some signals here, and so by what is started; a job in the background ignores Ctrl-C."""
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    before = [signal.signal(number, request.param) for number in numbers]
    yield numbers
    for number, handler in zip(numbers, before):
        signal.signal(number, handler)


def test_signals_are_heeded_or_ignored_as_in_a_new_process(signals: list[signal.Signals]) -> None:
    code = "import signal; print(*(signal.getsignal(number) for number in map(int, '15 2 1'.split())))"
    fork, new = (run(python, "-c", code).stdout.split(" at ")[0] for python in (PYTHON, sys.executable))
    assert fork == new


@pytest.mark.parametrize("signals", [signal.SIG_DFL], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_program(number: signal.Signals, signals: None) -> None:
    process, program = sleeping()
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert process.returncode == -number
    assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT)
    wait_for_end_of(program)


@pytest.mark.parametrize("code", [SLEEPING, WITH_A_WORKER], ids=["alone", "worker"])
def test_a_killed_client_takes_its_program_with_it(code: str) -> None:
    process, program = sleeping(code)
    process.kill()
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGKILL
    wait_for_end_of(program)


def test_programs_of_the_environment_are_there() -> None:
    """A script beside this Python: fairseq-train is forked, others are what they were."""
    names = {path.name for path in Path(sys.executable).parent.iterdir()}
    assert names == {path.name for path in (VENV / "bin").iterdir()}
    assert (VENV / "bin" / "ruff").resolve() == (Path(sys.executable).parent / "ruff").resolve()
    assert (VENV / "bin" / "fairseq-train").resolve() == (VENV.parent / "program").resolve()
