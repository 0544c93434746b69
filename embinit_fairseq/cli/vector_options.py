"""Options and steps that `stats` and `analogy` share: vectors in, JSON or a table out."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Collection, Iterator
from typing import Any

from embinit_fairseq.analysis.statistics import is_dictionary
from embinit_fairseq.errors import DimensionError, EmbinitError, OptionError
from embinit_fairseq.init.alignment import Reading, read_sources
from embinit_fairseq.vectors.open import FORMATS, SourceSpec, open_sources, open_vectors, parse_source
from embinit_fairseq.vectors.table import VectorReader, VectorTable, Wanted
from embinit_fairseq.vocab.dictionary import Vocabulary

#: The readers' messages name the flags of training; here the same things have shorter names.
_OUR_FLAGS = {
    "--embed-init-path": "--vectors",
    "--embed-init-format": "--format",
    "--embed-init-strict": "--strict",
}


def add_vector_options(parser: argparse.ArgumentParser, more: str = "") -> None:
    """--vectors, --format, --side, --strict, --json. more: for the help, what else --vectors may be."""
    parser.add_argument(
        "--vectors",
        required=True,
        metavar="PATH",
        help="GloVe, word2vec or fastText (text or .bin; text may be gz, bz2, xz, zip), a Hugging Face directory, "
        "a fairseq checkpoint beside its dict.txt, or npz" + more,
    )
    parser.add_argument("--format", choices=list(FORMATS), help="default: recognised from the content")
    parser.add_argument("--side", choices=("encoder", "decoder"), help="which table of a fairseq checkpoint")
    parser.add_argument("--strict", action="store_true", help="refuse files with broken lines instead of counting them")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def read_vectors(args: argparse.Namespace, wanted: Wanted | None, dim: int | None = None) -> VectorTable:
    """The wanted rows of --vectors (None: all)."""
    with _our_flags(dim):
        reader = open_vectors(args.vectors, format=args.format, dim=dim, strict=args.strict, side=args.side)
        _refuse_dictionary(reader, args)
        return reader.read(wanted)


def source_of(args: argparse.Namespace) -> SourceSpec:
    """What --vectors names: one file, or several."""
    with _our_flags(None):
        return parse_source(args.vectors, args.format)


def read_for(args: argparse.Namespace, vocabulary: Vocabulary, rules: Collection[str], dim: int | None) -> Reading:
    """What --vectors, one file or several (`concat:A,B`), has for a dictionary."""
    spec = source_of(args)
    with _our_flags(dim):
        readers = open_sources(spec, dim, args.strict, args.side)
        for reader in readers:
            _refuse_dictionary(reader, args)
        return read_sources(readers, spec, vocabulary, rules)


def _refuse_dictionary(reader: VectorReader, args: argparse.Namespace) -> None:
    if is_dictionary(reader):
        where = "it as --dict, and word vectors as --vectors" if hasattr(args, "dict") else "word vectors"
        raise OptionError(
            f"--vectors {reader.path}: one whole number a word: looks like a fairseq dictionary; give {where}"
        )


@contextlib.contextmanager
def _our_flags(dim: int | None) -> Iterator[None]:
    """Errors of the readers, with the names that the flags of training have here."""
    try:
        yield
    except DimensionError as error:
        what = _translated(error).partition(". ")[0]
        raise DimensionError(f"{what}. Leave out --dim {dim}, or name the file that was meant.") from error
    except EmbinitError as error:
        raise type(error)(_translated(error)) from error


def _translated(error: EmbinitError) -> str:
    message = str(error)
    for theirs, ours in _OUR_FLAGS.items():
        message = message.replace(theirs, ours)
    return message


def print_json(record: dict[str, Any]) -> None:
    """One line of standard JSON: numbers that are not finite become null, and so that every output can hold it."""
    unicode = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    print(json.dumps(_finite(record), ensure_ascii=not unicode, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
