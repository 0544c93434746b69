"""Make WMT 2014's training text and newstest2014 ready for fairseq; `prepare.sh` says what the steps do and take.

Every step works on shards of the text, and its output is below work/:

    files.json              the files of each corpus, found or downloaded      collect
    clean/00000/train.en    normalised, tokenised text, counts of words        clean
    bpe.codes or spm.model  the joined vocabulary (in OUTPUT)                  learn
    encoded/00000/train.en  pieces, without unfit pairs                        encode
    test/test.en            the test set in pieces; OUTPUT/test.en: raw        testset
    dict.txt                all pieces                                         binary
    binary/00000/...        what fairseq-train reads                           binary
    OUTPUT/bin              the shards joined; or OUTPUT/bin.00, OUTPUT/bin.01 ...
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from shards.tasks import Executor, Step, Task, finished_shards, once, shard_files
from wmt14.corpora import PAIRS

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.errors import OptionError, one_line
from embinit_fairseq.io import read_json

SPLITS = ("train", "valid")


def prepare(args: argparse.Namespace) -> None:
    """Run the steps that are not done yet."""
    from wmt14 import clean, collect, report

    work = args.output / "work"
    work.mkdir(exist_ok=True)
    executor = Executor.from_arguments(args, work / "logs")
    clean.cleaner(args.pair[:2], args.tokens)  # a missing library is reported before the work begins
    collect.collect(args.pair, args.corpora, args.data, args.test_from, work)
    if executor.run(steps(args)):
        print("\n".join(report.sentences(read_json(args.output / "report.json"))))
    else:
        print(f"submitted; {args.output / 'report.json'} is written at the end")


def steps(args: argparse.Namespace) -> list[Step]:
    """Return the steps from WMT's files to `bin`."""
    # Worker processes import this file: what a step needs is imported when the steps are made.
    from shards import binary, counts
    from wmt14 import clean, encode, learn, report, testset

    langs, output, work = args.pair.split("-"), args.output, args.output / "work"
    model = output / ("spm.model" if args.tokens == "sentencepiece" else "bpe.codes")
    symbols, dictionary = work / "symbol_counts", work / "dict.txt"
    test = (work / "files.json", args.pair, args.tokens, model, output, work / "test")
    how = (args.tokens, model, args.max_length, args.max_ratio)
    return [
        Step("shards", partial(clean.range_tasks, work, langs, args.shard_pairs, args.limit)),
        once("number", work / "shards.json", clean.number, work / "ranges", work / "shards.json"),
        Step("cleaning", partial(clean.clean_tasks, work, langs, args.tokens, args.valid_every)),
        *learn.steps(work, langs, args, model),
        Step("encoding", partial(encode.encode_tasks, work, langs, *how)),
        once("test set", work / "test", testset.write_test, *test),
        *counts.merge_steps("count pieces", partial(shard_files, work / "encoded", "symbols.txt"), symbols),
        once("dictionary", dictionary, binary.write_dictionary, counts.merged_file(symbols), dictionary, None),
        Step("binarising", partial(binary_tasks, work, args.pair, args.valid_every)),
        Step("joining", partial(join_tasks, work, args.pair, output / "bin", args.part_gb * 1e9)),
        once(
            *("report", output / "report.json", report.write_report, work, dictionary, output / "report.json"),
            *(args.pair, args.tokens, model),
        ),
    ]


def binary_tasks(work: Path, pair: str, valid_every: int) -> list[Task]:
    """Return a task per shard, and one for the test set.

    Raises:
        OptionError: nothing is left for training or validation.
    """
    from shards.binary import binarise_shard
    from wmt14.report import collect

    encoded = collect(work, work / "dict.txt")["encoded"]
    for split in SPLITS:
        if not encoded.get(f"{split}_pairs"):
            raise OptionError(f"nothing is left for {split}: give more text, or another VALID_EVERY than {valid_every}")
    tasks = []
    folders = [(shard, SPLITS) for shard in finished_shards(work / "encoded")]
    for folder, splits in [*folders, (work / "test", ("test",))]:
        texts = {f"{split}.{pair}.{lang}": f"{split}.{lang}" for split in splits for lang in pair.split("-")}
        output = work / "binary" / folder.name
        size = sum((folder / name).stat().st_size for name in texts.values())
        tasks.append(Task(output, binarise_shard, (folder, output, work / "dict.txt", texts), size))
    return tasks


def join_tasks(work: Path, pair: str, output: Path, part_bytes: float) -> list[Task]:
    """Return a task per part of the data; validation and test set are in the first."""
    from shards import binary

    langs = pair.split("-")
    names = [f"{split}.{pair}.{lang}" for split in SPLITS for lang in langs]
    dictionaries = {f"dict.{lang}.txt": work / "dict.txt" for lang in langs}
    for lang in langs:
        name = f"test.{pair}.{lang}"
        dictionaries |= {f"{name}.{ending}": work / "binary" / "test" / f"{name}.{ending}" for ending in ("bin", "idx")}
    return binary.join_tasks(finished_shards(work / "binary"), output, dictionaries, names, part_bytes)


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=PAIRS, required=True)
    parser.add_argument("--data", type=Path, help="folder with WMT's files or archives (default: download them)")
    parser.add_argument("--corpora", nargs="+", metavar="NAME", help="default: WMT 2014's")
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
    parser.add_argument("--part-gb", type=float, required=True, help="training data of a part of bin")
    Executor.add_arguments(parser)
    parser.add_argument("--output", type=Path, required=True)
    prepare(parser.parse_args())


if __name__ == "__main__":
    with one_line():
        main()
