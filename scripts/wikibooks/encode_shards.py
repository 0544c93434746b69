"""Segment shards of tokenised text into subwords: rare words become <unk>, short sentences are joined, BPE is applied.

work/clean/00000/train.txt -> work/encoded/00000/{train.txt,valid.txt,symbols.txt,stats.json}

Short sentences of a document are joined to their neighbours: "concatenate the short sequences" (Ke et al., appendix B).
The rule is this project's: one pass, linear time. A sentence of fewer than SHORT words is joined to the neighbour with
which it makes the shorter sentence, to the next one if both are equal. If the first of the two ends in a full stop or
the like, the joined sentence counts as five words longer. No joined sentence has more than LONGEST words.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from shards.counts import WordSet, write_counts
from shards.tasks import SPLITS, Task, finished_shards, paragraphs
from wikibooks.clean_shards import SYMBOLS, UNKNOWN

from embinit_fairseq.errors import OptionError
from embinit_fairseq.io import read_json, whole_folder
from embinit_fairseq.vocab.subword_nmt import read_codes

#: words whose subwords are remembered: about 100 MB
REMEMBERED = 200_000
SHORT = 5
LONGEST = 250
_AFTER_END = 5
_ENDS = (".", "!", "?", '"')
_KEPT = {symbol: symbol for symbol in (*SYMBOLS, UNKNOWN)}


def encode_tasks(work: Path, codes: Path) -> list[Task]:
    """Return a task per shard."""
    words = read_json(work / "words" / "stats.json")
    # If all types are kept, types that occur only in the validation text are kept, too.
    frequent = work / "words" / "frequent.npy" if words["frequent_types"] < words["word_types"] else None
    tasks = []
    for shard in finished_shards(work / "clean"):
        output = work / "encoded" / shard.name
        tasks.append(Task(output, encode_shard, (shard, output, codes, frequent), text_bytes(shard)))
    return tasks


def encode_shard(shard: Path, output: Path, codes: Path, frequent: Path | None) -> None:
    """Write the folder of one shard. frequent: digests of the words that do not become <unk>; None: all."""
    encoder = Encoder(codes, frequent)
    stats: Counter[str] = Counter()
    symbols: Counter[str] = Counter()
    with whole_folder(output, option="") as folder:
        for split in SPLITS:
            with open(folder / f"{split}.txt", "w", encoding="utf-8") as file:
                for document in read_sentences(shard / f"{split}.txt"):
                    lines = [" ".join(map(encoder, sentence)) for sentence in join_short(document)]
                    file.write("\n".join(lines) + "\n\n")
                    subwords = Counter(" ".join(lines).split(" "))
                    counts = {"documents": 1, "sentences": len(lines), "unknown": subwords[UNKNOWN]}
                    counts["tokens"] = sum(subwords.values())
                    stats.update({f"{split}_{name}": number for name, number in counts.items()})
                    if split == "train":
                        symbols.update(subwords)
        write_counts(symbols, folder / "symbols.txt")
        (folder / "stats.json").write_text(json.dumps(stats) + "\n")


def read_sentences(path: Path) -> Iterator[list[list[str]]]:
    """Yield documents as lists of sentences; a blank line ends a document."""
    with open(path, encoding="utf-8", newline="\n") as text:
        yield from paragraphs(map(str.split, text))


def _cost(first: list[str], second: list[str]) -> float:
    length = len(first) + len(second)
    return math.inf if length > LONGEST else length + _AFTER_END * (first[-1] in _ENDS)


def join_short(sentences: list[list[str]]) -> list[list[str]]:
    """Return the same words in the same order in fewer sentences."""
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
    """Segment words by codes of subword-nmt, and remember their subwords."""

    def __init__(self, codes: Path, frequent: Path | None):
        try:
            self._bpe = read_codes(str(codes), "")
        except ModuleNotFoundError as error:
            raise OptionError(f"{error.name} is missing: pip install subword-nmt") from None
        self._frequent = WordSet(frequent) if frequent else None
        self._remembered = dict(_KEPT)

    def __call__(self, word: str) -> str:
        """Return the subwords of a word, separated by spaces; all but the last end in `@@`."""
        subwords = self._remembered.get(word)
        if subwords is None:
            if len(self._remembered) > REMEMBERED:  # all words of 16 GB of text would need gigabytes
                self._remembered = dict(_KEPT)
                self._bpe.cache.clear()
            subwords = self._remembered[word] = self._segment(word)
        return subwords

    def _segment(self, word: str) -> str:
        if self._frequent is not None and word not in self._frequent:
            return UNKNOWN
        return " ".join(self._bpe.segment_tokens([word]))


def text_bytes(shard: Path) -> int:
    """Return the size of the text of a cleaned or encoded shard."""
    return sum((shard / f"{split}.txt").stat().st_size for split in SPLITS)
