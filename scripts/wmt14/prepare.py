"""Make WMT 2014's training text and newstest2014 in pieces; `prepare.sh` says what the steps do and take.

A step or shard whose file or folder exists is done.

    work/files.json              the files of each corpus, found or downloaded      collect
    work/clean/00000/train.en    normalised, tokenised text, counts of words        clean
    bpe.codes or spm.model       the joined vocabulary                              learn
    work/encoded/00000/train.en  pieces, without unfit pairs                        encode
    test.en, text/test.en        the test set, raw and in pieces                    testset
    text/train.en, text/valid.en all shards
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from wmt14.corpora import PAIRS

from embinit_fairseq.errors import OptionError, one_line
from embinit_fairseq.io import cores, whole_file


def prepare(args: argparse.Namespace) -> None:
    """Run the steps that are not done yet."""
    # Worker processes import this file: what a step needs is imported when the step comes.
    from wmt14 import clean, collect, encode, learn, testset

    langs, output, work = args.pair.split("-"), args.output, args.output / "work"
    model = output / ("spm.model" if args.tokens == "sentencepiece" else "bpe.codes")
    work.mkdir(exist_ok=True)
    collect.collect(args.pair, args.corpora, args.data, args.test_from, work)
    clean.clean(work, langs, args.tokens, args.valid_every, args.shard_pairs, args.limit, args.jobs)
    if not model.is_file():
        learn.learn(work, langs, args, model)
    encode.encode(work, langs, args.tokens, model, args.max_length, args.max_ratio, args.jobs)
    if not (output / "text" / f"test.{langs[1]}").is_file():
        testset.write_test(work, args.pair, args.tokens, model, output)
    for name in (f"{split}.{lang}" for split in clean.SPLITS for lang in langs):
        with whole_file(output / "text" / name) as joined:
            for shard in sorted((work / "encoded").glob("[0-9]*")):
                with open(shard / name, "rb") as part:
                    shutil.copyfileobj(part, joined)
        if (output / "text" / name).stat().st_size == 0:
            raise OptionError(
                f"nothing is left for {name}: give more text, or another VALID_EVERY than {args.valid_every}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=PAIRS, required=True)
    parser.add_argument("--data", type=Path, help="folder with WMT's files or archives (default: download them)")
    parser.add_argument("--corpora", nargs="+", metavar="NAME", help="default: those of WMT 2014")
    parser.add_argument("--limit", type=int, help="only the first pairs of each corpus")
    parser.add_argument("--tokens", choices=("subword_nmt", "sentencepiece"), required=True)
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
    parser.add_argument("--jobs", type=int, default=cores(), help="processes (default: one per core)")
    parser.add_argument("--output", type=Path, required=True)
    prepare(parser.parse_args())


if __name__ == "__main__":
    with one_line():
        main()
