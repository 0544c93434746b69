"""Define the steps from WMT's files to `bin`. Each works on shards of the text, and its output is below work/:

    files.json              the files of each corpus, found or downloaded      collect
    ranges/00000.json       shards: ranges of lines of a corpus                clean
    clean/00000/train.en    normalised, tokenised text, counts of words        clean
    bpe.codes or spm.model  the joined vocabulary (in OUTPUT)                  learn
    encoded/00000/train.en  pieces, without unfit pairs                        encode
    test/test.en            the test set in pieces; OUTPUT/test.en: raw        testset
    dict.txt                all pieces                                         binary
    binary/00000/...        data for fairseq-train                             binary
    OUTPUT/bin              the shards joined; or OUTPUT/bin.00, OUTPUT/bin.01 ...

An engine's processes import this file: they could not import functions of prepare_wmt14.py, which is __main__.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from shards import binary
from shards.tasks import SPLITS, Step, Task, finished_shards, once, sum_stats
from wmt14 import clean, encode, learn, testset

from embinit_fairseq.errors import OptionError


def model_of(args: argparse.Namespace) -> Path:
    """Return the file of the joined vocabulary."""
    return args.output / ("spm.model" if args.tokens == "sentencepiece" else "bpe.codes")


def steps(args: argparse.Namespace) -> list[Step]:
    """Return the steps; args: the options of prepare_wmt14.py."""
    langs, output, work = args.pair.split("-"), args.output, args.output / "work"
    model, dictionary = model_of(args), work / "dict.txt"
    test = (work / "files.json", args.pair, args.tokens, model, output, work / "test")
    how = (args.tokens, model, args.max_length, args.max_ratio)
    return [
        Step("shards", partial(clean.range_tasks, work, langs, args.shard_pairs, args.limit)),
        Step("cleaning", partial(clean.clean_tasks, work, langs, args.tokens, args.valid_every)),
        *learn.steps(work, langs, args, model),
        Step("encoding", partial(encode_tasks, work, langs, how, test)),
        once("dictionary", dictionary, binary.write_dictionary, work / "encoded", dictionary, None),
        Step("binarising", partial(binary_tasks, work, args.pair, args.valid_every)),
        Step("joining", partial(join_tasks, work, args.pair, output / "bin", args.part_gb * 1e9)),
    ]


def encode_tasks(work: Path, langs: list[str], how: tuple, test: tuple) -> list[Task]:
    """Return a task per shard, and one for the test set."""
    return [*encode.encode_tasks(work, langs, *how), Task(work / "test", testset.write_test, test)]


def binary_tasks(work: Path, pair: str, valid_every: int) -> list[Task]:
    """Return a task per shard, and one for the test set.

    Raises:
        OptionError: nothing is left for training or validation.
    """
    encoded = sum_stats(work / "encoded")
    for split in SPLITS:
        if not encoded.get(f"{split}_pairs"):
            raise OptionError(f"nothing is left for {split}: give more text, or another VALID_EVERY than {valid_every}")
    tasks = []
    folders = [(shard, SPLITS) for shard in finished_shards(work / "encoded")]
    for folder, splits in [*folders, (work / "test", ("test",))]:
        texts = {f"{split}.{pair}.{lang}": f"{split}.{lang}" for split in splits for lang in pair.split("-")}
        output = work / "binary" / folder.name
        size = sum((folder / name).stat().st_size for name in texts.values())
        tasks.append(Task(output, binary.binarise_shard, (folder, output, work / "dict.txt", texts), size))
    return tasks


def join_tasks(work: Path, pair: str, output: Path, part_bytes: float) -> list[Task]:
    """Return a task per part of the data; validation and test set are in the first."""
    langs = pair.split("-")
    names = [f"{split}.{pair}.{lang}" for split in SPLITS for lang in langs]
    dictionaries = {f"dict.{lang}.txt": work / "dict.txt" for lang in langs}
    for lang in langs:
        name = f"test.{pair}.{lang}"
        dictionaries |= {f"{name}.{ending}": work / "binary" / "test" / f"{name}.{ending}" for ending in ("bin", "idx")}
    return binary.join_tasks(finished_shards(work / "binary"), output, dictionaries, names, part_bytes)
