"""A checkpoint that cannot be written completely is not saved at all.

Symptom: (a) when a write fails for a moment (a disk that was full, a network drive), fairseq tries again *behind* what
    it had written, and renames the broken file over the good checkpoint without an error; (b) when it fails for good,
    the unfinished ``.tmp`` file stays on the full disk, and the message names no file; (c) a ``--save-dir`` that cannot
    be written is reported as an error about a file ``dummy``; (d) Ctrl-C while a checkpoint is written is lost: torch's
    writer makes a RuntimeError of it, and the training goes on.
Versions: all; fairseq 0.12.2.
Where: fairseq/checkpoint_utils.py:549 (``torch_persistent_save``), :565 (``_torch_persistent_save``) and :841
    (``verify_checkpoint_directory``).
Remedy: each attempt starts at the beginning of an empty file; after the last one the unfinished file is removed and
    the error names the checkpoint (or the folder) and what to do. Earlier checkpoints are intact, the exit code is
    not 0. Ctrl-C ends the training.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import contextlib
import os
import sys
from contextlib import contextmanager

REASON = "a failed write leaves a broken or an unfinished checkpoint"
BROKEN = r"def _torch_persistent_save\("

ATTEMPTS = 3


def needed() -> bool:
    return True


def save_from_start(save, content, file) -> None:
    """Call ``save(content, file)`` up to three times, each time from the beginning of the emptied file."""
    start, before = file.tell(), sys.exc_info()[1]
    for attempt in range(1, ATTEMPTS + 1):
        try:
            save(content, file)
            return
        except Exception as error:
            if is_interrupted(error, before):
                raise KeyboardInterrupt from None
            if attempt == ATTEMPTS or not file.seekable():
                raise
            file.seek(start)
            file.truncate()


def is_interrupted(error: BaseException | None, before: BaseException | None = None) -> bool:
    """Was it Ctrl-C that torch's writer, which begins to close its file, has made another error of?

    before: what was being handled when the save began: a program that saves after Ctrl-C is not interrupted again.
    """
    while error is not None and error is not before and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None and error is not before


def is_write_error(error: BaseException) -> bool:
    """Did the disk refuse? torch's own writer reports that as a RuntimeError of its zip container."""
    return isinstance(error, OSError) or "inline_container" in str(error)


@contextmanager
def patching(module):
    yield
    torch, original = module.torch, module.torch_persistent_save

    def torch_persistent_save(obj, filename, async_write=False):
        try:
            return original(obj, filename, async_write=async_write)
        except (Exception, KeyboardInterrupt) as error:
            with contextlib.suppress(OSError):
                os.remove(f"{filename}.tmp")
            if not is_write_error(error):
                raise
            raise OSError(
                f"checkpoint {filename} was not saved: {error}. Earlier checkpoints are intact: free space in that "
                "folder, or choose another --save-dir, and start the same command again"
            ) from error

    original_verify = module.verify_checkpoint_directory

    def verify_checkpoint_directory(save_dir):
        try:
            original_verify(save_dir)
        except OSError as error:
            raise OSError(
                f"--save-dir {save_dir}: cannot be written ({error.strerror or error}); choose a folder that can, or "
                "free space there"
            ) from error

    module.verify_checkpoint_directory = verify_checkpoint_directory
    module._torch_persistent_save = lambda obj, f: save_from_start(torch.save, obj, f)
    module.torch_persistent_save = torch_persistent_save
