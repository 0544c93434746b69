"""Data sets without a sentence.

Symptom: a split that ``fairseq-preprocess`` made of an empty file ends with ``ValueError: cannot mmap an empty file``
    and, below, ``AttributeError: 'MMapIndexedDataset' object has no attribute '_bin_buffer_mmap'``; neither names the
    file.
Versions: all.
Where: fairseq/data/indexed_dataset.py:77 (``make_dataset``), called for every split.
Remedy: an error that names the files and what to do.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import functools
import os
from contextlib import contextmanager

REASON = "the error about an empty split names no file"
BROKEN = r"def make_dataset\(path, impl"


def needed() -> bool:
    return True


@contextmanager
def patching(module):
    yield
    original = module.make_dataset

    @functools.wraps(original)
    def make_dataset(path, impl, *args, **kwargs):
        file = module.data_file_path(path)
        if impl == "mmap" and os.path.exists(file) and os.path.getsize(file) == 0:
            raise ValueError(
                f"{file}: no sentence is in it; binarise a text that is not empty, or name another split "
                "(--train-subset, --valid-subset, --gen-subset)"
            )
        return original(path, impl, *args, **kwargs)

    module.make_dataset = make_dataset
