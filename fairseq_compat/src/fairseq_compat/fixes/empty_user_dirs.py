"""A ``--user-dir`` that holds no plugin, such as the clone around it, or that is not there.

Symptom: a folder without code is imported without complaint (as a namespace package), and what the plugin would have
    registered is unknown later: ``--arch: invalid choice``, after all names there are.
Versions: all.
Where: fairseq/utils.py:464 (``import_user_module``).
    The name alone of an installed plugin, from another folder, ends in a ``FileNotFoundError`` without the option.
Remedy: an error that names the folder, and the packages in it, or where the plugin of that name is. A folder that can
    register anything passes: one with an ``__init__.py``, or with the folders ``models`` or ``tasks``, whose files
    fairseq imports.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from contextlib import contextmanager

REASON = "a --user-dir without a plugin is imported without a word"
BROKEN = r"def import_user_module\("


def needed() -> bool:
    return True


def explanation(folder: str) -> str | None:
    """What to say of a folder that registers nothing, or is not there; None for any other."""
    if not os.path.exists(folder):
        return f"--user-dir {folder}: no such folder; {_elsewhere(os.path.basename(folder))}"
    if not os.path.isdir(folder) or any(
        os.path.exists(os.path.join(folder, name)) for name in ("__init__.py", "models", "tasks")
    ):
        return None
    packages = [
        os.path.join(folder, name)
        for name in sorted(os.listdir(folder))
        if name.isidentifier() and os.path.isfile(os.path.join(folder, name, "__init__.py"))
    ]
    meant = f"did you mean {' or '.join(packages)}?" if packages else "give the folder of the plugin's package"
    return f"--user-dir {folder}: no plugin, it has neither __init__.py nor models or tasks: {meant}"


def _elsewhere(name: str) -> str:
    """Where a plugin of this name can be imported from."""
    try:
        found = importlib.util.find_spec(name) if name.isidentifier() else None
    except (ImportError, ValueError):
        found = None
    place = found and found.origin and os.path.dirname(found.origin)
    return f"did you mean {place}?" if place else "check the path"


def place_of(module, user_dir: str) -> str:
    """Where fairseq looks for the folder: as given, in its own package, and beside that."""
    here = os.path.dirname(module.__file__)
    places = [os.path.abspath(user_dir), os.path.join(here, user_dir), os.path.join(here, "..", user_dir)]
    return next((place for place in places if os.path.exists(place)), places[0])


@contextmanager
def patching(module):
    yield
    original = module.import_user_module

    @functools.wraps(original)
    def import_user_module(args):
        words = explanation(place_of(module, getattr(args, "user_dir", None) or os.devnull))
        if words:
            raise ImportError(words)
        return original(args)

    module.import_user_module = import_user_module
