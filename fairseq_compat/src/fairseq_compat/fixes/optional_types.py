"""Plugin options of the types `int | None` and `list[int]` are refused, on Python 3.14 also fairseq's own.

Symptom: a plugin's configuration with ``width: int | None = None``: ``TypeError: ... is not callable``; on Python 3.14
    ``import fairseq`` itself, for there ``Optional[int]`` is the same type. With ``lengths: list[int]`` the option
    ``--lengths 1,2`` becomes ``["1", ",", "2"]``.
Where: fairseq/dataclass/utils.py:40 (``interpret_dc_type``, which looks for the names that types had).
Remedy: of a union with None the other type is taken; ``list[int]`` is taken for ``typing.List[int]``.
"""

from __future__ import annotations

import types
import typing
from typing import Any

from fairseq_compat.patches import wrap

BROKEN = r'startswith\("typing\.Optional"\)'

OLD_NAMES: dict[Any, Any] = {list: typing.List, tuple: typing.Tuple}  # noqa: UP006  # fairseq looks for these names


def patch(module):
    @wrap(module)
    def interpret_dc_type(original, field_type):
        if typing.get_origin(field_type) in (typing.Union, types.UnionType):
            others = [one for one in typing.get_args(field_type) if one is not type(None)]
            if len(others) == 1:
                field_type = others[0]
        old = OLD_NAMES.get(typing.get_origin(field_type))
        return old[typing.get_args(field_type)] if old else original(field_type)
