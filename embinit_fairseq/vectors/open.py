"""Open vectors: recognise the format of a file or folder; join several files.

A user may write:

    FILE              one file or folder
    concat:A,B,...    the vectors side by side, D = D_A + D_B + ...
    avg:A,B,...       the mean of the vectors of the files that have the word (Coates and Bollegala 2018)
    concat-l2:...     the same of vectors of length 1, so that each file has the same weight; without it the values
    avg-l2:...        are taken as they are, and vectors of larger scale count for more
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from embinit_fairseq.errors import DimensionError, OptionError, VectorFileError, counted
from embinit_fairseq.io import PathLike, check_is_file
from embinit_fairseq.vectors.compressed import is_zip, open_bytes, split_member, zip_members
from embinit_fairseq.vectors.fairseq_checkpoint import FairseqCheckpoint
from embinit_fairseq.vectors.fasttext import MAGIC, FastTextBinary
from embinit_fairseq.vectors.hf_weights import DEPTHS, WEIGHT_FILES
from embinit_fairseq.vectors.huggingface import HuggingFaceDirectory
from embinit_fairseq.vectors.npz import NpzVectors
from embinit_fairseq.vectors.other_texts import table_of_other_tool, text_of_other_tool
from embinit_fairseq.vectors.other_tools import file_of_other_tool
from embinit_fairseq.vectors.table import FIRST_ROWS, VectorReader
from embinit_fairseq.vectors.text import TextVectors
from embinit_fairseq.vectors.text_lines import BOM, fields, header_of, numeric_tail
from embinit_fairseq.vectors.word2vec import Word2VecBinary


@dataclass(frozen=True)
class Format:
    """A format of vectors.

    Args:
        title: name in help texts.
        reader: called as `reader(path, dim, strict)`.
        has_sides: a file may have several embedding matrices, so that the reader takes a `side` as well.
    """

    title: str
    reader: Callable[..., VectorReader]
    has_sides: bool = False


#: Name -> format, in the order of help texts. To add one: a reader, a line here, and how its content is recognised
#: (`recognise`).
FORMATS = {
    "glove": Format("GloVe", partial(TextVectors, header=False)),
    "word2vec": Format("word2vec or fastText text (.vec)", partial(TextVectors, header=True)),
    "word2vec_bin": Format("word2vec .bin", Word2VecBinary),
    "fasttext_bin": Format("fastText .bin", FastTextBinary),
    "huggingface": Format("a Hugging Face model directory", HuggingFaceDirectory, has_sides=True),
    "fairseq": Format("a fairseq checkpoint with its dict.txt in the same folder", FairseqCheckpoint, has_sides=True),
    "npz": Format("npz", NpzVectors),
}
#: for help texts: everything that vectors may be
SOURCES_HELP = ", ".join(format.title for format in FORMATS.values()) + "; text also as gz, bz2, xz or zip"

#: the magic number that torch.save wrote before torch 1.6
_PICKLE = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
#: bytes that text does not have
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")
#: characters around the digits of Python's lists and NumPy's numbers, and quotes
_CALL = re.compile(rb"[A-Za-z][A-Za-z0-9_.]*\(")
_DECORATION = re.compile(rb"[A-Za-z][A-Za-z0-9_.]*\(|[\"\[\]()]")
#: number of bytes from which a format is recognised
_HEAD = 1 << 20


def open_vectors(
    path: PathLike,
    format: str | None = None,
    dim: int | None = None,
    strict: bool = False,
    side: str | None = None,
) -> VectorReader:
    """Open a file or folder of vectors.

    Args:
        path: a file (text also gz, bz2, xz, a zip archive with one member, or `archive.zip:member`) or a folder.
        format: one of FORMATS, None to recognise it from the content.
        dim: the expected D.
        strict: refuse files with broken lines.
        side: `encoder` or `decoder`: which embedding matrix of a model with two.

    Raises:
        VectorFileError: if the file is missing, cannot be read or is not recognised.
        DimensionError: if D is another one.
        OptionError: if there is no such format.
    """
    path = os.fspath(path)
    if not os.path.isdir(path) or format not in (None, "huggingface"):
        check_is_file(split_member(path)[0], error=VectorFileError, remedy=_remedy_of_missing(path))
    format = format or recognise(path)
    if format not in FORMATS:
        raise OptionError(f"format {format}: no such format; there are: {', '.join(FORMATS)}")
    sides = {"side": side} if FORMATS[format].has_sides else {}
    return FORMATS[format].reader(path, dim, strict, **sides)


def _remedy_of_missing(path: str) -> str:
    """Return the remedy for a missing file; hydra changes into a folder of its own, models have names on a hub."""
    if os.path.isabs(path):
        return "check the path"
    is_name = not os.path.splitext(path)[1]
    hub = "; if it is a name on the Hugging Face hub, download the model and give its folder" if is_name else ""
    return f"check the path from {os.getcwd()}, or give an absolute one{hub}"


def recognise(path: str) -> str:
    """Return the format of a file or folder, from its content; raise VectorFileError if it is none of FORMATS."""
    if os.path.isdir(path):
        _check_is_model(path)
        return "huggingface"
    archive, member = split_member(path)
    if member is None and is_zip(archive):
        names = zip_members(archive)
        if any(name.endswith("/data.pkl") or name == "data.pkl" for name in names):
            return "fairseq"
        if names and all(name.endswith(".npy") for name in names):
            return "npz"
    with open_bytes(path) as stream:
        head = stream.read(_HEAD).removeprefix(BOM)
    if head.startswith(MAGIC):
        return "fasttext_bin"
    if head.startswith(_PICKLE):
        return "fairseq"
    _check_is_vectors(path, head)
    first, *body = head.split(b"\n", 4)
    if len(head) == _HEAD and body:
        body.pop()  # probably incomplete
    widths = [numeric_tail(line) for line in body]
    if header := header_of(first):
        if header[1] in widths or not any(body):
            return "word2vec"
        # A vector of a binary may have a space, a digit and a line break: a line of text that ends with a number.
        if _CONTROL.search(head) or not any(len(fields(line)) > 1 for line in body):
            return "word2vec_bin"
        if any(widths):
            return "word2vec"  # whose header is wrong
    elif any(widths) or (numeric_tail(first) and not any(body)):
        if mistake := text_of_other_tool(head.split(b"\n")[:FIRST_ROWS]):
            raise VectorFileError(f"{path}: {mistake}")
        return "glove"
    raise VectorFileError(f"{path}{_without_numbers(path, [first, *body], header)}")


def _check_is_model(folder: str) -> None:
    """Raise VectorFileError if a folder has files of vectors and no model: gensim-data's, fastText's on the hub."""
    files = [file for depth in ("", *DEPTHS) for file in Path(folder).glob(f"{depth}*") if file.is_file()]
    if not files or any(file.name in WEIGHT_FILES for file in files):
        return
    largest = str(max(files, key=lambda file: file.stat().st_size))
    try:
        format = recognise(largest)
    except VectorFileError:
        return
    if format != "fairseq":  # torch.save also writes files without vectors, such as an adapter's
        raise VectorFileError(f"{folder}: a folder; give a file of vectors in it, such as {largest}")


def _without_numbers(path: str, lines: list[bytes], header: tuple[int, int] | None) -> str:
    """Return the message, after the path, about a text whose first lines do not end with numbers."""
    if remedy := table_of_other_tool(path, lines):
        return remedy
    for number, line in enumerate(lines, 1):
        bare = _DECORATION.sub(b"", line).replace(b",", b" ").replace(b";", b" ")
        if numeric_tail(bare) > 1:
            start = "cat FILE" if number == 1 or header else "tail -n +2 FILE"  # without the names of the columns
            names = " | sed 's/[A-Za-z][A-Za-z0-9_.]*(/(/g'" * bool(_CALL.search(line))
            return (
                f":{number}: commas, semicolons, brackets or names of types between or in the numbers "
                f"({line[:60].decode(errors='replace')!r}); write spaces between the numbers ({start}{names} | tr -d "
                "'\"[]()' | tr ',;' '  ' > NEW) and decimal points in them"
            )
    shown = next((line for line in lines[bool(header) :] if line.strip()), b"")[:60].decode(errors="replace")
    if header:
        return (
            f": its lines, such as {shown!r}, are not a word and the {header[1]} numbers that the header announces; "
            "write them so, with spaces between the numbers, or take another file"
        )
    return f": not recognised as vectors ({shown!r}); name the format ({', '.join(FORMATS)}), or check the path"


def _check_is_vectors(path: str, head: bytes) -> None:
    """Raise VectorFileError, with the remedy, for files that people often have instead."""
    first = head.lstrip().split(b"\n", 1)[0]
    if not first:
        mistake: str | None = "the file is empty; download it again, or check the path"
    elif first.startswith(b"version https://git-lfs.github.com/"):
        mistake = "a Git LFS pointer, not the file itself; fetch that with git lfs pull"
    elif first.lower().startswith((b"<!doctype", b"<html", b"<?xml")) and not numeric_tail(first):
        mistake = "a web page, so the download has failed; download the file again"
    elif head.startswith((b"\xff\xfe", b"\xfe\xff")):
        mistake = "text in UTF-16; convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW"
    elif b"\r" in head.strip() and b"\n" not in head and not _CONTROL.search(head):
        mistake = "its lines end in CR, as on old Macintoshes; convert it: tr '\\r' '\\n' < FILE > NEW"
    else:
        mistake = file_of_other_tool(path, head)
    if mistake:
        raise VectorFileError(f"{path}: {mistake}")


# ---- Several files as one -------------------------------------------------------------------------------------------

_SEVERAL = re.compile(r"(concat|avg)(-l2)?:(.*)", re.DOTALL)


@dataclass(frozen=True)
class SourceSpec:
    """The files that a user names for one embedding matrix; `init.alignment` puts their vectors together.

    text: the user's spelling. files: path and format (None: to be recognised). how: None, "concat" or "avg". unit:
    scale vectors to length 1.
    """

    text: str = field(compare=False)
    files: tuple[tuple[str, str | None], ...]
    how: str | None = None
    unit: bool = False

    @property
    def method(self) -> str | None:
        """Return how several files are joined, as the user writes it: "concat", "avg-l2", ...; None for one file."""
        return self.how and self.how + ("-l2" if self.unit else "")

    @property
    def paths(self) -> list[str]:
        """Return the files, in the user's order."""
        return [path for path, _ in self.files]

    def named(self, name: Callable[[str], str]) -> str:
        """Return the text with each path replaced by `name(path)`."""
        if self.how is None:
            return name(self.paths[0])
        files = ((f"{format}=" if format else "") + name(path).replace(",", ",,") for path, format in self.files)
        return f"{self.method}:{','.join(files)}"


def parse_source(text: str, format: str | None = None) -> SourceSpec:
    """Parse `FILE`, or `concat:A,B` and so on, where each file may be `FORMAT=FILE`; `,,` is a comma inside a name.

    Args:
        text: the user's spelling; `~` is expanded.
        format: format of the files that name none.

    Raises:
        OptionError: if there are fewer than two files.
    """
    several = _SEVERAL.fullmatch(text)
    if several is None:
        return SourceSpec(text, ((os.path.expanduser(text), format),))
    how, unit, rest = several.groups()
    files = [part.replace("\0", ",") for part in rest.replace(",,", "\0").split(",")]
    if len(files) < 2 or "" in files:
        raise OptionError(
            f"{text}: expected at least two files, with commas and no spaces between them ({how}:A,B); a comma inside "
            f"a name is written twice, and a file whose name begins so is ./{how}:..."
        )
    chosen = []
    for file in files:
        name, separator, path = file.partition("=")
        own = name if separator and name in FORMATS else None
        chosen.append((os.path.expanduser(path if own else file), own or format))
    return SourceSpec(text, tuple(chosen), how, unit is not None)


def open_sources(
    spec: SourceSpec, dim: int | None = None, strict: bool = False, side: str | None = None
) -> list[VectorReader]:
    """Open all files; arguments as for `open_vectors`, dim is the D of the embedding matrix.

    Raises:
        VectorFileError: as `open_vectors`.
        DimensionError: unless the dimensions of the files give D.
        OptionError: if vectors of different dimensions are to be averaged.
    """

    own_dim = dim if spec.how is None else None
    readers = [open_vectors(path, format, own_dim, strict, side) for path, format in spec.files]
    if spec.how is None:
        return readers
    dims = [reader.dim for reader in readers]
    named = ", ".join(f"{path} has {counted(number, 'dimension')}" for path, number in zip(spec.paths, dims))
    if spec.how == "avg" and len(set(dims)) > 1:
        raise OptionError(
            f"{spec.text}: only vectors of one dimension can be averaged, but {named}; take files of one dimension, or "
            "put these side by side (concat:)"
        )
    total = sum(dims) if spec.how == "concat" else dims[0]
    if dim is not None and dim != total:
        together = f", together {total}" if spec.how == "concat" else ""
        raise DimensionError(f"{spec.text}: {named}{together}; expected {dim}", total)
    return readers
