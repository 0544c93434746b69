"""Executes a module of fairseq with its fixes around it, and remembers what was done."""

from __future__ import annotations

import importlib
import os
from contextlib import ExitStack
from types import ModuleType

from fairseq_compat.hook import FIXES

DISABLE = "FAIRSEQ_COMPAT_DISABLE"

# fix -> modules of this process that it was applied to
APPLIED: dict[str, set[str]] = {}


def fix_names() -> list[str]:
    """All fixes in the order of the table."""
    return list(dict.fromkeys(name for names in FIXES.values() for name in names))


def load_fix(name: str) -> ModuleType:
    """The module of a fix: it has ``needed()``, ``REASON`` and the context manager ``patching(module)``."""
    return importlib.import_module(f"fairseq_compat.fixes.{name}")


def disabled() -> set[str]:
    """The fixes switched off by the environment variable (names separated by commas, or ``all``).

    Raises:
        ValueError: the variable names a fix that does not exist.
    """
    chosen = {name.strip() for name in os.environ.get(DISABLE, "").split(",")} - {""}
    if "all" in chosen:
        return set(fix_names())
    unknown = chosen - set(fix_names())
    if unknown:
        raise ValueError(f"{DISABLE} names unknown fixes {sorted(unknown)}; use 'all' or some of {fix_names()}")
    return chosen


def execute(module: ModuleType, loader, fixes: tuple[str, ...]) -> None:
    """Execute ``module`` with its real ``loader`` inside the fixes that are needed and not switched off."""
    off = disabled()
    assert module.__spec__ is not None  # an import system made this module
    module.__loader__ = module.__spec__.loader = loader  # nothing of ours stays behind
    with ExitStack() as stack:
        for name in fixes:
            fix = load_fix(name)
            if name not in off and fix.needed():
                stack.enter_context(fix.patching(module))
                APPLIED.setdefault(name, set()).add(module.__name__)
        loader.exec_module(module)
