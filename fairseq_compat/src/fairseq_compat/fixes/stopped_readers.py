"""A training that ends within an epoch and exits with 0.

Symptom: after "done training" of a run that ``--max-update`` ends within an epoch: ``terminate called without an
    active exception``, exit status 134. The thread that reads ahead is still at work when the interpreter goes.
Versions: all; fairseq 0.12.2 never stops its thread.
Where: fairseq/data/iterators.py:697.
Remedy: at exit the thread is told to stop and waited for.
Upstream: not reported. Without this fix: ``--data-buffer-size 0``.
Can go: with a fairseq that stops its threads.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import time
import weakref
from contextlib import contextmanager
from typing import Any

REASON = "the thread that reads ahead is cut off at exit: abort, exit status 134"
BROKEN = r"class BackgroundConsumer\("
#: what one example may take to be read; after that the exit is as it was without the fix
SECONDS = 10.0


def needed() -> bool:
    return True


class StoppableSource:
    """What a thread reads from, until it is told to stop."""

    def __init__(self, source) -> None:
        self.source, self.stopped = source, False

    def __iter__(self):
        for item in self.source:
            if self.stopped:
                return
            yield item


@contextmanager
def patching(module):
    yield
    readers: weakref.WeakSet[Any] = weakref.WeakSet()
    original = module.BackgroundConsumer.__init__

    def __init__(self, queue, source, *args, **kwargs):
        original(self, queue, StoppableSource(source), *args, **kwargs)
        readers.add(self)

    module.BackgroundConsumer.__init__ = __init__
    atexit.register(stop, readers)


def stop(readers) -> None:
    """Let every reader finish the example that it is at."""
    alive = [reader for reader in readers if reader.is_alive()]
    for reader in alive:
        reader._source.stopped = True
    end = time.monotonic() + SECONDS
    for reader in alive:
        while reader.is_alive() and time.monotonic() < end:
            with contextlib.suppress(queue.Empty):
                reader._queue.get_nowait()  # it may be waiting for a free place
            reader.join(0.01)
