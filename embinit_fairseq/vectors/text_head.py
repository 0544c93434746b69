"""What the first lines of a text file of vectors say: header, width, separator."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from embinit_fairseq.errors import DimensionError, VectorFileError, counted
from embinit_fairseq.vectors.parse import parse_number

BOM = b"\xef\xbb\xbf"
_BLANKS = b" \t\r\n"
#: Enough lines to see through a few broken ones or words with blanks; read to the end if the file is smaller.
HEAD_LINES = 32
#: No line of a vector file is longer: 50,000 numbers in full. Keeps a binary file from being read as one line.
LONGEST_LINE = 1 << 20


@dataclass(frozen=True)
class TextHead:
    """rows: V as the header announces it, None without header; dim: D; separator: what follows the word."""

    rows: int | None
    dim: int
    separator: bytes


def fields(line: bytes) -> list[bytes]:
    """The fields of a line; runs of blanks and tabs separate, other white space belongs to the words."""
    return [field for field in line.strip(_BLANKS).replace(b"\t", b" ").split(b" ") if field]


def header_of(line: bytes) -> tuple[int, int] | None:
    """(V, D) if the line is a word2vec header, else None."""
    found = fields(line)
    if len(found) == 2 and all(field.isdigit() and len(field) < 19 for field in found):
        return int(found[0]), int(found[1])
    return None


def numeric_tail(line: bytes) -> int:
    """How many fields at the line's end are numbers, the first field (part of the word in any case) left out."""
    count = 0
    for field in reversed(fields(line)[1:]):
        if parse_number(field) is None:
            break
        count += 1
    return count


def _widths(lines: list[bytes]) -> Counter[int]:
    return Counter(width for width in map(numeric_tail, lines) if width)


def inspect_head(path: str, lines: list[bytes], header: bool | None, dim: int | None) -> TextHead:
    """Find out header, width and separator from the file's first lines (BOM removed).

    header: whether there is one, None to find out. dim: the expected D. Raises VectorFileError if the lines are no
    vectors, DimensionError if D is not the expected one.
    """
    if not any(line.strip(_BLANKS) for line in lines):
        raise VectorFileError(f"{path}: the file is empty. Download it again or correct --embed-init-path.")
    announced = header_of(lines[0]) if header is not False else None
    if header and announced is None:
        raise VectorFileError(
            f"{path}:1: no header 'ROWS DIM' as word2vec text has. Use --embed-init-format glove for a file without."
        )
    body = lines[1:] if announced else lines
    widths = _widths(body)
    if not widths:
        what = "no vectors follow the header" if announced else "the first lines are no vectors (word, then numbers)"
        raise VectorFileError(f"{path}: {what}. Check the file, or name its format with --embed-init-format.")
    width = _decide(path, widths, announced, dim)
    return TextHead(announced[0] if announced else None, width, _separator(body, width))


def _decide(path: str, widths: Counter[int], announced: tuple[int, int] | None, dim: int | None) -> int:
    """D: announced, expected, or else the most frequent one; the smaller of two as frequent (words with numbers)."""
    most = max(widths.values())
    usual = min(width for width, count in widths.items() if count == most)
    if announced and announced[1] != usual and not widths[announced[1]]:
        raise VectorFileError(
            f"{path}:1: the header announces {counted(announced[1], 'number')} a line, but line 2 ff. have {usual}. "
            "The file is damaged: download it again, or correct its header."
        )
    found = announced[1] if announced else usual
    if dim is None or dim == found or (not announced and dim < usual and dim == min(widths)):
        return found if dim is None else dim
    raise dimension_error(path, found, dim)


def dimension_error(path: str, found: int, expected: int) -> DimensionError:
    """The error for vectors of another width than the model's table."""
    return DimensionError(
        f"{path}: the vectors have {counted(found, 'dimension')}, expected {expected}. Vectors are never cut or "
        f"padded: set --encoder-embed-dim {found} or --decoder-embed-dim {found} (the slot's; transformer_lm: "
        f"--decoder-input-dim {found} too; Duo: --encoder-dim-s, --encoder-dim-p and so on), or choose a file with "
        f"{counted(expected, 'dimension')}."
    )


def _separator(body: list[bytes], dim: int) -> bytes:
    """A tab if that is what most words end with, else a blank."""
    tabs = blanks = 0
    for line in body:
        text = line.strip(_BLANKS)
        pieces = text.replace(b"\t", b" ").rsplit(b" ", dim)
        if len(pieces) == dim + 1:
            tabs += text[len(pieces[0]) : len(pieces[0]) + 1] == b"\t"
            blanks += text[len(pieces[0]) : len(pieces[0]) + 1] == b" "
    return b"\t" if tabs > blanks else b" "
