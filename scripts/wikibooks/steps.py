"""Define the steps from text to `bin`. Each works on shards of the text, and its output is below work/:

    raw/00000/00000.txt      documents as they are, after each a blank line         split
    duplicates/              lines (or documents) that occurred before              duplicates
    clean/00000/train.txt    one tokenised sentence per line; words.txt: counts     clean_shards
    words/bpe.txt            the most frequent words of the training text           counts
    bpe.codes (in OUTPUT)    merges                                                 subword-nmt
    encoded/00000/train.txt  subwords; symbols.txt: counts                          encode_shards
    dict.txt                 the most frequent subwords                             binary
    binary/00000/train.bin   data for fairseq-train                                 binary
    OUTPUT/bin               the shards joined; or OUTPUT/bin.00, OUTPUT/bin.01 ...

An engine's processes import this file: they could not import functions of prepare_wikibooks.py, which is __main__.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from shards import binary, counts
from shards.tasks import SPLITS, Step, Task, finished_shards, once, shard_files, sum_stats
from wikibooks import clean_shards, duplicates, encode_shards, near, split

from embinit_fairseq.errors import OptionError
from embinit_fairseq.vocab.cleaning import SYMBOLS


def steps(args: argparse.Namespace) -> list[Step]:
    """Return the steps; args: the options of prepare_wikibooks.py."""
    output, work = args.output, args.output / "work"
    words, codes = work / "word_counts", output / "bpe.codes"
    encoded, dictionary = work / "encoded", work / "dict.txt"
    inputs = [path.resolve() for path in args.input]
    learn = (words, work / "words", args.frequent_types, args.bpe_words, args.bpe_merges, codes)
    return [
        Step("shards", partial(split.split_tasks, inputs, work / "raw", int(args.shard_mb * 1e6))),
        *(near.steps(work) if args.duplicates == "near" else duplicates.steps(work, args.duplicates)),
        Step("cleaning", partial(clean_shards.clean_tasks, work, args.duplicates, args.valid_every)),
        counts.merge_step("count words", partial(shard_files, work / "clean", "words.txt"), words),
        once("learn merges", codes, counts.learn_words, *learn),
        Step("encoding", partial(encode_shards.encode_tasks, work, codes)),
        once("dictionary", dictionary, binary.write_dictionary, encoded, dictionary, args.vocabulary, SYMBOLS),
        Step("binarising", partial(binary_tasks, work)),
        Step("joining", partial(join_tasks, work, output / "bin", args.part_gb * 1e9)),
    ]


def binary_tasks(work: Path) -> list[Task]:
    """Return a task per shard. OptionError if nothing is left for validation."""
    if not sum_stats(work / "encoded").get("valid_sentences"):
        raise OptionError("nothing was left for validation: give more text, or a smaller VALID_EVERY")
    texts = {split: f"{split}.txt" for split in SPLITS}
    tasks = []
    for shard in finished_shards(work / "encoded"):
        output = work / "binary" / shard.name
        arguments = (shard, output, work / "dict.txt", texts)
        tasks.append(Task(output, binary.binarise_shard, arguments, encode_shards.text_bytes(shard)))
    return tasks


def join_tasks(work: Path, output: Path, part_bytes: float) -> list[Task]:
    """Return a task per part of the data."""
    return binary.join_tasks(
        finished_shards(work / "binary"), output, {"dict.txt": work / "dict.txt"}, SPLITS, part_bytes
    )
