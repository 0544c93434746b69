"""Make lines of code that convert files of other tools into .npz; they are not executed here."""

from __future__ import annotations

import os
from typing import Any

#: from d, word -> vector, or words and a matrix in any order, to w and m. Words are a list, word -> row or row -> word;
#: words of Python 2 are bytes.
PAIR = (
    "d = (d.values() if 2 in map(numpy.ndim, d.values()) else ([*d], [*d.values()])) if isinstance(d, dict) else d; "
    "w, m = sorted(d, key=numpy.ndim); "
    "r, w = zip(*sorted(zip(*sorted(([*w], [*w.values()]), key=lambda t: hasattr(t[0], 'join'))))) "
    "if isinstance(w, dict) else (range(len(m)), w); "
    "m = numpy.array(m)[[*r]]; w = [x if isinstance(x, str) else x.decode() for x in w]"
)


def npz_line(code: str, words: str, matrix: str, package: str = "") -> str:
    """Return a command that writes an .npz file, as a template of `with_paths`.

    Args:
        code: statements that read the file.
        words, matrix: expressions for its words and their vectors.
        package: packages that the code imports in addition to NumPy.
    """
    packages = f"numpy, {package}" if package else "numpy"
    return (
        f'convert it: python -c "import {packages}; {code}; numpy.savez({{npz!r}}, words=numpy.array({words}, str), '
        f"matrix=numpy.array({matrix}, 'f4'))\""
    )


def with_paths(remedy: str, path: str, ending: str = ".npz") -> str:
    """Put the paths into a remedy: {path} is the file or folder; {npz} and {vec} are names of a new file."""
    path = path.rstrip(os.sep) or path
    return remedy.format(path=path, npz=path + ending, vec=f"{path}.vec")


def literal(name: Any) -> str:
    """Return a name, or names, as Python code in a template of `with_paths`."""
    return repr(name).replace("{", "{{").replace("}", "}}")
