"""Types of options, written as Python writes them today.

Symptom: a plugin's configuration with ``width: int | None = None``: ``TypeError: ... is not callable``; on Python 3.14
    ``import fairseq`` itself, for there ``Optional[int]`` is the same type. With ``lengths: list[int]`` the option
    ``--lengths 1,2`` becomes ``["1", ",", "2"]``.
Versions: all.
Where: fairseq/dataclass/utils.py:40 (``interpret_dc_type``, which looks for the names that types had).
Remedy: the type beside None is found by what a union has; ``list[int]`` is taken for ``typing.List[int]``.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import functools
import types
import typing
from contextlib import contextmanager
from typing import Any

REASON = "options of the type `int | None` are not understood, on Python 3.14 those of fairseq neither"
BROKEN = r'startswith\("typing\.Optional"\)'

OLD_NAMES: dict[Any, Any] = {list: typing.List, tuple: typing.Tuple}  # noqa: UP006  # fairseq looks for these names


def needed() -> bool:
    return True


@contextmanager
def patching(module):
    yield
    original = module.interpret_dc_type

    @functools.wraps(original)
    def interpret_dc_type(field_type):
        if typing.get_origin(field_type) in (typing.Union, types.UnionType):
            others = [one for one in typing.get_args(field_type) if one is not type(None)]
            if len(others) == 1:
                field_type = others[0]
        old = OLD_NAMES.get(typing.get_origin(field_type))
        return old[typing.get_args(field_type)] if old else original(field_type)

    module.interpret_dc_type = interpret_dc_type
