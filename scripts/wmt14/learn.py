"""The joined vocabulary of both languages: BPE merges, or a sentencepiece model, from the cleaned training text.

BPE is learned from the most frequent words with their exact counts, sentencepiece from evenly spaced lines: memory does
not grow with the text.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from wikibooks.pool import finished_shards
from wikibooks.words import MostFrequent, merge_files, read_counts
from wmt14.clean import TOKENS

from embinit_fairseq.errors import one_line
from embinit_fairseq.files import whole_folder
from embinit_fairseq.machine import cores


def count_words(clean: Path, words: Path, wanted: int) -> None:
    """Write words/bpe.txt, the `wanted` most frequent words of the shards with their counts, sorted by spelling."""
    with whole_folder(words, option="") as folder:
        histogram = merge_files([shard / "words.txt" for shard in finished_shards(clean)], folder / "all.txt")
        chosen = MostFrequent(histogram, wanted)
        with open(folder / "bpe.txt", "w", encoding="utf-8") as file:
            file.writelines(
                f"{word} {count}\n" for word, count in read_counts(folder / "all.txt") if chosen.takes(count)
            )
        stats = {"words": sum(count * types for count, types in histogram.items()), "types": sum(histogram.values())}
        (folder / "stats.json").write_text(json.dumps(stats) + "\n")
        for path in folder.glob("all.txt*"):
            path.unlink()


def learn_merges(words: Path, size: int, output: Path) -> None:
    try:
        from subword_nmt.learn_bpe import learn_bpe
    except ModuleNotFoundError as error:
        raise SystemExit(f"error: {error.name} is missing: pip install subword-nmt") from None
    with open(words / "bpe.txt", encoding="utf-8") as counts, open(output, "w", encoding="utf-8") as codes:
        learn_bpe(counts, codes, size, is_dict=True)


def spaced_lines(clean: Path, langs: list[str], wanted: int) -> Iterator[str]:
    """At most `wanted` lines, evenly spaced over the training text of all shards and of both languages."""
    shards = finished_shards(clean)
    pairs = sum(json.loads((shard / "stats.json").read_text())["pairs"] for shard in shards)
    step = max(1, -(-len(langs) * pairs // wanted))
    for lang in langs:
        for shard in shards:
            with open(shard / f"train.{lang}", encoding="utf-8", newline="\n") as lines:
                yield from (line.rstrip("\n") for line in islice(lines, 0, None, step))


def learn_sentencepiece(lines: Iterator[str], size: int, kind: str, jobs: int, output: Path) -> None:
    """Unlike that of scripts/tokens.py the model keeps capital letters."""
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
    output.write_bytes(model.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder with clean/; gets words/")
    parser.add_argument("--langs", nargs=2, required=True, help="source and target")
    parser.add_argument("--tokens", choices=TOKENS, required=True, help="what to learn")
    parser.add_argument("--size", type=int, required=True, help="merges of BPE, pieces of sentencepiece")
    parser.add_argument("--bpe-words", type=int, required=True, help="words to learn BPE from, the most frequent ones")
    parser.add_argument("--spm-type", choices=("unigram", "bpe"), default="unigram", help="kind of sentencepiece model")
    parser.add_argument("--spm-lines", type=int, required=True, help="lines to learn sentencepiece from")
    parser.add_argument("--jobs", type=int, default=cores(), help="threads (sentencepiece)")
    parser.add_argument("output", type=Path, help="file to write")
    args = parser.parse_args()
    clean, words = args.work / "clean", args.work / "words"
    if args.tokens == "sentencepiece":
        lines = spaced_lines(clean, args.langs, args.spm_lines)
        learn_sentencepiece(lines, args.size, args.spm_type, args.jobs, args.output)
        return
    if not words.is_dir():
        count_words(clean, words, args.bpe_words)
    learn_merges(words, args.size, args.output)


if __name__ == "__main__":
    with one_line():
        main()
