"""Provide the code of an exported folder, and the program that reads the folder back.

The modules are part of this package. Their text is written into the folder, where they import each other relatively
and need nothing of this package.
"""

from __future__ import annotations

import re
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]
_IMPORT = re.compile(rf"^from {_PACKAGE.name}\.(?:\w+\.)*(\w+) import", re.MULTILINE)


def code_files(*modules: str) -> dict[str, str]:
    """Return modules of this package (`modules.heads`) as files of one folder: name -> text."""
    texts = {}
    for module in modules:
        path = _PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
        texts[path.name] = _IMPORT.sub(r"from .\1 import", path.read_text(encoding="utf-8"))
    return texts
