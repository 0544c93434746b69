"""Execute a module of fairseq together with its fixes, and remember which fixes were applied."""

from __future__ import annotations

import enum
import importlib
import os
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType

from fairseq_compat.hook import FIXES
from fairseq_compat.refusals import show_as_lines

#: environment variable with the fixes to switch off
DISABLE = "FAIRSEQ_COMPAT_DISABLE"
#: environment variable with the fixes about which a process of this run has printed the line of `_print_unknown`
PRINTED = "FAIRSEQ_COMPAT_TOLD"

#: fix -> modules of this process to which it was applied
APPLIED: dict[str, set[str]] = {}


def fix_names() -> list[str]:
    """Return all fixes in the order of `FIXES`."""
    return list(dict.fromkeys(name for names in FIXES.values() for name in names))


def load_fix(name: str) -> ModuleType:
    """Return the module of a fix; `fairseq_compat.fixes` says what it contains."""
    return importlib.import_module(f"fairseq_compat.fixes.{name}")


def is_needed(fix: ModuleType) -> bool:
    """Return True if the installed versions of Python and the libraries need a fix."""
    return not hasattr(fix, "needed") or fix.needed()


def patch_of(fix: ModuleType, module: str) -> Callable[[ModuleType], None] | None:
    """Return the function by which a fix changes a module of this name; None if it acts only while modules execute."""
    patches: dict[str, Callable[[ModuleType], None]] = getattr(fix, "PATCHES", {})
    return patches.get(module) or getattr(fix, "patch", None)


def disabled() -> set[str]:
    """Return the fixes in the environment variable `DISABLE` (names separated by commas, or ``all``).

    Raises:
        ValueError: the variable contains a name that is not a fix.
    """
    names = {name.strip() for name in os.environ.get(DISABLE, "").split(",")} - {""}
    if "all" in names:
        return set(fix_names())
    unknown = sorted(names - set(fix_names()))
    if unknown:
        raise ValueError(
            f"{DISABLE}: {', '.join(unknown)} is not a fix; use 'all', or names that python -m fairseq_compat lists"
        )
    return names


class Verdict(enum.Enum):
    """Name the relation between the source of a module and a fix."""

    APPLIES = "applies"
    FIXED = "does not apply"
    UNKNOWN = "unknown"


def verdict(fix: ModuleType, source: str | None) -> Verdict:
    """Return whether a source has the code that a fix changes; source: None for a module without source."""
    if source is None:
        return Verdict.UNKNOWN
    if re.search(fix.BROKEN, source, re.MULTILINE):
        return Verdict.APPLIES
    fixed = getattr(fix, "FIXED", None)
    return Verdict.FIXED if fixed is not None and re.search(fixed, source, re.MULTILINE) else Verdict.UNKNOWN


def read_source(path: str | None) -> str | None:
    """Return the text of a Python file; None if `path` is not a readable Python file."""
    if not path or not path.endswith(".py"):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def _print_unknown(name: str, module: ModuleType) -> None:
    """Print once per run, its child processes included, that a fix leaves a module as it is."""
    printed = os.environ.get(PRINTED, "").split(",")
    if name not in printed:
        os.environ[PRINTED] = ",".join(filter(None, [*printed, name]))
        print(
            f"fairseq_compat: this fairseq is unknown to the fix {name}, which leaves {module.__name__} as it is "
            f"({getattr(module, '__file__', None)}); python -m fairseq_compat lists what is active",
            file=sys.stderr,
        )


def execute(module: ModuleType, loader, names: tuple[str, ...]) -> None:
    """Execute `module` with its real `loader`, and apply its fixes that are needed and not switched off."""
    show_as_lines()
    off = disabled()
    assert module.__spec__ is not None  # an import system made this module
    module.__loader__ = module.__spec__.loader = loader  # no trace of the hook remains
    source = read_source(module.__spec__.origin)
    fixes = {}
    for name in names:
        fix = load_fix(name)
        if name in off or not is_needed(fix):
            continue
        state = verdict(fix, source)
        if state is Verdict.APPLIES:
            fixes[name] = fix
        elif state is Verdict.UNKNOWN:
            _print_unknown(name, module)
    with ExitStack() as stack:
        for fix in fixes.values():
            if hasattr(fix, "executing"):
                stack.enter_context(fix.executing(module))
        loader.exec_module(module)
    for name, fix in reversed(fixes.items()):  # of several wrappers of a function the first fix is the outermost
        if (patch := patch_of(fix, module.__name__)) is not None:
            patch(module)
        APPLIED.setdefault(name, set()).add(module.__name__)
