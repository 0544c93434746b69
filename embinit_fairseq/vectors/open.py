"""The one way to open a source of vectors: recognises the format and imports only that format's reader."""

from __future__ import annotations

import importlib
import os
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from embinit_fairseq.errors import DimensionError, EmbinitError, OptionError, VectorFileError, counted
from embinit_fairseq.vectors.compressed import check_exists, is_zip, open_bytes, split_member, zip_members
from embinit_fairseq.vectors.table import VectorReader
from embinit_fairseq.vectors.text_lines import header_of, numeric_tail


@dataclass(frozen=True)
class Format:
    """title: for help texts. module, reader: the class that reads it, imported when it is needed.

    told: what else the class is told. sided: has a file several embedding matrices, so that the reader must be told a
    side? The class is called as `reader(path, dim, strict, **told)`, a sided one with `side=` as well.
    """

    title: str
    module: str
    reader: str
    told: Mapping[str, Any] = field(default_factory=dict)
    sided: bool = False


_ROOM = "embinit_fairseq.vectors."
#: name -> format, in the order of help texts. To add one is to write a reader, a line here, and how its content is told
#: from that of others (`_from_head`; a folder or a zip archive: `recognise`).
FORMATS = {
    "glove": Format("GloVe", _ROOM + "text", "TextVectors", {"header": False}),
    "word2vec": Format("word2vec or fastText text (.vec)", _ROOM + "text", "TextVectors", {"header": True}),
    "word2vec_bin": Format("word2vec .bin", _ROOM + "word2vec_bin", "Word2VecBinary"),
    "fasttext_bin": Format("fastText .bin", _ROOM + "fasttext_bin", "FastTextBinary"),
    "huggingface": Format("a Hugging Face model directory", _ROOM + "huggingface", "HuggingFaceDirectory", sided=True),
    "fairseq": Format(
        "a fairseq checkpoint with dict.txt beside it", _ROOM + "fairseq_checkpoint", "FairseqCheckpoint", sided=True
    ),
    "npz": Format("npz", _ROOM + "npz", "NpzVectors"),
}
#: for help texts: what a source of vectors may be
SOURCES_HELP = ", ".join(format.title for format in FORMATS.values()) + "; text also as gz, bz2, xz or zip"

_FASTTEXT_MAGIC = struct.pack("<i", 793712314)
_PICKLE = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"  # the magic number torch.save wrote before 1.6
_HEAD = 1 << 20


def open_vectors(
    path: str | os.PathLike[str],
    format: str | None = None,
    dim: int | None = None,
    strict: bool = False,
    side: str | None = None,
) -> VectorReader:
    """Open a source of vectors; reads no more than its head.

    path: a file (text also gz, bz2, xz, a zip archive with one member, or `archive.zip:member`) or a directory.
    format: one of FORMATS, None to recognise it from content. dim: the D that is expected. strict: refuse files with
    broken lines. side: `encoder` or `decoder`, which embedding matrix of a model with two.
    Raises VectorFileError (missing, unreadable, unknown), DimensionError (other D), OptionError (no such format).
    """
    path = os.fspath(path)
    check_exists(split_member(path)[0])
    if format is None:
        format = recognise(path)
    chosen = FORMATS[check_format(format, format)]
    reader = getattr(importlib.import_module(chosen.module), chosen.reader)
    return reader(path, dim, strict, **chosen.told, **({"side": side} if chosen.sided else {}))


def check_format(format: str, text: str) -> str:
    """The format, one of FORMATS; raises OptionError for any other. text: the value of the flag that names it."""
    if format not in FORMATS:
        raise OptionError(f"--embed-init-format {text}: no such format; there are: {', '.join(FORMATS)}")
    return format


def recognise(path: str) -> str:
    """The format of what is at `path`, from its content; one of FORMATS. Raises VectorFileError if it is none."""
    if os.path.isdir(path):
        return "huggingface"
    archive, member = split_member(path)
    if member is None and is_zip(archive):
        names = zip_members(archive)
        if any(name.endswith("/data.pkl") or name == "data.pkl" for name in names):
            return "fairseq"
        if "words.npy" in names:
            return "npz"
    with open_bytes(path) as stream:
        head = stream.read(_HEAD)
    return _from_head(path, head)


def _from_head(path: str, head: bytes) -> str:
    if not head.strip():
        raise VectorFileError(f"{path}: the file is empty. Download it again or correct --embed-init-path.")
    if (mistake := _often_mistaken(head)) is not None:
        raise VectorFileError(f"{path}: {mistake}")
    if head.startswith(_FASTTEXT_MAGIC):
        return "fasttext_bin"
    if head.startswith(_PICKLE):
        return "fairseq"
    first, *body = head.split(b"\n", 4)
    if len(head) == _HEAD and body:
        body.pop()  # probably cut
    text = any(numeric_tail(line) for line in body)
    if header_of(first):
        return "word2vec" if text or not any(body) else "word2vec_bin"
    if text or numeric_tail(first):
        return "glove"
    if (mistake := _otherwise_separated([first, *body])) is not None:
        raise VectorFileError(f"{path}: {mistake}")
    raise VectorFileError(
        f"{path}: not recognised as a source of vectors. Name what it is with --embed-init-format "
        f"({', '.join(FORMATS)}), or correct --embed-init-path."
    )


def _often_mistaken(head: bytes) -> str | None:
    """What the file is instead, and what to do: for what its beginning gives away."""
    if head.startswith(b"version https://git-lfs.github.com/"):
        return "a Git LFS pointer, not the file itself. Fetch that with git lfs pull."
    first = head.lstrip().split(b"\n", 1)[0]
    if first.lower().startswith((b"<!doctype", b"<html", b"<?xml")) and not numeric_tail(first):
        return "a web page, so the download has failed. Download the file again."
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "text in UTF-16. Convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW."
    return None


def _otherwise_separated(lines: list[bytes]) -> str | None:
    """The same for lines that would be vectors with blanks or with decimal points."""
    for line in lines:
        if numeric_tail(line.replace(b",", b".")):
            return "the numbers have decimal commas. Write points: sed -E 's/([0-9]),([0-9])/\\1.\\2/g' FILE > NEW."
        for sign in ",;":
            if numeric_tail(line.replace(sign.encode(), b" ")) > 1:
                return f"separated by '{sign}' instead of blanks. Replace them: tr '{sign}' ' ' < FILE > NEW."
    return None


# ---- What a user may write where a source of vectors is meant, and how it is opened ---------------------------------
#     FILE              one source
#     concat:A,B,...    the vectors side by side, D = D_A + D_B + ...
#     avg:A,B,...       the mean of the vectors of the sources that have the word (Coates and Bollegala 2018)
#     concat-l2:...     the same of vectors of length 1, so that each source has the same weight; without it the values
#     avg-l2:...        are taken as they are, and vectors of larger scale count for more
#
# What several sources have for a dictionary is put together in `embinit_fairseq.init.alignment`.

_SEVERAL = re.compile(r"(concat|avg)(-l2)?:(.*)", re.DOTALL)


@dataclass(frozen=True)
class SourceSpec:
    """text: what the user wrote. files: path and format (None: to be recognised). how: None, "concat" or "avg"."""

    text: str = field(compare=False)
    files: tuple[tuple[str, str | None], ...]
    how: str | None = None
    unit: bool = False

    @property
    def method(self) -> str | None:
        """How several sources are joined, as the user writes it: "concat", "avg-l2", ...; None for one source."""
        return self.how and self.how + ("-l2" if self.unit else "")

    @property
    def paths(self) -> list[str]:
        """The files, in the user's order."""
        return [path for path, _ in self.files]

    def named(self, name: Callable[[str], str]) -> str:
        """The text with another name for each path."""
        if self.how is None:
            return name(self.paths[0])
        files = ((f"{format}=" if format else "") + name(path).replace(",", ",,") for path, format in self.files)
        return f"{self.method}:{','.join(files)}"


def parse_source(text: str, format: str | None = None) -> SourceSpec:
    """`FILE`, or `concat:A,B` and so on, where each may be `FORMAT=FILE`. `,,` is a comma inside a name.

    format: of the files that name none. `~` is expanded. Raises OptionError for fewer than two files.
    """
    several = _SEVERAL.fullmatch(text)
    if several is None:
        return SourceSpec(text, ((os.path.expanduser(text), format),))
    how, unit, rest = several.groups()
    files = [part.replace("\0", ",") for part in rest.replace(",,", "\0").split(",")]
    if len(files) < 2 or "" in files:
        raise OptionError(
            f"--embed-init-path {text}: expected at least two files, with commas and no blanks between them "
            f"({how}:A,B); a comma inside a name is written twice, and a file whose name begins so is ./{how}:..."
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
    """The readers of all files. dim: the D of the embedding matrix (None: any).

    Raises VectorFileError; DimensionError unless the dimensions of the files give D; OptionError for a mean of several.
    """

    def opened(file: tuple[str, str | None], dim: int | None) -> VectorReader:
        return open_vectors(file[0], format=file[1], dim=dim, strict=strict, side=side)

    if spec.how is None:
        return [opened(spec.files[0], dim)]
    if spec.how == "avg" and dim is not None:
        try:
            return [opened(file, dim) for file in spec.files]
        except DimensionError:
            pass  # to be said of all of them
    readers = [opened(file, None) for file in spec.files]
    dims = [reader.dim for reader in readers]
    total = sum(dims) if spec.how == "concat" else dims[0]
    if (spec.how == "avg" and len(set(dims)) > 1) or (dim is not None and dim != total):
        raise _dimension_error(spec, dims, dim)
    return readers


def _dimension_error(spec: SourceSpec, dims: list[int], dim: int | None) -> EmbinitError:
    named = ", ".join(f"{path} has {counted(number, 'dimension')}" for path, number in zip(spec.paths, dims))
    if spec.how == "avg" and len(set(dims)) > 1:
        return OptionError(
            f"--embed-init-path {spec.text}: only vectors of one dimension can be averaged, but {named}. Take files of "
            "one dimension, or put these side by side (concat:)."
        )
    total = sum(dims) if spec.how == "concat" else dims[0]
    added = f", together {total}" if spec.how == "concat" else ""
    fact = f"--embed-init-path {spec.text}: {named}{added}; expected {dim}"
    return DimensionError(
        f"{fact}. Vectors are never cut or padded: set "
        f"--encoder-embed-dim {total} or --decoder-embed-dim {total} (the slot's), or choose other files.",
        fact,
        total,
    )
