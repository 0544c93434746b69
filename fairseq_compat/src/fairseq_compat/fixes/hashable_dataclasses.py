"""Python >= 3.11: ValueError: mutable default ... CommonConfig.

Symptom: ``import fairseq`` raises ``ValueError: mutable default <class '...CommonConfig'> for field common is not
    allowed: use default_factory``; so does the import of a plugin whose configuration has such defaults, fairseq's own
    ``examples/speech_recognition`` among them.
Versions: Python >= 3.11, which asks for a hashable default; fairseq 0.12.2.
Where: fairseq/dataclass/configs.py:1106 (FairseqConfig);
    fairseq/models/transformer/transformer_config.py:114, 120, 192; plugins.
Remedy: ``FairseqDataclass`` and all its subclasses, also in plugins, keep the hash of their base.
    ``default_factory`` would not do: fairseq reads the ``default`` of the fields. Other dataclasses keep
    Python's rules.
Upstream: fairseq issue 5012 (open); Python: "What's New In Python 3.11", dataclasses.
Can go: with Python < 3.11, or with a fairseq that uses hashable defaults.
"""

from __future__ import annotations

import dataclasses
import sys
from contextlib import contextmanager

BROKEN = r"class FairseqDataclass\b"


def needed() -> bool:
    return sys.version_info >= (3, 11)


class KeepsHash(type):
    """Make classes that keep the ``__hash__`` of their base when the decorator ``dataclass`` sets it to None."""

    def __setattr__(cls, name, value):
        if (name, value) != ("__hash__", None):
            super().__setattr__(name, value)


@contextmanager
def executing(module):
    original = dataclasses.dataclass

    def dataclass(cls=None, /, **options):
        if getattr(cls, "__name__", "") == "FairseqDataclass" and cls.__module__ == module.__name__:
            content = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
            return original(KeepsHash(cls.__name__, cls.__bases__, content), unsafe_hash=True, **options)
        return original(cls, **options)

    dataclasses.dataclass = dataclass
    try:
        yield
    finally:
        dataclasses.dataclass = original
