"""Versions of installed distributions, read from their metadata (importing torch to ask for it would cost seconds)."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def installed(distribution: str) -> tuple[int, int] | None:
    """(major, minor) of an installed distribution; None if it is missing."""
    try:
        found = version(distribution)
    except PackageNotFoundError:
        return None
    match = re.match(r"(\d+)\.(\d+)", found)
    return (int(match[1]), int(match[2])) if match else None


def at_least(distribution: str, major: int, minor: int) -> bool:
    """Is the distribution installed in this version or a later one?"""
    found = installed(distribution)
    return found is not None and found >= (major, minor)
