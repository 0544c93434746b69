"""Copies of checkpoints appear whole or not at all.

Symptom: a run that is killed, or whose disk fills, while ``checkpoint_last.pt`` or ``checkpoint_best.pt`` is being
    copied leaves a truncated file; resuming then fails with ``PytorchStreamReader failed reading zip archive``.
Versions: all; fairseq 0.12.2 writes only the first file of a save under a temporary name.
Where: fairseq/file_io.py:61 (``PathManager.copy``), called by fairseq/checkpoint_utils.py:120.
Remedy: copy to a temporary name in the same folder, then ``os.replace``. Paths of iopath's own storage handlers are
    left to them.
Upstream: not reported.
Can go: with a fairseq whose ``PathManager.copy`` does this.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from contextlib import contextmanager

REASON = "a kill during PathManager.copy leaves a truncated checkpoint"
BROKEN = r"def copy\([\s\S]*?shutil\.copyfile"


def needed() -> bool:
    return True


def copy_whole(source: str, target: str) -> str:
    """Copy a file so that ``target`` is at every moment the old or the new file. Returns ``target``.

    Raises:
        OSError: the copy failed; ``target`` is as it was.
    """
    final = os.path.realpath(target)  # a link stays a link
    temporary = final + ".tmp"
    try:
        shutil.copyfile(source, temporary)
        os.replace(temporary, final)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        if isinstance(error, OSError):
            raise OSError(
                f"checkpoint {target} was not written: {error}. Earlier checkpoints are intact: free space in that "
                "folder, or choose another --save-dir, and start the same command again"
            ) from error
        raise
    return target


@contextmanager
def patching(module):
    yield
    manager = module.PathManager
    original = manager.copy

    def copy(src_path: str, dst_path: str, overwrite: bool = False):
        if manager.path_requires_pathmanager(src_path) or manager.path_requires_pathmanager(dst_path):
            return original(src_path, dst_path, overwrite=overwrite)
        return copy_whole(src_path, dst_path)

    manager.copy = staticmethod(copy)
