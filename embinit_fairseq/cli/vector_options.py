"""--vectors and its companions, and how they are read: what `stats`, `analogy`, `neighbors`, `save-vectors` and the
histogram share."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Collection, Iterator

from embinit_fairseq.analysis.statistics import are_a_dictionary
from embinit_fairseq.errors import DimensionError, OptionError, renamed
from embinit_fairseq.init.alignment import Reading, read_sources
from embinit_fairseq.vectors.open import FORMATS, SOURCES_HELP, SourceSpec, open_sources, open_vectors, parse_source
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
        help=SOURCES_HELP + more,
    )
    parser.add_argument("--format", choices=list(FORMATS), help="default: recognised from the content")
    parser.add_argument("--side", choices=("encoder", "decoder"), help="which embedding matrix of a model with two")
    parser.add_argument("--strict", action="store_true", help="refuse files with broken lines instead of counting them")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def read_vectors(args: argparse.Namespace, wanted: Wanted | None, dim: int | None = None) -> VectorTable:
    """The wanted rows of --vectors (None: all)."""
    with our_flags(dim):
        reader = open_vectors(args.vectors, format=args.format, dim=dim, strict=args.strict, side=args.side)
        _refuse_dictionary(reader, args)
        return reader.read(wanted)


def tell_side(args: argparse.Namespace, table: VectorTable) -> None:
    """Say, on standard error, which of a model's two embedding matrices was read where nobody has chosen one."""
    if args.side is None and table.origin.side:
        other = "decoder" if table.origin.side == "encoder" else "encoder"
        print(
            f"embinit {args.command}: {args.vectors} has an embedding matrix for each side; this is that of the "
            f"{table.origin.side}, for the other one add --side {other}",
            file=sys.stderr,
        )


def source_of(args: argparse.Namespace) -> SourceSpec:
    """What --vectors names: one file, or several."""
    with our_flags(None):
        return parse_source(args.vectors, args.format)


def read_for(args: argparse.Namespace, vocabulary: Vocabulary, rules: Collection[str], dim: int | None) -> Reading:
    """What --vectors, one file or several (`concat:A,B`), has for a dictionary."""
    spec = source_of(args)
    with our_flags(dim):
        readers = open_sources(spec, dim, args.strict, args.side)
        for reader in readers:
            _refuse_dictionary(reader, args)
        return read_sources(readers, spec, vocabulary, rules)


def _refuse_dictionary(reader: VectorReader, args: argparse.Namespace) -> None:
    if are_a_dictionary(reader):
        where = "it as --dict, and word vectors as --vectors" if hasattr(args, "dict") else "word vectors"
        raise OptionError(
            f"--vectors {reader.path}: one whole number a word: looks like a fairseq dictionary; give {where}"
        )


@contextlib.contextmanager
def our_flags(dim: int | None = None) -> Iterator[None]:
    """Errors of the readers, with the names that the flags of training have here."""
    with renamed(_OUR_FLAGS):
        try:
            yield
        except DimensionError as error:
            raise DimensionError(f"{error.fact}. Leave out --dim {dim}, or name the file that was meant.") from error
