"""Runs Python programs for the tests in forks of one process that has imported torch and fairseq already.

``python server.py LISTENER PYTHONPATH`` (a socket it inherits; where fairseq may be) works until its input ends.
A start costs a training of a few updates three quarters of its time, nearly all of it for torch and fairseq. The plugin
is imported anew by each program, as in a process of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.machinery
import logging
import marshal
import multiprocessing.spawn  # noqa: F401  # remembers the interpreter for its processes, which inherit files
import os
import runpy
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import types
from pathlib import Path

from hydra_caches import cache_hydra

# what a training, a translation and most scripts import in the end (torch._dynamo comes with the first optimizer)
PRELOADED = ["torch", "torch._dynamo", "hydra.experimental", "sacrebleu", "fairseq.tasks", "fairseq.trainer"]
OPTIONAL = ["sacremoses", "subword_nmt.apply_bpe", "matplotlib.figure", "matplotlib.backends.backend_agg"]
OPTIONAL += ["sklearn.linear_model", "spacy.lang.en", "spacy.lang.de", "datatrove.executor"]
# Read when these modules are imported, or when Python starts: with other values a program gets a process of its own.
READ_AT_START = ("OMP_", "MKL_", "KMP_", "TORCH", "PYTORCH", "CUDA", "LD_", "LC_", "LANG", "MPL", "PYTHON")
# what torchrun sets for the processes that it starts, which they read later
OF_TORCHRUN = ("TORCHELASTIC_", "TORCH_NCCL_")
# seen to otherwise; of no effect without a GPU; and what fairseq, torch and scikit-learn set themselves
NOT_THESE = {"PYTHONPATH", "PYTHONWARNINGS", "PYTHONUNBUFFERED", "CUDA_VISIBLE_DEVICES"}
NOT_THESE |= {"TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}
NEW_PROCESS = -1000  # instead of an exit status: the client is to start the program itself
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def read_at_start(environment: dict[str, str]) -> dict[str, str]:
    relevant = (name for name in environment if name.startswith(READ_AT_START) and not name.startswith(OF_TORCHRUN))
    return {name: environment[name] for name in relevant if name not in NOT_THESE}


ENVIRONMENT = read_at_start(dict(os.environ))


#: a program with its arguments, its working folder, environment, the signals it ignores, and its standard streams
Request = tuple[list[str], str, dict[str, str], list[int], list[int]]


@functools.cache
def preload() -> bool:
    """Import what programs need; -> whether this process can be forked: without threads, which a fork would lose."""
    sys.path[1:1] = first = entries(sys.argv[2])
    sys.modules["pyarrow"] = None  # type: ignore[assignment]  # fairseq tries it, and it starts a thread
    for name in PRELOADED:
        importlib.import_module(name)
    for name in OPTIONAL:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    del sys.modules["pyarrow"]
    fill_caches()
    del sys.path[1 : 1 + len(first)]
    logging.root.handlers.clear()  # two tasks of fairseq set up logging, which is for the program to do first
    logging.root.setLevel(logging.WARNING)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy all pages
    gc.set_threshold(200_000, 50, 100)
    return len(os.listdir("/proc/self/task")) == 1


def fill_caches() -> None:
    """Of hydra and the like: the first configuration that fairseq makes takes half as long again as others."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    cache_hydra()
    parser = options.get_training_parser()
    convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, ["data", "--arch", "transformer"]))


def entries(pythonpath: str) -> list[str]:
    return [*map(os.path.abspath, pythonpath.split(os.pathsep))] if pythonpath else []


def has_other_fairseq(environment: dict[str, str]) -> bool:
    """Would a new process import another fairseq than was preloaded?"""
    path = [*entries(environment.get("PYTHONPATH", "")), *sys.path[1:]]
    found = importlib.machinery.PathFinder.find_spec("fairseq", path)
    return found is None or found.origin != sys.modules["fairseq"].__file__


def serve(listener: socket.socket) -> Request:
    """Returns in forks of forks only, with what they are to do."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the guards
    while True:
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:  # the tests have ended
            sys.exit()
        connection, _ = listener.accept()
        preload()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return guard(connection)
        connection.close()


def guard(connection: socket.socket) -> Request:
    """Fork; pass signals on to the fork, and its exit status back. Returns in the fork."""
    try:
        header, streams, _, _ = socket.recv_fds(connection, 8, 3)
        content = connection.recv(*struct.unpack("<q", header), socket.MSG_WAITALL)
        request = (*marshal.loads(content), streams)
    except (EOFError, TypeError, ValueError, struct.error):  # the client was killed in the middle
        os._exit(0)
    if read_at_start(request[2]) != ENVIRONMENT or not preload() or has_other_fairseq(request[2]):
        end(connection, NEW_PROCESS)
    child = os.fork()
    if child == 0:
        os.setsid()
        join_network(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
        connection.close()
        return request
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(child)
    while ended not in select.select([connection, ended], [], [])[0]:
        numbers = connection.recv(16)
        for number in numbers or [signal.SIGKILL]:
            os.kill(child, number)
        if not numbers:  # the client was killed, and its program with it
            with contextlib.suppress(ProcessLookupError):  # it has not come to make its group
                os.killpg(child, signal.SIGKILL)
            break
    end(connection, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def join_network(process: int) -> None:
    """Enter the network of a process, which `ip netns exec` may have started."""
    with open(f"/proc/{process}/ns/net") as network:
        if os.fstat(network.fileno()).st_ino != os.stat("/proc/self/ns/net").st_ino:
            ctypes.CDLL(None).setns(network.fileno(), 0)


def end(connection: socket.socket, status: int) -> None:
    with contextlib.suppress(OSError):  # the client may be gone
        connection.sendall(struct.pack("<q", status))
    os._exit(0)


def take_over(
    folder: str, environment: dict[str, str], ignored: list[int], streams: list[int], path: list[str]
) -> None:
    """Make of this process what a new one would be; path: sys.path without PYTHONPATH and the program's folder."""
    for at, stream in enumerate(streams):
        os.dup2(stream, at)
        os.close(stream)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [*entries(environment.get("PYTHONPATH", "")), *path]
    importlib.invalidate_caches()
    for number in PASSED_ON:
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


if __name__ == "__main__":
    PATH = sys.path[1:]  # the first is the folder of this file
    LISTENER = socket.socket(fileno=int(sys.argv[1]))
    # what programs start are forks, too
    sys.executable = str(Path(LISTENER.getsockname()).with_name("venv") / "bin" / "python")
    ARGV, *REST = serve(LISTENER)
    take_over(*REST, PATH)
    run(ARGV)
