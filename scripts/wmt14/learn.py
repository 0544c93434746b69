"""Learn the joined vocabulary of both languages, BPE merges or a sentencepiece model, from the cleaned training text.

BPE is learned from the most frequent words with their exact counts, sentencepiece from evenly spaced lines: memory does
not grow with the text.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from shards.counts import learn_words, merge_step
from shards.tasks import Step, finished_shards, once, shard_files

from embinit_fairseq.corpora.subwords import learn_model
from embinit_fairseq.io import read_json


def steps(work: Path, langs: list[str], args: argparse.Namespace, output: Path) -> list[Step]:
    """Return the steps that learn the joined model. args: tokens, size, bpe_words, spm_type, spm_lines, jobs."""
    clean, counted, words = work / "clean", work / "word_counts", work / "words"
    if args.tokens == "sentencepiece":
        how = (args.spm_lines, args.size, args.spm_type, args.jobs)
        return [once("learn subwords", output, sentencepiece_of, clean, langs, *how, output)]
    return [
        merge_step("count words", partial(shard_files, clean, "words.txt"), counted),
        once("learn merges", output, learn_words, counted, words, 1.0, args.bpe_words, args.size, output),
    ]


def sentencepiece_of(clean: Path, langs: list[str], lines: int, size: int, kind: str, jobs: int, output: Path) -> None:
    """Learn a sentencepiece model from evenly spaced lines of both languages."""
    learn_model(spaced_lines(clean, langs, lines), size, kind, output, jobs, "--size")


def spaced_lines(clean: Path, langs: list[str], wanted: int) -> Iterator[str]:
    """Yield at most `wanted` lines, evenly spaced over the training text of all shards and both languages."""
    shards = finished_shards(clean)
    pairs = sum(read_json(shard / "stats.json")["pairs"] for shard in shards)
    step = max(1, -(-len(langs) * pairs // wanted))
    for lang in langs:
        for shard in shards:
            with open(shard / f"train.{lang}", encoding="utf-8", newline="\n") as lines:
                yield from (line.rstrip("\n") for line in islice(lines, 0, None, step))
