"""Add the options of `expand-vocab`, `trim-vocab` and `transfer-vocab`: a checkpoint, its dictionary, a new folder."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from embinit_fairseq.cli.progress import progress
from embinit_fairseq.errors import listed
from embinit_fairseq.init.methods import METHODS, SPARSITY
from embinit_fairseq.io import check_is_file
from embinit_fairseq.vectors.open import FORMATS
from embinit_fairseq.vocab.preparation_options import steps_help
from embinit_fairseq.vocab.preparation_record import FILE

SHOWN = 8  #: largest number of words of a list in a summary


def add_vocabulary_options(parser: argparse.ArgumentParser, files: str, measures: bool = True) -> None:
    """Add --checkpoint, --dict, --output and their companions.

    Args:
        parser: the sub-command's parser.
        files: names of the files in --output, for the help.
        measures: True for --verify and --reset-optimizer, which need an old model that can be compared.
    """
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="C.pt", help="checkpoint of fairseq-train; nothing in it is run")
    add("--dict", required=True, metavar="dict.txt", help="the model's dictionary; translation: one side's")
    add("--output", required=True, metavar="DIR", help=f"a new folder, for {files}")
    add("--side", choices=("encoder", "decoder", "both"), help="translation: whose dictionary it is, if both fit")
    if measures:
        add("--verify", nargs="+", metavar="TEXT", help="measure on tokenised text (translation: SOURCE TARGET)")
        steps = f"how raw text became the dictionary's symbols, without {FILE}: {steps_help()}"
        add("--preparation", metavar="STEPS", help=steps)
        add("--reset-optimizer", action="store_true", help="leave the optimizer's state out")
    add("--user-dir", metavar="DIR", help="another plugin that defines the model")
    add("--force", action="store_true", help="replace the folder if an earlier call wrote it")
    add("--json", action="store_true", help="print one JSON object instead of a summary")


def add_method_options(parser: argparse.ArgumentParser, names: Sequence[str], default: str | None = None) -> None:
    """Add --method and the options of the methods that a command takes, as `init.methods` describes them.

    Args:
        parser: the sub-command's parser.
        names: names of the methods.
        default: the method without --method; None: it must be given.
    """
    add, methods = parser.add_argument, {name: METHODS[name] for name in names}
    shown = "; ".join(f"{name}: {method.help}" for name, method in methods.items())
    more = "" if default is None else " (default: %(default)s)"
    add(
        "--method",
        choices=list(methods),
        default=default,
        required=default is None,
        help=f"rows of new words. {shown}{more}",
    )
    also = " and of the order in distill" if any(method.needs_text for method in methods.values()) else ""
    add("--seed", type=int, default=1, metavar="N", help=f"seed of the draws{also} (default: %(default)s)")
    scales = ", ".join(f"{name} {method.scale:g}" for name, method in methods.items() if method.scale is not None)
    add("--noise-scale", type=float, metavar="C", help=f"factor of the noise's covariance (default: {scales})")
    add("--vectors", metavar="FILE", help="focus, omp: vectors of the words or subwords, old and new ones, any format")
    add("--format", choices=list(FORMATS), help="format of --vectors; default: recognised from the content")
    sparsity = f"an eighth of the dimension of --vectors, at most {SPARSITY}"
    add("--sparsity", type=int, metavar="K", help=f"omp: most shared words of a new word (default: {sparsity})")


def bound_line(record: dict[str, Any], of: str) -> str:
    """Return the recorded bound of KL(old || new), with a value that some distribution of old words has."""
    bounds = record["bounds"]
    return f"<= {bounds['limit']:.4g} nats for every {of}; some distribution has {bounds['attained']:.4g}"


def check_texts(paths: Sequence[str] | None) -> None:
    """Raise DataError, before any work, if a text of --verify is missing."""
    for path in paths or ():
        check_is_file(path, "--verify", remedy="give a segmented text, one sentence per line")


def verify_progress(args: argparse.Namespace) -> Callable[[Sequence[Any]], Any]:
    """Return the function that shows the progress of --verify over batches, or does nothing with --json."""
    return lambda batches: progress(batches, "verify", "batch", hidden=args.json)


def table_names(record: dict[str, Any]) -> str:
    """Return the line with the tensors that have one row per symbol, and the line with the sides that change."""
    side = f"\nside           {' and '.join(record['sides'])}" if record["sides"] else ""
    return f"tables         {', '.join(' = '.join(names) for names in record['tables'].values())}{side}"


def written_files(record: dict[str, Any]) -> str:
    """Return the line with the files of the output folder."""
    return f"written        {record['request']['output']}: {', '.join(record['files'])}"


def preparation_lines(record: dict[str, Any]) -> list[str]:
    """Return the lines on how raw text is prepared for the new dictionary."""
    prepared = record["preparation"]
    if prepared is None:
        return [f"raw text       unknown: there is no {FILE}, and no --preparation says how it becomes words"]
    lines = [f"raw text       {prepared['steps']}"]
    if missed := prepared["not_from_raw_text"]:
        words = (f"{word} ({' '.join(symbols)})" for word, symbols in missed.items())
        lines.append(f"attention      raw text never has these words: {listed(words, SHOWN)}")
    return lines
