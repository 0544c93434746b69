"""Add --vectors and the options of its format to `stats`, `analogy`, `neighbors`, `save-vectors` and the histogram."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Collection, Iterator

from embinit_fairseq.errors import DimensionError, OptionError, named_by
from embinit_fairseq.init.alignment import Matching, Reading, read, read_table
from embinit_fairseq.vectors.open import FORMATS, SOURCES_HELP, SourceSpec, open_vectors, parse_source
from embinit_fairseq.vectors.table import VectorTable, Wanted
from embinit_fairseq.vocab.dictionary import Vocabulary

_FLAG = "--vectors "


def add_vector_options(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add --vectors, --format, --side, --strict, --json. more: for the help, further values of --vectors."""
    add = parser.add_argument
    add("--vectors", required=True, metavar="PATH", help=SOURCES_HELP + more)
    add("--format", choices=list(FORMATS), help="default: recognised from the content")
    add("--side", choices=("encoder", "decoder"), help="which embedding matrix of a model with two")
    add("--strict", action="store_true", help="refuse files with broken lines instead of counting them")
    add("--json", action="store_true", help="print one JSON object instead of a table")


def source_of(args: argparse.Namespace) -> SourceSpec:
    """Return the files of --vectors."""
    with named_by(_FLAG):
        return parse_source(args.vectors, args.format)


def read_vectors(args: argparse.Namespace, wanted: Wanted | Vocabulary | None, dim: int | None = None) -> VectorTable:
    """Return the wanted rows of --vectors, or the rows that a dictionary needs (None: all).

    Raises:
        OptionError: if --vectors names several files, which are joined for a dictionary only.
    """
    spec = source_of(args)
    if spec.how is not None:
        raise OptionError(
            f"{_FLAG}{args.vectors}: expected one file; {spec.how} of several is for embinit stats with --dict and for "
            "--embed-init-path"
        )
    with _refusing_dim(dim), named_by(_FLAG):
        reader = open_vectors(spec.paths[0], args.format, dim, args.strict, args.side)
        return read_table(reader, wanted) if isinstance(wanted, Vocabulary) else reader.read(wanted)


def read_for(args: argparse.Namespace, vocabulary: Vocabulary, rules: Collection[str], dim: int | None) -> Reading:
    """Return the vectors of --vectors, one file or several (`concat:A,B`), for a dictionary."""
    with _refusing_dim(dim):
        return read(source_of(args), vocabulary, Matching(rules, strict=args.strict), dim, args.side, _FLAG)


@contextlib.contextmanager
def _refusing_dim(dim: int | None) -> Iterator[None]:
    try:
        yield
    except DimensionError as error:
        raise DimensionError(error.fact, error.dim, f"leave out --dim {dim}, or name another file") from error


def print_side(args: argparse.Namespace, table: VectorTable) -> None:
    """Print, on standard error, which of a model's two embedding matrices was read if --side does not say it."""
    if args.side is None and table.origin.side:
        other = "decoder" if table.origin.side == "encoder" else "encoder"
        print(
            f"embinit {args.command}: {args.vectors} has an embedding matrix for each side; this is that of the "
            f"{table.origin.side}, for the other one add --side {other}",
            file=sys.stderr,
        )
