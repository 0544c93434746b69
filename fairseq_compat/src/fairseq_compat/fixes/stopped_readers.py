"""--max-update within an epoch ends with exit status 134.

Symptom: after "done training" of a run that ``--max-update`` ends within an epoch: ``terminate called without an
    active exception``, exit status 134. The thread that reads ahead is still at work when the interpreter goes.
Versions: all; fairseq 0.12.2 never stops its thread.
Where: fairseq/data/iterators.py:697.
Remedy: at exit the thread is asked to stop and waited for. Without this fix: ``--data-buffer-size 0``.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import time
import weakref
from typing import Any

from fairseq_compat.patches import wrap

BROKEN = r"class BackgroundConsumer\("
#: seconds to wait for one example to be read; after that the exit is as it was without the fix
SECONDS = 10.0


class StoppableSource:
    """Yield the items of a source to a thread until `stopped` is True."""

    def __init__(self, source) -> None:
        self.source, self.stopped = source, False

    def __iter__(self):
        for item in self.source:
            if self.stopped:
                return
            yield item


def patch(module):
    readers: weakref.WeakSet[Any] = weakref.WeakSet()

    @wrap(module.BackgroundConsumer)
    def __init__(original, self, queue, source, *args, **kwargs):
        original(self, queue, StoppableSource(source), *args, **kwargs)
        readers.add(self)

    atexit.register(stop, readers)


def stop(readers) -> None:
    """Let every reader finish its current example."""
    alive = [reader for reader in readers if reader.is_alive()]
    for reader in alive:
        reader._source.stopped = True
    end = time.monotonic() + SECONDS
    for reader in alive:
        while reader.is_alive() and time.monotonic() < end:
            with contextlib.suppress(queue.Empty):
                reader._queue.get_nowait()  # it may be waiting for a free place
            reader.join(0.01)
