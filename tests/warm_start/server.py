"""Runs Python programs for the tests in forks of one process that has imported torch already.

``python server.py FOLDER LISTENER`` (a socket it inherits) works until its standard input ends, and then removes the
folder; client.py is the other side. A start
costs a training of a few updates three quarters of its time, nearly all of it for torch. What is imported here belongs
to others and is the same for every program; fairseq, fairseq_compat and all code of this repository are imported anew
by each program, as in a process of its own.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import marshal
import os
import selectors
import shutil
import signal
import socket
import struct
import sys

from program import run, take_over

# what a training, a translation and most scripts import in the end (torch._dynamo comes with the first optimizer)
PRELOADED = ["torch", "torch._dynamo", "hydra.experimental", "sacrebleu"]
# Read when these modules are imported, or when Python starts: with other values a program gets a process of its own.
READ_AT_START = ("OMP_", "MKL_", "KMP_", "TORCH", "PYTORCH", "CUDA", "LD_", "LC_", "LANG", "PYTHON")
# read by Python, but seen to otherwise; and what fairseq, torch and scikit-learn set themselves
NOT_THESE = ("PYTHONPATH", "PYTHONWARNINGS", "TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")
NEW_PROCESS = -1000  # instead of an exit status: the client is to start the program itself


def read_at_start(environment: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k.startswith(READ_AT_START) and k not in NOT_THESE}


ENVIRONMENT = read_at_start(dict(os.environ))


class Request:
    """A program with its arguments, its working folder, environment, standard streams, and the signals it ignores."""

    def __init__(self, connection: socket.socket) -> None:
        header, self.streams, _, _ = socket.recv_fds(connection, 8, 3)
        (size,) = struct.unpack("<q", header)
        content = bytearray()
        while len(content) < size:
            part = connection.recv(size - len(content))
            if not part:
                raise ConnectionError("the client was killed in the middle")
            content += part
        self.argv, self.folder, self.environment, self.ignored = marshal.loads(content)

    def fits(self) -> bool:
        """Whether what was read from the environment at this process's start is what this program would have read."""
        return read_at_start(self.environment) == ENVIRONMENT

    def close(self) -> None:
        for stream in self.streams:
            os.close(stream)


class Server:
    """Forks for each request, passes signals on to the forks, and their exit status back."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ, self.accept)
        self.selector.register(sys.stdin, selectors.EVENT_READ, sys.exit)  # the tests have ended

    def serve(self) -> Request:
        """Returns in the forks only, with what this fork is to do."""
        while True:
            for key, _ in self.selector.select():
                request = key.data()
                if request is not None:
                    return request

    def accept(self) -> Request | None:
        connection, _ = self.listener.accept()
        try:
            request = Request(connection)
        except (ConnectionError, struct.error):
            return connection.close()
        if not request.fits() or not preload():
            answer(connection, NEW_PROCESS)
            return request.close()
        child = os.fork()
        if child == 0:
            os.setsid()
            self.forget()
            connection.close()
            return request
        request.close()
        ended = os.pidfd_open(child)
        self.selector.register(connection, selectors.EVENT_READ, lambda: self.signal(connection, child))
        self.selector.register(ended, selectors.EVENT_READ, lambda: self.end(connection, child, ended))
        return None

    def forget(self) -> None:
        """In a fork: close what is the server's."""
        for key in list(self.selector.get_map().values()):
            if isinstance(key.fileobj, int):
                os.close(key.fileobj)
            elif key.fileobj is not sys.stdin:
                key.fileobj.close()
        self.selector.close()

    def signal(self, connection: socket.socket, child: int) -> None:
        """The client got a signal, or it was killed, and its program with it."""
        if connection.fileno() < 0:  # the program has ended at the same moment
            return
        numbers = connection.recv(16)
        for number in numbers or [signal.SIGKILL]:
            os.kill(child, number)
        if not numbers:
            self.selector.unregister(connection)
            with contextlib.suppress(ProcessLookupError):  # it has not come to make its group
                os.killpg(child, signal.SIGKILL)

    def end(self, connection: socket.socket, child: int, ended: int) -> None:
        _, status = os.waitpid(child, 0)
        self.selector.unregister(ended)
        os.close(ended)
        if connection in self.selector.get_map():
            self.selector.unregister(connection)
        answer(connection, os.waitstatus_to_exitcode(status))


def answer(connection: socket.socket, status: int) -> None:
    with contextlib.suppress(OSError), connection:  # the client may be gone
        connection.sendall(struct.pack("<q", status))


@functools.cache
def preload() -> bool:
    """Import what programs need; -> whether this process can be forked: without threads, which a fork would lose."""
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy all pages
    return len(os.listdir("/proc/self/task")) == 1


def main(folder: str, listener: int) -> None:
    path = sys.path[1:]  # the first is the folder of this file
    try:
        request = Server(socket.socket(fileno=listener)).serve()
    except SystemExit:
        shutil.rmtree(folder)
        raise
    take_over(request.streams, request.folder, request.environment, request.ignored, path)
    run(request.argv)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
