"""Dictionaries that are not UTF-8.

Symptom: ``Exception: Incorrect encoding detected in dict.txt, please rebuild the dataset``, below a traceback of the
    decoder: neither the line nor what could be done.
Versions: all.
Where: fairseq/data/dictionary.py:241 (``add_from_file``).
Remedy: an error that names the line, and the command that converts the file.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager

REASON = "the error about a dict.txt in Latin-1 names neither its line nor a remedy"
BROKEN = r"Incorrect encoding detected in"


def needed() -> bool:
    return True


def explanation(path: str) -> str | None:
    """What is wrong with the encoding of a file, and the remedy; None if it is UTF-8."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return (
                    f"{path}, line {number}: not UTF-8 text (byte 0x{line[error.start]:x}). If it is Latin-1, convert "
                    "it: iconv -f latin1 -t utf-8 FILE > NEW; and so the text that was binarised with it"
                )
    return None


@contextmanager
def patching(module):
    yield
    dictionary = module.Dictionary
    original = dictionary.add_from_file

    @functools.wraps(original)
    def add_from_file(self, f):
        try:
            return original(self, f)
        except Exception as error:
            if not isinstance(f, str) or not isinstance(error.__context__, UnicodeError):
                raise
            message = explanation(module.PathManager.get_local_path(f))
            raise ValueError(message or str(error)) from None

    dictionary.add_from_file = add_from_file
