"""A full disk or Ctrl-C leaves a broken checkpoint, or an error without a file name.

Symptom: (a) when a write fails for a moment (a full disk, a network drive), fairseq tries again *after* the bytes of
    the first attempt, and renames the broken file over the good checkpoint without an error; (b) when it fails for
    good, the unfinished ``.tmp`` file stays on the full disk, and the message names no file; (c) Ctrl-C while a
    checkpoint is written is lost: torch's writer makes a RuntimeError of it, and the training continues.
Versions: all; fairseq 0.12.2.
Where: fairseq/checkpoint_utils.py:549 (``torch_persistent_save``), :565 (``_torch_persistent_save``).
Remedy: each attempt starts at the beginning of an empty file; after the last one the unfinished file is removed and
    the error names the checkpoint and what to do. Earlier checkpoints are intact, the exit code is not 0. Ctrl-C ends
    the training.
"""

from __future__ import annotations

import contextlib
import os

from fairseq_compat.patches import wrap

BROKEN = r"def _torch_persistent_save\("

ATTEMPTS = 3


def not_saved(path: str, error: BaseException) -> OSError:
    """Return the error about a checkpoint that could not be written, with the remedy."""
    return OSError(
        f"checkpoint {path} was not saved: free space in its folder, or choose another --save-dir, and start the same "
        f"command again ({error})"
    )


def save_from_start(save, content, file) -> None:
    """Call ``save(content, file)`` up to three times, each time from the beginning of the emptied file."""
    start = None
    with contextlib.suppress(OSError, ValueError):  # ValueError: iopath's asynchronous files
        start = file.tell()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            save(content, file)
            return
        except Exception as error:
            if is_interrupted(error):
                raise KeyboardInterrupt from None
            if attempt == ATTEMPTS or start is None:
                raise
            file.seek(start)
            file.truncate()


def is_interrupted(error: BaseException | None) -> bool:
    """Return True if torch's writer, which closes its file after Ctrl-C, has turned Ctrl-C into this error."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def patch(module):
    torch = module.torch
    module._torch_persistent_save = lambda obj, f: save_from_start(torch.save, obj, f)

    @wrap(module)
    def torch_persistent_save(original, obj, filename, async_write=False):
        try:
            return original(obj, filename, async_write=async_write)
        except (Exception, KeyboardInterrupt) as error:
            with contextlib.suppress(OSError):
                os.remove(f"{filename}.tmp")
            # torch's own writer reports a full disk as a RuntimeError of its zip container
            if isinstance(error, OSError) or "inline_container" in str(error):
                raise not_saved(filename, error) from error
            raise
