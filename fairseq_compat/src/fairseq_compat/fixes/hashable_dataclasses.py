"""Dataclass instances as defaults of fairseq's own configuration.

Symptom: ``import fairseq`` raises ``ValueError: mutable default <class '...CommonConfig'> for field common is not
    allowed: use default_factory``.
Versions: Python >= 3.11, which asks for a hashable default; fairseq 0.12.2.
Where: fairseq/dataclass/configs.py:1106 (FairseqConfig);
    fairseq/models/transformer/transformer_config.py:114, 120, 192.
Remedy: the classes of these two modules get ``unsafe_hash=True``. ``default_factory`` would not do: fairseq reads
    the ``default`` of the fields. Classes of other modules, those of user plugins among them, are left alone.
Upstream: fairseq issue 5012 (open); Python: "What's New In Python 3.11", dataclasses.
Can go: with Python < 3.11, or with a fairseq that uses hashable defaults.
"""

from __future__ import annotations

import dataclasses
import sys
from contextlib import contextmanager

REASON = "Python >= 3.11 refuses fairseq's dataclass defaults"


def needed() -> bool:
    return sys.version_info >= (3, 11)


@contextmanager
def patching(module):
    original = dataclasses.dataclass

    def dataclass(cls=None, /, **options):
        if cls is None:
            return lambda decorated: dataclass(decorated, **options)
        if cls.__module__ == module.__name__:
            options.setdefault("unsafe_hash", True)
        return original(cls, **options)

    dataclasses.dataclass = dataclass
    try:
        yield
    finally:
        dataclasses.dataclass = original
