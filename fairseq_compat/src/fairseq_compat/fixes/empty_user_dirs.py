"""A --user-dir without a plugin is imported without a word.

Symptom: a folder without code, such as the clone around a plugin, is imported without complaint (as a namespace
    package), and what the plugin would have registered is unknown later: ``--arch: invalid choice``, after all names
    there are. The name alone of an installed plugin, from another folder, ends in a ``FileNotFoundError``.
Where: fairseq/utils.py:464 (``import_user_module``).
Remedy: an error that names the folder, and the packages in it, or the folder of the installed plugin of that name. A
    folder that can register anything passes: one with an ``__init__.py``, or with the folders ``models`` or ``tasks``,
    whose files fairseq imports.
"""

from __future__ import annotations

import importlib.util
import os

from fairseq_compat.patches import wrap

BROKEN = r"def import_user_module\("


def check(folder: str) -> None:
    """Raise ImportError for a folder without a plugin."""
    if not os.path.isdir(folder) or {"__init__.py", "models", "tasks"} & set(os.listdir(folder)):
        return
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.isidentifier()]
    packages = [path for path in paths if os.path.isfile(os.path.join(path, "__init__.py"))]
    remedy = f"did you mean {' or '.join(packages)}?" if packages else "give the folder of the plugin's package"
    raise ImportError(f"--user-dir {folder}: no plugin, it has neither __init__.py nor models or tasks: {remedy}")


def installed(folder: str) -> str | None:
    """Return the folder of an installed package with the name of this folder."""
    name = os.path.basename(folder)
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    return os.path.dirname(spec.origin) if spec and spec.origin else None


def patch(module):
    @wrap(module)
    def import_user_module(original, args):
        folder = getattr(args, "user_dir", None) or os.devnull
        check(folder)
        try:
            return original(args)
        except FileNotFoundError as error:
            if os.path.exists(folder) or not installed(folder):
                raise
            raise FileNotFoundError(
                f"--user-dir {folder}: no such folder; did you mean {installed(folder)}?"
            ) from error
