"""Learn the joined vocabulary of both languages, BPE merges or a sentencepiece model, from the cleaned training text.

BPE is learned from the most frequent words with their exact counts, sentencepiece from evenly spaced lines: memory does
not grow with the text.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from wikibooks.pool import finished_shards
from wikibooks.words import MostFrequent, merge_files, read_counts

from embinit_fairseq.io import read_json, whole_file, whole_folder


def learn(work: Path, langs: list[str], args: argparse.Namespace, output: Path) -> None:
    """Write the joined model. args: tokens, size, bpe_words, spm_type, spm_lines, jobs of prepare.py."""
    clean, words = work / "clean", work / "words"
    if args.tokens == "sentencepiece":
        lines = spaced_lines(clean, langs, args.spm_lines)
        learn_sentencepiece(lines, args.size, args.spm_type, args.jobs, output)
        return
    if not words.is_dir():
        count_words(clean, words, args.bpe_words)
    learn_merges(words, args.size, output)


def count_words(clean: Path, words: Path, wanted: int) -> None:
    """Write words/bpe.txt, the `wanted` most frequent words of the shards with their counts, sorted by spelling."""
    with whole_folder(words, option="") as folder:
        histogram = merge_files([shard / "words.txt" for shard in finished_shards(clean)], folder / "all.txt")
        chosen = MostFrequent(histogram, wanted)
        with open(folder / "bpe.txt", "w", encoding="utf-8") as file:
            file.writelines(
                f"{word} {count}\n" for word, count in read_counts(folder / "all.txt") if chosen.takes(count)
            )
        (folder / "all.txt").unlink()


def learn_merges(words: Path, size: int, output: Path) -> None:
    """Learn `size` merges from words/bpe.txt."""
    try:
        from subword_nmt.learn_bpe import learn_bpe
    except ModuleNotFoundError as error:
        raise SystemExit(f"error: {error.name} is missing: pip install subword-nmt") from None
    with open(words / "bpe.txt", encoding="utf-8") as counts, whole_file(output, "w") as codes:
        learn_bpe(counts, codes, size, is_dict=True)


def spaced_lines(clean: Path, langs: list[str], wanted: int) -> Iterator[str]:
    """Yield at most `wanted` lines, evenly spaced over the training text of all shards and both languages."""
    shards = finished_shards(clean)
    pairs = sum(read_json(shard / "stats.json")["pairs"] for shard in shards)
    step = max(1, -(-len(langs) * pairs // wanted))
    for lang in langs:
        for shard in shards:
            with open(shard / f"train.{lang}", encoding="utf-8", newline="\n") as lines:
                yield from (line.rstrip("\n") for line in islice(lines, 0, None, step))


def learn_sentencepiece(lines: Iterator[str], size: int, kind: str, jobs: int, output: Path) -> None:
    """Learn a model, which unlike that of scripts/tokens.py keeps capital letters."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=filter(None, lines),
        model_writer=model,
        vocab_size=size,
        model_type=kind,
        character_coverage=1.0,
        hard_vocab_limit=False,  # a small text cannot fill a large vocabulary
        num_threads=jobs,
        minloglevel=1,
    )
    with whole_file(output) as file:
        file.write(model.getvalue())
