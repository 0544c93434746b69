"""What a fork of server.py does: it becomes the program that was asked for."""

from __future__ import annotations

import atexit
import importlib
import os
import runpy
import signal
import sys
import tempfile
import threading
import types
from pathlib import Path


def take_over(
    streams: list[int], folder: str, environment: dict[str, str], ignored: list[int], path: list[str]
) -> None:
    """Make of this process what a new one would be; path: sys.path without PYTHONPATH and the program's folder."""
    for at, stream in enumerate(streams):
        os.dup2(stream, at)
        os.close(stream)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    extra = environment.get("PYTHONPATH", "")
    sys.path[:] = [*(map(os.path.abspath, extra.split(os.pathsep)) if extra else []), *path]
    importlib.invalidate_caches()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in ignored else usual)
    sys.modules["numpy"].random.seed()  # random and torch see to themselves
    tempfile.tempdir = None


def execute(argv: list[str]) -> None:
    """``-m MODULE ...``, ``-c CODE ...`` or ``FILE ...``, as the interpreter does."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if argv[0] == "-m":
        sys.argv, sys.path[:0] = argv[1:], [os.getcwd()]
        runpy._run_module_as_main(argv[1])
    elif argv[0] == "-c":
        sys.argv, sys.path[:0] = ["-c", *argv[2:]], [""]
        exec(compile(argv[1], "<string>", "exec", dont_inherit=True), vars(main))
    else:
        sys.argv, sys.path[:0] = argv, [str(Path(argv[0]).resolve().parent)]
        main.__file__, main.__cached__ = argv[0], None
        exec(compile(Path(argv[0]).read_bytes(), argv[0], "exec", dont_inherit=True), vars(main))


def run(argv: list[str]) -> None:
    """Execute, and end as the interpreter does, but without taking torch to pieces, which takes half a second."""
    status = 0
    try:
        execute(argv)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # nobody reads it any more, or the program closed it
            status = 120
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)
