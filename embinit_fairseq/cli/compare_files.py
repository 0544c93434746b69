"""Result files that are complete under their names, or not there: a reader never sees half of one."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write under a temporary name first, which is gone if that fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Readable, and complete or not there, as by `write_text`."""
    write_text(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
