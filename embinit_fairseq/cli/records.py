"""What commands share: options become a request, and its record is shown, for people or with --json."""

from __future__ import annotations

import argparse
import inspect
import json
import math
import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def request_of(kind: Callable[..., T], args: argparse.Namespace, **more: Any) -> T:
    """A request (a dataclass) whose fields are options of the same names; more: those that have other names."""
    names = inspect.signature(kind).parameters
    return kind(**{name: value for name, value in vars(args).items() if name in names} | more)


def show(record: dict[str, Any], render: Callable[[dict[str, Any]], str], as_json: bool) -> None:
    """Print a record, as JSON or as `render` says it."""
    if as_json:
        print_json(record)
    else:
        print(render(record))


def print_json(record: dict[str, Any]) -> None:
    """One line of standard JSON: numbers that are not finite become null, and so that every output can hold it."""
    unicode = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    print(json.dumps(_finite(record), ensure_ascii=not unicode, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
