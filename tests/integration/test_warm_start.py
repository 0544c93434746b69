"""Programs that are forks of tests/warm_start/server.py do what new processes do."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from programs import PYTHON
from warm_start.hydra_caches import without_defaults

pytestmark = pytest.mark.skipif(sys.executable == PYTHON, reason="every program is a new process here")

SCRIPT = """
import atexit, os, sys, threading
def opened():  # but what lists them, and a library of which some systems keep the file open
    links = [(fd, f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return [fd for fd, link in links if os.path.islink(link) and ".so" not in os.readlink(link)]
def said(words):
    print(__name__, sys.modules["__main__"].said is said, sys.argv, sys.path, os.getcwd())
    print(sorted(item for item in os.environ.items() if item[0] not in ("_", "SHLVL", "PWD", "OLDPWD")))
    print(sys.stdin.read(), sys.stdout.isatty(), sys.stdout.line_buffering, sys.flags, opened())
    print(words, file=sys.stderr)
said("to stderr")
atexit.register(print, "the end")
threading.Timer(0.1, print, ["a thread"]).start()
"""
#: of training, what is a default and what is not
CHANGED = "--arch lstm --seed 7 --lr 0.1,0.2 --save-dir a --update-freq 1 --valid-subset a,b --adam-betas (0.9,0.98)"
ENDS = "sys.exit(259)", "sys.exit('words')", "raise ValueError('a')", "os.kill(os.getpid(), 9)", ""


def test_hydra_needs_no_option_that_has_its_default(monkeypatch) -> None:
    utils = pytest.importorskip("fairseq.dataclass.utils")
    from fairseq import options

    given = ["data", *CHANGED.split(), "--optimizer", "adam"]
    args = options.parse_args_and_arch(options.get_training_parser(), given)
    compose, defaults = inspect.unwrap(utils.compose), utils.override_module_args(Namespace())[0]
    assert len(defaults) > 150
    found = []
    for function in (compose, without_defaults(compose, defaults)):
        monkeypatch.setattr(utils, "compose", function)
        found.append(utils.convert_namespace_to_omegaconf(args))
    assert found[0] == found[1]
    assert found[0].common.seed == 7


def test_programs_are_forks() -> None:
    """A thread that a library starts on import would make every program a new process: twenty times the time."""
    program = [PYTHON, "-c", "import sys; print('fairseq.trainer' in sys.modules)"]
    assert subprocess.run(program, capture_output=True, text=True, check=True).stdout == "True\n"


@pytest.mark.parametrize(
    ("program", "end"), [(["a_script.py"], ""), (["-c"], ""), *((["-m", "a_module"], e) for e in ENDS)]
)
def test_a_fork_is_as_a_new_process(tmp_path: Path, program: list[str], end: str) -> None:
    for name in ("a_script.py", "a_module.py"):
        (tmp_path / name).write_text(SCRIPT + end)
    arguments = [*program, *([SCRIPT + end] if program == ["-c"] else ["an argument"]), "\udcfe"]
    told = {"env": {**os.environ, "PYTHONPATH": "/elsewhere:relative", "MARK": "\udcff ä"}, "cwd": tmp_path}
    fork, new = (
        subprocess.run([python, *arguments], capture_output=True, text=True, timeout=600, input="words", **told)
        for python in (PYTHON, sys.executable)
    )
    assert (fork.returncode, fork.stdout) == (new.returncode, new.stdout)
    assert fork.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]
    assert "to stderr" in fork.stderr
