"""Reads versions of installed distributions from their metadata: importing torch would cost seconds."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def installed(distribution: str) -> tuple[int, int] | None:
    """Return (major, minor) of an installed distribution; None if it is missing."""
    try:
        match = re.match(r"(\d+)\.(\d+)", version(distribution))
    except PackageNotFoundError:
        return None
    return (int(match[1]), int(match[2])) if match else None


def at_least(distribution: str, major: int, minor: int) -> bool:
    """Return True if the distribution is installed in this version or a later one."""
    present = installed(distribution)
    return present is not None and present >= (major, minor)
