"""Options of `expand-vocab`, `trim-vocab` and `transfer-vocab`: a checkpoint and its dictionary in, a folder out."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from embinit_fairseq.cli.progress import progress
from embinit_fairseq.io import check_is_file
from embinit_fairseq.vocab.preparation_options import steps_help
from embinit_fairseq.vocab.preparation_record import FILE

SHOWN = 8  #: words of a list


def add_vocabulary_options(parser: argparse.ArgumentParser, files: str, measures: bool = True) -> None:
    """Add --checkpoint, --dict, --output and their companions.

    Args:
        parser: the sub-command's.
        files: names of the files in --output, for the help.
        measures: True for --verify and --reset-optimizer: both models are of one training and can be compared.
    """
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="C.pt", help="written by fairseq-train; nothing in it is run")
    add("--dict", required=True, metavar="dict.txt", help="its dictionary; of translation, that of one side")
    add("--output", required=True, metavar="DIR", help=f"a new folder, for {files}")
    add("--side", choices=("encoder", "decoder", "both"), help="translation: whose dictionary it is, if both fit")
    if measures:
        add("--verify", nargs="+", metavar="TEXT", help="measure on tokenised text (translation: SOURCE TARGET)")
        steps = f"how raw text became the dictionary's symbols, without {FILE}: {steps_help()}"
        add("--preparation", metavar="STEPS", help=steps)
        add("--reset-optimizer", action="store_true", help="leave the optimizer's state out")
    add("--user-dir", metavar="DIR", help="another plugin that the model comes from")
    add("--force", action="store_true", help="replace the folder if an earlier call wrote it")
    add("--json", action="store_true", help="print one JSON object instead of a summary")


def check_texts(paths: Sequence[str] | None) -> None:
    """Raise DataError, before any work, if a text of --verify is missing."""
    for path in paths or ():
        check_is_file(path, "--verify", remedy="give a segmented text, one sentence per line")


def verify_progress(args: argparse.Namespace) -> Callable[[Sequence[Any]], Any]:
    """Return what shows the progress of --verify over batches; nothing with --json."""
    return lambda batches: progress(batches, "verify", "batch", hidden=args.json)


def table_names(record: dict[str, Any]) -> str:
    """Return the line with the tensors that have one row per symbol, and that with the sides that change."""
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
        shown = [f"{word} ({' '.join(symbols)})" for word, symbols in list(missed.items())[:SHOWN]]
        more = " ..." if len(missed) > SHOWN else ""
        lines.append(f"attention      raw text never has these words: {', '.join(shown)}{more}")
    return lines
