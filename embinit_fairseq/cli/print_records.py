"""Read numbers in options, turn options into a request, and print a record as JSON or as text with aligned columns."""

from __future__ import annotations

import argparse
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def at_least(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Return a type for argparse: an integer from `least` to `most`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            limits = f"from {least} to {most:,}" if most < math.inf else f"of {least} or more"
            raise argparse.ArgumentTypeError(f"{text}: give an integer {limits}")
        return value

    return read


def request_of(kind: Callable[..., T], args: argparse.Namespace, **more: Any) -> T:
    """Return a request (a dataclass) whose fields are the options of the same names; more: fields of other names."""
    names = inspect.signature(kind).parameters
    return kind(**{name: value for name, value in vars(args).items() if name in names} | more)


def show(record: dict[str, Any], render: Callable[[dict[str, Any]], str], as_json: bool) -> None:
    """Print a record, as JSON or as the text that `render` makes of it."""
    if as_json:
        print_json(record)
    else:
        print(render(record))


def print_json(record: dict[str, Any]) -> None:
    """Print one line of standard JSON, in ASCII unless the output is UTF-8; NaN and infinity become null."""
    unicode = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    print(json.dumps(_finite(record), ensure_ascii=not unicode, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(rows: Iterable[Sequence[str]], gap: int = 3) -> list[str]:
    """Return rows of equal length as lines with aligned columns, the first to the left and the others to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows)]
    aligned = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows)
    return [(" " * gap).join(cells).rstrip() for cells in aligned]


def number(value: float | None, form: str = ".4g") -> str:
    """Return a number as text, a dash if it does not exist (the sigma of a single value)."""
    return "-" if value is None or not math.isfinite(value) else format(value, form)
