"""Two trainings with one --save-dir overwrite each other; now the second is refused (not on Windows).

Symptom: a command that is started twice (in two terminals, by a queue that believes the first one dead) trains twice,
    and both write the same files: ``checkpoint_last.pt`` is from either run, and a save of one can fail because the
    other has renamed or removed its file.
Where: fairseq/checkpoint_utils.py:201 (``load_checkpoint``, with which a training begins).
Remedy: the first process of a run locks its ``--save-dir`` for as long as its trainer lives; a second run is refused.
    The system drops the lock with the process, however it ends, and nothing is left in the folder. Where folders
    cannot be locked (some network drives, Windows), with ``--no-save``, and with a ``--checkpoint-suffix``, nothing
    changes.
"""

from __future__ import annotations

import importlib.util
import os
import weakref

from fairseq_compat.patches import wrap

BROKEN = r"def load_checkpoint\(cfg"

#: real path -> lock of a trainer of this process
_locks: weakref.WeakValueDictionary[str, FolderLock] = weakref.WeakValueDictionary()


def needed() -> bool:
    return importlib.util.find_spec("fcntl") is not None


class FolderLock:
    """Lock a folder until this object is garbage or its process ends.

    Raises:
        BlockingIOError: another process has the lock.
        OSError: the folder cannot be locked at all.
    """

    descriptor: int | None = None

    def __init__(self, folder: str) -> None:
        import fcntl

        self.descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Let others lock the folder; a second call does nothing."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    __del__ = close


def lock_folder(folder: str) -> FolderLock | None:
    """Return the lock of this process on a folder; None if the folder cannot be locked."""
    path = os.path.realpath(folder)
    try:
        lock = _locks[path] = _locks.get(path) or FolderLock(path)
    except BlockingIOError:
        raise OSError(
            f"--save-dir {folder}: another training is running in this folder{holder(path)}, and the two would "
            "overwrite each other's checkpoints; wait for it, end it, or choose another --save-dir"
        ) from None
    except OSError:
        return None
    return lock


def holder(path: str) -> str:
    """Return `, process NUMBER` of the process that has locked a folder; "" on systems other than Linux."""
    try:
        with open("/proc/locks") as file:
            locks = [line.split() for line in file]
    except OSError:
        return ""
    end = f":{os.stat(path).st_ino}"  # number, FLOCK, ADVISORY, WRITE, process, major:minor:inode, ...
    return next((f", process {lock[4]}" for lock in locks if lock[1] == "FLOCK" and lock[5].endswith(end)), "")


def _close_all() -> None:
    """Close the locks in a data-loader worker, which may live longer than a run that was killed."""
    for lock in list(_locks.values()):
        lock.close()


def patch(module):
    @wrap(module)
    def load_checkpoint(original, cfg, trainer, **kwargs):
        is_first = trainer.cfg.distributed_training.distributed_rank == 0
        if is_first and not cfg.no_save and not cfg.checkpoint_suffix:
            trainer.folder_lock = lock_folder(cfg.save_dir)
        return original(cfg, trainer, **kwargs)

    os.register_at_fork(after_in_child=_close_all)
