"""Shards of tokenised text -> sub-words: rare words become <unk>, short sentences are joined, BPE is applied.

work/clean/00000/train.txt -> work/encoded/00000/{train.txt,valid.txt,symbols.txt,stats.json}

Short sentences of a document are joined to their neighbours: "concatenate the short sequences" (Ke et al., appendix B).
The rule is ours: one pass, linear time. A sentence of fewer than SHORT words goes to the neighbour with which it makes
the shorter whole, to the following one if both are alike; where the first of the two ends in a full stop or the like,
the whole counts as five words longer. None is made that has more than LONGEST words.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from wikibooks.cleaning import SYMBOLS, UNKNOWN
from wikibooks.pool import finished_shards, run_tasks
from wikibooks.words import WordSet, write_counts

from embinit_fairseq.errors import one_line
from embinit_fairseq.files import whole_folder
from embinit_fairseq.machine import cores
from embinit_fairseq.vocab.segmentation import read_codes

REMEMBERED = 200_000  # words: about 100 MB
SHORT = 5
LONGEST = 250
_AFTER_END = 5
_ENDS = (".", "!", "?", '"')
_KEPT = {symbol: symbol for symbol in (*SYMBOLS, UNKNOWN)}


def read_sentences(path: Path) -> Iterator[list[list[str]]]:
    """Documents as lists of sentences; a blank line ends a document."""
    document: list[list[str]] = []
    with open(path, encoding="utf-8", newline="\n") as text:
        for line in text:
            if words := line.split():
                document.append(words)
            elif document:
                yield document
                document = []


def _cost(first: list[str], second: list[str]) -> float:
    length = len(first) + len(second)
    return math.inf if length > LONGEST else length + _AFTER_END * (first[-1] in _ENDS)


def join_short(sentences: list[list[str]]) -> list[list[str]]:
    """The same words in the same order; sentences are not empty."""
    joined: list[list[str]] = []
    waiting = list(reversed(sentences))
    while waiting:
        sentence = waiting.pop()
        before = after = math.inf
        if len(sentence) < SHORT:
            before = _cost(joined[-1], sentence) if joined else math.inf
            after = _cost(sentence, waiting[-1]) if waiting else math.inf
        if before == after == math.inf:
            joined.append(sentence)
        elif after <= before:
            waiting[-1] = sentence + waiting[-1]
        else:
            joined[-1] = joined[-1] + sentence
    return joined


class Encoder:
    """From words to sub-words of subword-nmt; remembers the words that it has met."""

    def __init__(self, codes: Path, frequent: Path | None):
        try:
            self._bpe = read_codes(str(codes), "--codes")
        except ModuleNotFoundError as error:
            raise SystemExit(f"error: {error.name} is missing: pip install subword-nmt") from None
        self._frequent = WordSet(frequent) if frequent else None
        self._known = dict(_KEPT)

    def __call__(self, word: str) -> str:
        """The pieces of a word, separated by blanks; all but the last end in `@@`."""
        pieces = self._known.get(word)
        if pieces is None:
            if len(self._known) > REMEMBERED:  # all words of 16 GB of text would need gigabytes
                self._known = dict(_KEPT)
                self._bpe.cache.clear()
            pieces = self._known[word] = self._cut(word)
        return pieces

    def _cut(self, word: str) -> str:
        if self._frequent is not None and word not in self._frequent:
            return UNKNOWN
        return " ".join(self._bpe.segment_tokens([word]))


def text_bytes(shard: Path) -> int:
    """Size of the text of a cleaned or encoded shard."""
    return sum((shard / f"{split}.txt").stat().st_size for split in ("train", "valid"))


def encode_shard(shard: Path, output: Path, codes: Path, frequent: Path | None) -> None:
    encoder = Encoder(codes, frequent)
    stats: Counter[str] = Counter()
    symbols: Counter[str] = Counter()
    with whole_folder(output / shard.name, option="") as folder:
        for split in ("train", "valid"):
            with open(folder / f"{split}.txt", "w", encoding="utf-8") as file:
                for document in read_sentences(shard / f"{split}.txt"):
                    lines = [" ".join(map(encoder, sentence)) for sentence in join_short(document)]
                    file.write("\n".join(lines) + "\n\n")
                    found = Counter(" ".join(lines).split(" "))
                    counts = {"documents": 1, "sentences": len(lines), "unknown": found[UNKNOWN]}
                    counts["tokens"] = sum(found.values())
                    stats.update({f"{split}_{what}": number for what, number in counts.items()})
                    if split == "train":
                        symbols.update(found)
        write_counts(symbols, folder / "symbols.txt")
        (folder / "stats.json").write_text(json.dumps(stats) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder with clean/ and words/; gets encoded/")
    parser.add_argument("--codes", type=Path, required=True, help="merges of subword-nmt")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes (default: one per core)")
    args = parser.parse_args()
    output = args.work / "encoded"
    words = json.loads((args.work / "words" / "stats.json").read_text())
    # where all types are kept, those that only the validation text has are kept, too
    frequent = args.work / "words" / "frequent.npy" if words["frequent_types"] < words["word_types"] else None
    tasks = [
        (text_bytes(shard), (shard, output, args.codes, frequent))
        for shard in finished_shards(args.work / "clean")
        if not (output / shard.name).is_dir()
    ]
    run_tasks("encoding", encode_shard, tasks, args.jobs)


if __name__ == "__main__":
    with one_line():
        main()
