"""Analogy questions in the format of word2vec's `questions-words.txt`.

A line `: name` opens a section; every other line holds four words, `a b c d`: a is to b as c is to d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embinit_fairseq.errors import DataError, counted

#: The section of questions that stand before the first `: name` line.
UNNAMED = "(no section)"


@dataclass(frozen=True)
class Questions:
    """Q questions in file order.

    sections: names, in file order. section: (Q,) int64, which section a question is in. words: Q tuples (a, b, c, d).
    """

    path: str
    sections: list[str]
    section: np.ndarray
    words: list[tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.words)

    def vocabulary(self) -> set[str]:
        """The distinct words of all questions."""
        return {word for question in self.words for word in question}

    def rows(self, words: Sequence[str]) -> np.ndarray:
        """(Q, 4) int64: the row of each question word in `words`; -1 where it has none, the first of duplicates."""
        row_of: dict[str, int] = {}
        for row, word in enumerate(words):
            row_of.setdefault(word, row)
        found = [[row_of.get(word, -1) for word in question] for question in self.words]
        return np.asarray(found, dtype=np.int64).reshape(-1, 4)


def read_questions(path: str, lower: bool = True) -> Questions:
    """Read a questions-words file; `lower` folds the questions to lower case, as uncased vectors need it.

    Raises DataError (file and line) for a question without exactly four words, for a file without questions and for
    bytes that are not UTF-8; OSError if the file cannot be opened.
    """
    sections: list[str] = []
    section: list[int] = []
    words: list[tuple[str, ...]] = []
    with open(path, encoding="utf-8") as lines:
        try:
            for number, line in enumerate(lines, start=1):
                fields = (line.lower() if lower else line).split()
                if line.startswith(":"):
                    sections.append(line[1:].strip())
                elif fields:
                    _check(path, number, fields)
                    if not sections:
                        sections.append(UNNAMED)
                    section.append(len(sections) - 1)
                    words.append(tuple(fields))
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 text ({error.reason}); convert it, e.g. with iconv") from error
    if not words:
        raise DataError(f"{path}: no questions; expected lines of four words, as in word2vec's questions-words.txt")
    return Questions(path, sections, np.asarray(section, dtype=np.int64), words)


def _check(path: str, number: int, fields: list[str]) -> None:
    if len(fields) != 4:
        raise DataError(
            f"{path}, line {number}: {counted(len(fields), 'word')}, a question has four ('a b c d') and a section "
            "line starts with ':'; correct or remove the line"
        )
