"""Executes a module of fairseq with its fixes around it, and remembers what was done."""

from __future__ import annotations

import enum
import importlib
import os
import re
import sys
from contextlib import ExitStack
from types import ModuleType

from fairseq_compat.hook import FIXES

DISABLE = "FAIRSEQ_COMPAT_DISABLE"
#: fixes of which a process of this run has said that they do not know this fairseq: its children need not say it again
TOLD = "FAIRSEQ_COMPAT_TOLD"

# fix -> modules of this process that it was applied to
APPLIED: dict[str, set[str]] = {}


def fix_names() -> list[str]:
    """All fixes in the order of the table."""
    return list(dict.fromkeys(name for names in FIXES.values() for name in names))


def load_fix(name: str) -> ModuleType:
    """The module of a fix.

    It has ``needed()`` (do the versions of Python and the libraries ask for it?), ``REASON``, the context manager
    ``patching(module)``, and regular expressions for the source of the modules it acts on: ``BROKEN``, the code that it
    changes, and maybe ``MENDED``, by which a fairseq is known that has no such code and does not need the fix.
    """
    return importlib.import_module(f"fairseq_compat.fixes.{name}")


def disabled() -> set[str]:
    """The fixes switched off by the environment variable (names separated by commas, or ``all``).

    Raises:
        ValueError: the variable names a fix that does not exist.
    """
    chosen = {name.strip() for name in os.environ.get(DISABLE, "").split(",")} - {""}
    if "all" in chosen:
        return set(fix_names())
    unknown = sorted(chosen - set(fix_names()))
    if unknown:
        raise ValueError(
            f"{DISABLE} names what is no fix: {', '.join(unknown)}; use 'all', or names that "
            "python -m fairseq_compat lists"
        )
    return chosen


class Verdict(enum.Enum):
    """What a fix has to do with the source of a module."""

    APPLIES = "applies"
    MENDED = "does not apply"
    UNKNOWN = "unknown"


def verdict(fix: ModuleType, source: str | None) -> Verdict:
    """Does this source have what the fix changes? None: a module without source."""
    if source is None:
        return Verdict.UNKNOWN
    if re.search(fix.BROKEN, source, re.MULTILINE):
        return Verdict.APPLIES
    mended = getattr(fix, "MENDED", None)
    return Verdict.MENDED if mended is not None and re.search(mended, source, re.MULTILINE) else Verdict.UNKNOWN


def read_source(path: str | None) -> str | None:
    """The text of a Python file; None if there is none."""
    if not path or not path.endswith(".py"):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def _say_unknown(name: str, module: ModuleType) -> None:
    told = os.environ.get(TOLD, "").split(",")
    if name not in told:
        os.environ[TOLD] = ",".join(filter(None, [*told, name]))
        print(
            f"fairseq_compat: this fairseq is unknown to the fix {name}, which leaves {module.__name__} as it is "
            f"({getattr(module, '__file__', None)}); python -m fairseq_compat lists what is active",
            file=sys.stderr,
        )


def execute(module: ModuleType, loader, fixes: tuple[str, ...]) -> None:
    """Execute ``module`` with its real ``loader`` inside the fixes that are needed and not switched off.

    A fix that finds neither the code that it changes nor the mended one says so once and leaves the module alone.
    """
    off = disabled()
    assert module.__spec__ is not None  # an import system made this module
    module.__loader__ = module.__spec__.loader = loader  # nothing of ours stays behind
    source = read_source(module.__spec__.origin)
    with ExitStack() as stack:
        for name in fixes:
            fix = load_fix(name)
            if name in off or not fix.needed():
                continue
            found = verdict(fix, source)
            if found is Verdict.APPLIES:
                stack.enter_context(fix.patching(module))
                APPLIED.setdefault(name, set()).add(module.__name__)
            elif found is Verdict.UNKNOWN:
                _say_unknown(name, module)
        loader.exec_module(module)
