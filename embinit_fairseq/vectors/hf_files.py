"""Small text and JSON files of a Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import VectorFileError


def read_text(file: Path) -> str:
    """The text of a UTF-8 file; VectorFileError if it is not."""
    try:
        return file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise VectorFileError(f"{file}: not UTF-8 at byte {error.start}; download it again") from error
    except OSError as error:
        raise VectorFileError(f"{file}: cannot be read ({error.strerror}); check its permissions") from error


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file; VectorFileError if there is none."""
    try:
        content = json.loads(read_text(file))
    except (json.JSONDecodeError, RecursionError) as error:
        raise VectorFileError(f"{file}: not JSON ({error}); download it again") from error
    if not isinstance(content, dict):
        raise VectorFileError(f"{file}: not a JSON object; download it again")
    return content


def read_optional_json(file: Path) -> dict[str, Any]:
    """As `read_json`, but an empty object where the file does not exist."""
    return read_json(file) if file.is_file() else {}
