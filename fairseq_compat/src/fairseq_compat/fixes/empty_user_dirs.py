"""A --user-dir without a plugin is imported silently; one that is installed is refused, the first of two is ignored.

Symptom: ``--user-dir NAME`` of a plugin that pip installed fails in every folder but one: fairseq accepts paths only.
    A folder without code, such as the clone around a plugin, is imported without complaint (as a namespace package),
    and ``--arch`` is then an invalid choice. Of ``--user-dir A --user-dir B`` the first is ignored.
Where: fairseq/utils.py:464 (``import_user_module``), fairseq/options.py:231 (``get_parser``).
Remedy: a name that is no folder but an importable package is that package. A folder that can register nothing raises
    an error that names the folder and the packages in it. ``--user-dir A:B``, or the option given twice, are two
    plugins.
"""

from __future__ import annotations

import argparse
import importlib.util
import os

from fairseq_compat.patches import wrap

BROKEN = r"def (import_user_module|get_parser)\("


def folder_of_package(name: str) -> str | None:
    """Return the folder of the importable package `name`, None if there is none."""
    try:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
    except (ImportError, ValueError):
        return None
    return os.path.dirname(spec.origin) if spec and spec.submodule_search_locations and spec.origin else None


def resolved(module, user_dir: str) -> str:
    """Return the folder of a value of ``--user-dir``.

    fairseq looks in the working directory, in its own package and next to it; an installed package comes last.

    Raises:
        ImportError: there is no such folder and no such package, or the folder has neither code nor models nor tasks.
    """
    here = os.path.dirname(module.__file__)
    places = [os.path.abspath(user_dir), os.path.join(here, user_dir), os.path.join(here, "..", user_dir)]
    folder = next((place for place in places if os.path.exists(place)), None) or folder_of_package(user_dir)
    if folder is None:
        installed = folder_of_package(os.path.basename(user_dir))
        remedy = f"did you mean {installed}?" if installed else "check the path, or install the plugin of that name"
        raise ImportError(f"--user-dir {user_dir}: no such folder and no such package; {remedy}")
    if os.path.isdir(folder) and not {"__init__.py", "models", "tasks"} & set(os.listdir(folder)):
        paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.isidentifier()]
        packages = [path for path in paths if os.path.isfile(os.path.join(path, "__init__.py"))]
        remedy = f"did you mean {' or '.join(packages)}?" if packages else "give the folder of the plugin's package"
        raise ImportError(f"--user-dir {folder}: no plugin, it has neither __init__.py nor models or tasks: {remedy}")
    return os.path.normpath(folder)


class Joined(argparse.Action):
    """Join the values of a repeated option into one value."""

    def __call__(self, parser, namespace, value, option_string=None):
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, value if before in (None, value) else f"{before}{os.pathsep}{value}")


def patch_options(module) -> None:
    @wrap(module)
    def get_parser(original, *args, **options):
        first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        first.add_argument("--user-dir", action=Joined)
        module.utils.import_user_module(first.parse_known_args()[0])
        parser = original(*args, **options)
        for action in parser._actions:
            if "--user-dir" in action.option_strings:
                action.__class__ = Joined
        return parser


def patch_import(module) -> None:
    @wrap(module)
    def import_user_module(original, args):
        user_dir = getattr(args, "user_dir", None)
        if user_dir is None:
            return
        names = [user_dir] if os.path.exists(user_dir) else user_dir.split(os.pathsep)
        for folder in [resolved(module, name) for name in names]:
            # the configuration, and so the checkpoint, has the user's spelling
            original(argparse.Namespace(user_dir=folder))


PATCHES = {"fairseq.options": patch_options, "fairseq.utils": patch_import}
