"""How every command prints its record with --json."""

from __future__ import annotations

import json
import math
import sys
from typing import Any


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
