"""Make WMT 2014's training text and newstest2014 ready for fairseq; `prepare.sh` describes steps and options."""

from __future__ import annotations

import argparse
from pathlib import Path

from shards.engines import Engine
from wmt14 import clean, collect, report_wmt14
from wmt14.corpora import PAIRS
from wmt14.steps import model_of, steps

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.errors import one_line


def prepare(args: argparse.Namespace) -> None:
    """Run the steps that are not done yet."""
    work = args.output / "work"
    work.mkdir(exist_ok=True)
    engine = Engine.from_arguments(args, work / "logs")
    clean.cleaner(args.pair[:2], args.tokens)  # a missing library is reported before the work begins
    collect.collect(args.pair, args.corpora, args.data, args.test_from, work)
    if engine.run(steps(args)):
        print(
            "\n".join(
                report_wmt14.sentences(report_wmt14.write_report(args.output, args.pair, args.tokens, model_of(args)))
            )
        )


def main() -> None:
    """Read the options and prepare the text."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=PAIRS, required=True)
    parser.add_argument("--data", type=Path, help="folder with WMT's files or archives (default: download them)")
    parser.add_argument("--corpora", nargs="+", metavar="NAME", help="default: WMT 2014's")
    parser.add_argument("--limit", type=int, help="only the first pairs of each corpus")
    parser.add_argument("--tokens", choices=clean.STEPS, required=True)
    parser.add_argument("--size", type=int, required=True, help="merges of BPE, pieces of sentencepiece")
    parser.add_argument("--bpe-words", type=int, required=True, help="most frequent words to learn BPE from")
    parser.add_argument("--spm-type", choices=("unigram", "bpe"), required=True)
    parser.add_argument("--spm-lines", type=int, required=True, help="lines to learn sentencepiece from")
    parser.add_argument("--valid-every", type=int, required=True, help="every N-th pair is for validation")
    parser.add_argument("--max-length", type=int, required=True, help="pieces of a line")
    parser.add_argument("--max-ratio", type=float, required=True, help="pieces of one side for each of the other")
    parser.add_argument(
        "--test-from", choices=("data", "sacrebleu"), required=True, help="where newstest2014 comes from"
    )
    parser.add_argument("--shard-pairs", type=int, required=True)
    parser.add_argument("--part-gb", type=float, required=True, help="training data of a part of bin")
    Engine.add_arguments(parser)
    parser.add_argument("--output", type=Path, required=True)
    prepare(parser.parse_args())


if __name__ == "__main__":
    with one_line():
        main()
