"""Options and steps that `stats` and `analogy` share: vectors in, JSON or a table out."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

from embinit_fairseq.analysis.frequency import is_dictionary
from embinit_fairseq.errors import DimensionError, EmbinitError, OptionError
from embinit_fairseq.vectors.open import FORMATS, open_vectors
from embinit_fairseq.vectors.table import VectorTable, Wanted

#: The readers' messages name the flags of training; here the same things have shorter names.
_OUR_FLAGS = {
    "--embed-init-path": "--vectors",
    "--embed-init-format": "--format",
    "--embed-init-strict": "--strict",
}


def add_vector_options(parser: argparse.ArgumentParser) -> None:
    """--vectors, --format, --side, --strict, --json."""
    parser.add_argument(
        "--vectors",
        required=True,
        metavar="PATH",
        help="GloVe, word2vec or fastText (text or .bin; text may be gz, bz2, xz, zip), a Hugging Face directory, "
        "a fairseq checkpoint beside its dict.txt, or npz",
    )
    parser.add_argument("--format", choices=FORMATS, help="default: recognised from the content")
    parser.add_argument("--side", choices=("encoder", "decoder"), help="which table of a fairseq checkpoint")
    parser.add_argument("--strict", action="store_true", help="refuse files with broken lines instead of counting them")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def read_vectors(args: argparse.Namespace, wanted: Wanted | None, dim: int | None = None) -> VectorTable:
    """The wanted rows of --vectors (None: all)."""
    try:
        reader = open_vectors(args.vectors, format=args.format, dim=dim, strict=args.strict, side=args.side)
        if is_dictionary(reader):
            where = "it as --dict, and word vectors as --vectors" if hasattr(args, "dict") else "word vectors"
            raise OptionError(
                f"--vectors {args.vectors}: one whole number a word: looks like a fairseq dictionary; give {where}"
            )
        return reader.read(wanted)
    except DimensionError as error:
        what = str(error).partition(". ")[0]
        raise DimensionError(f"{what}. Leave out --dim {dim}, or name the file that was meant.") from error
    except EmbinitError as error:
        message = str(error)
        for theirs, ours in _OUR_FLAGS.items():
            message = message.replace(theirs, ours)
        raise type(error)(message) from error


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
