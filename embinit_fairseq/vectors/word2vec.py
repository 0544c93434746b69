"""Read word2vec's binary format: `V D` and a newline, then V times word, space, D little-endian float32 [, newline].

Letters: V rows, D columns.
"""

from __future__ import annotations

import numpy as np

from embinit_fairseq.errors import VectorFileError, counted
from embinit_fairseq.vectors.binary_records import RecordScan
from embinit_fairseq.vectors.compressed import open_bytes
from embinit_fairseq.vectors.table import (
    FIRST_ROWS,
    Origin,
    VectorReader,
    VectorTable,
    Wanted,
    check_dimension,
    check_finite,
)

#: bytes of the header
_LONGEST_HEADER = 100


class Word2VecBinary(VectorReader):
    """A `.bin` file of word2vec, gensim and others, plain or compressed.

    Args:
        path: the file.
        dim: the expected D (None: any).
        strict: refuse words that are not UTF-8 instead of counting them.
    """

    format = "word2vec_bin"

    def __init__(self, path: str, dim: int | None = None, strict: bool = False) -> None:
        self.path = path
        self.strict = strict
        with open_bytes(path) as stream:
            line = stream.readline(_LONGEST_HEADER)
        fields = line.split()
        numbers = [int(field) for field in fields if field.isdigit()]
        if not line.endswith(b"\n") or not len(fields) == len(numbers) == 2 or 0 in numbers:
            raise VectorFileError(
                f"{path}:1: no header with the numbers of rows and columns ({line[:40]!r}), so not a word2vec binary; "
                "name the file's format, or download it again"
            )
        self.rows, self.dim = numbers
        check_dimension(path, self.dim, dim)

    def first_words(self) -> list[str]:
        """Return the words of the first rows."""
        with open_bytes(self.path) as stream:
            stream.readline(_LONGEST_HEADER)
            scan = RecordScan(self.path, stream, min(self.rows, FIRST_ROWS), b" ", 4 * self.dim, None, False)
            return [word for _, word, _ in scan]

    def read(self, wanted: Wanted | None = None) -> VectorTable:
        """Return the wanted rows (None: all), in the file's order."""
        words: dict[str, None] = {}
        vectors, duplicates = bytearray(), 0
        with open_bytes(self.path) as stream:
            stream.readline(_LONGEST_HEADER)
            scan = RecordScan(self.path, stream, self.rows, b" ", 4 * self.dim, wanted, self.strict)
            for _, word, vector in scan:
                if word in words:
                    duplicates += 1
                else:
                    words[word] = None
                    vectors += vector
            rest = (scan.rest + stream.read(1 << 16)).strip()
        if rest or 2 * scan.broken > self.rows:
            fault = "more bytes follow" if rest else f"{scan.broken} words are not UTF-8 text among"
            raise VectorFileError(
                f"{self.path}: {fault} the {counted(self.rows, 'row')} of {self.dim} columns that its header announces:"
                " the header is wrong, or the file has another encoding or format; export it again"
            )
        # A view of the bytearray: no second copy. On a big-endian machine astype turns the bytes around.
        matrix = np.frombuffer(vectors, dtype="<f4").astype(np.float32, copy=False).reshape(len(words), self.dim)
        check_finite(self.path, list(words), matrix)
        origin = Origin(self.path, self.format, self.rows, self.dim, duplicates=duplicates, broken_lines=scan.broken)
        return VectorTable(list(words), matrix, origin)
