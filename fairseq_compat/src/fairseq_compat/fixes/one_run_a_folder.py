"""Two trainings at the same time do not share a ``--save-dir``.

Symptom: a command that is started twice (in two terminals, by a queue that believes the first one dead) trains twice,
    and both write the same files: ``checkpoint_last.pt`` is of the one or of the other, and a save of the one can end
    in an error, because the other has renamed or removed its file.
Versions: all.
Where: fairseq/checkpoint_utils.py:201 (``load_checkpoint``, with which a training begins).
Remedy: the first process of a run locks its ``--save-dir`` for as long as its trainer lives; a second run is refused.
    The system drops the lock with the process, however it ends, and nothing is left in the folder. Where folders
    cannot be locked (some network drives, Windows), with ``--no-save``, and with a ``--checkpoint-suffix``, nothing
    changes.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import weakref
from contextlib import contextmanager

REASON = "two trainings with one --save-dir overwrite each other's checkpoints"
BROKEN = r"def load_checkpoint\(cfg"

_locks: weakref.WeakValueDictionary[str, FolderLock] = weakref.WeakValueDictionary()


def needed() -> bool:
    return importlib.util.find_spec("fcntl") is not None


class FolderLock:
    """Holds a folder until it is garbage or its process ends.

    Raises:
        BlockingIOError: another process holds it.
        OSError: it cannot be locked at all.
    """

    def __init__(self, folder: str) -> None:
        import fcntl

        self.descriptor: int | None = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "descriptor", None) is not None:
            self.close()


def lock_folder(folder: str) -> FolderLock | None:
    """The lock of this process on a folder; None where it cannot be locked."""
    path = os.path.realpath(folder)
    try:
        lock = _locks.get(path) or FolderLock(path)
    except BlockingIOError:
        raise OSError(
            f"--save-dir {folder}: another training is running in this folder, and the two would overwrite each "
            "other's checkpoints; wait for it, end it, or choose another --save-dir"
        ) from None
    except OSError:
        return None
    _locks[path] = lock
    return lock


def _close_all() -> None:
    """A data-loader worker must not hold the folder of a run that was killed."""
    for lock in list(_locks.values()):
        lock.close()


@contextmanager
def patching(module):
    yield
    original = module.load_checkpoint

    @functools.wraps(original)
    def load_checkpoint(cfg, trainer, **kwargs):
        first = trainer.cfg.distributed_training.distributed_rank == 0
        if first and not cfg.no_save and not cfg.checkpoint_suffix:
            trainer.folder_lock = lock_folder(cfg.save_dir)
        return original(cfg, trainer, **kwargs)

    module.load_checkpoint = load_checkpoint
    os.register_at_fork(after_in_child=_close_all)
