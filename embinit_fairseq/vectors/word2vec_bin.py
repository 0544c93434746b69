"""word2vec's binary format: `V D` and a newline, then V times word, blank, D little-endian float32 [, newline].

Letters: V rows, D columns.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from embinit_fairseq.errors import OptionError, VectorFileError, counted
from embinit_fairseq.vectors.binary import RecordScan, check_dimension, check_finite
from embinit_fairseq.vectors.compressed import open_bytes
from embinit_fairseq.vectors.table import WIDEST, Origin, VectorTable, Wanted

_LONGEST_HEADER = 100  # bytes


class Word2VecBinary:
    """A `.bin` file of word2vec, gensim and others; may be packed (gz, bz2, xz, zip).

    dim: the dimension that is needed (None: any). strict: refuse words that are not UTF-8 instead of counting them.
    Raises VectorFileError for a file that is none, DimensionError for another dimension.
    """

    format = "word2vec_bin"

    def __init__(self, path: str, dim: int | None = None, strict: bool = False) -> None:
        self.path = os.fspath(path)
        self.strict = strict
        with open_bytes(self.path) as stream:
            self.rows, self.dim = self._header(stream.readline(_LONGEST_HEADER))
        check_dimension(self.path, self.dim, dim)

    def _header(self, line: bytes) -> tuple[int, int]:
        if not line:
            raise VectorFileError(f"{self.path}: the file is empty. Download or export it again.")
        fields = line.split()
        if not line.endswith(b"\n") or len(fields) != 2 or not all(field.isdigit() for field in fields):
            raise VectorFileError(
                f"{self.path}:1: no header with the numbers of rows and columns ({line[:40]!r}): no word2vec binary. "
                "Name the file's format with --embed-init-format."
            )
        rows, dim = int(fields[0]), int(fields[1])
        if not rows or not 0 < dim <= WIDEST:
            raise VectorFileError(
                f"{self.path}:1: the header announces {rows} rows of {dim} columns: the file is damaged or of another "
                "format. Download it again or name its format with --embed-init-format."
            )
        return rows, dim

    def read(self, wanted: Wanted | None = None) -> VectorTable:
        """The wanted rows (None: all), in the file's order."""
        words: dict[str, None] = {}
        vectors = bytearray()
        duplicates = 0
        with open_bytes(self.path) as stream:
            stream.readline(_LONGEST_HEADER)
            scan = RecordScan(self.path, stream, self.rows, b" ", 4 * self.dim, wanted, self.strict)
            for _, word, vector in scan:
                if word in words:
                    duplicates += 1
                else:
                    words[word] = None
                    vectors += vector
            behind = (scan.rest + stream.read(1 << 16)).strip()
        self._check_fit(scan.broken, len(behind))
        # A view of the bytearray: no second copy. On a big-endian machine astype turns the bytes around.
        matrix = np.frombuffer(vectors, dtype="<f4").astype(np.float32, copy=False).reshape(len(words), self.dim)
        check_finite(self.path, list(words), matrix)
        origin = Origin(self.path, self.format, self.rows, self.dim, duplicates=duplicates, broken_lines=scan.broken)
        return VectorTable(list(words), matrix, origin)

    def _check_fit(self, broken: int, behind: int) -> None:
        """Raise VectorFileError if the header cannot be right: bytes left over, or words that are mostly no text."""
        if behind:
            raise VectorFileError(
                f"{self.path}: more bytes follow the {counted(self.rows, 'row')} of {self.dim} columns that its header "
                "announces. The header is wrong: export the file again."
            )
        if 2 * broken > self.rows:
            raise VectorFileError(
                f"{self.path}: {broken} of {self.rows} words are not UTF-8 text: the header's number of columns "
                f"({self.dim}) is wrong, or the file has another encoding or format. Export it again."
            )

    def compose(self, surfaces: Sequence[str]) -> dict[str, np.ndarray]:
        """word2vec knows no sub-words: OptionError."""
        raise OptionError(
            f"{self.path}: a word2vec file has no sub-word vectors for --embed-init-oov subword. Use a fastText .bin "
            "or a Hugging Face directory, or choose xavier, mean, gaussian or zeros."
        )
