"""A kill leaves a truncated checkpoint.

Symptom: a run that is killed, or whose disk fills, while ``checkpoint_last.pt`` or ``checkpoint_best.pt`` is being
    copied leaves a truncated file; resuming then fails with ``PytorchStreamReader failed reading zip archive``.
Where: fairseq/file_io.py:61 (``PathManager.copy``), called by fairseq/checkpoint_utils.py:120.
Remedy: copy to a temporary name in the same folder, then ``os.replace``. Paths of iopath's own storage handlers are
    left to them.
"""

from __future__ import annotations

import contextlib
import os
import shutil

from fairseq_compat.fixes.complete_saves import not_saved
from fairseq_compat.patches import wrap

BROKEN = r"def copy\([\s\S]*?shutil\.copyfile"


def patch(module):
    manager = module.PathManager

    @wrap(manager)
    def copy(original, src_path, dst_path, overwrite=False):
        if manager.path_requires_pathmanager(src_path) or manager.path_requires_pathmanager(dst_path):
            return original(src_path, dst_path, overwrite=overwrite)
        final = os.path.realpath(dst_path)  # a link stays a link
        temporary = final + ".tmp"
        try:
            shutil.copyfile(src_path, temporary)
            os.replace(temporary, final)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.remove(temporary)
            raise not_saved(dst_path, error) from error
        return dst_path
