"""Options of `expand-vocab`, `trim-vocab` and `transfer-vocab`: a checkpoint and its dictionary in, a folder out."""

from __future__ import annotations

import argparse


def add_vocabulary_options(parser: argparse.ArgumentParser, files: str, measures: bool = True) -> None:
    """--checkpoint, --dict, --output and what belongs to them. files: the names in --output, for the help.

    measures: is the new model compared with the old one, and are both of one training (--verify, --reset-optimizer)?
    """
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="C.pt", help="written by fairseq-train; nothing in it is run")
    add("--dict", required=True, metavar="dict.txt", help="its dictionary; of translation, that of one side")
    add("--output", required=True, metavar="DIR", help=f"a new folder, for {files}")
    add("--side", choices=("encoder", "decoder", "both"), help="translation: whose dictionary it is, if both fit")
    if measures:
        add("--verify", nargs="+", metavar="TEXT", help="measure on tokenised text (translation: SOURCE TARGET)")
        add("--reset-optimizer", action="store_true", help="leave the optimiser's state out")
    add("--user-dir", metavar="DIR", help="another plugin that the model comes from")
    add("--force", action="store_true", help="replace the folder if an earlier call wrote it")
    add("--json", action="store_true", help="print one JSON object instead of a summary")
