"""Prepare text for masked-language-model pre-training; `prepare.sh` describes the steps and their options."""

from __future__ import annotations

import argparse
from pathlib import Path

from shards.engines import Engine
from wikibooks import clean_shards, report_wikibooks, split
from wikibooks.steps import steps

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.errors import one_line


def prepare(args: argparse.Namespace) -> None:
    """Run the steps that are not done yet."""
    work = args.output / "work"
    engine = Engine.from_arguments(args, work / "logs")
    clean_shards.check_libraries(args.duplicates)  # before the work begins
    if not (work / "raw").exists():
        for path in args.input:
            split.check_input(path)
    if engine.run(steps(args)):
        print("\n".join(report_wikibooks.in_words(report_wikibooks.write_report(args.output))))


def main() -> None:
    """Read the options and prepare the text."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path, nargs="+", help="files with text")
    parser.add_argument("--output", type=Path, required=True, help="folder for work/, bin/, bpe.codes, report.json")
    parser.add_argument("--duplicates", choices=("lines", "documents", "near", "none"), required=True)
    parser.add_argument("--frequent-types", type=float, required=True, help="share of the word types that are kept")
    parser.add_argument("--bpe-merges", type=int, required=True)
    parser.add_argument("--bpe-words", type=int, required=True, help="most frequent words to learn merges from")
    parser.add_argument("--vocabulary", type=int, required=True, help="symbols, with fairseq's own four")
    parser.add_argument("--valid-every", type=int, required=True, help="every N-th passage is for validation")
    parser.add_argument("--shard-mb", type=float, required=True)
    parser.add_argument("--part-gb", type=float, required=True, help="training data of a part of bin")
    Engine.add_arguments(parser)
    prepare(parser.parse_args())


if __name__ == "__main__":
    with one_line():
        main()
