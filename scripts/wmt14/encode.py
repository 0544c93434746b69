"""Segment shards of cleaned text into pieces; leave out pairs with an empty, a too long or a much longer side.

work/clean/00000/train.en -> work/encoded/00000/{train.en,train.de,valid.en,valid.de,symbols.txt,stats.json}
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from shards.counts import write_counts
from shards.tasks import SPLITS, Task, finished_shards

from embinit_fairseq.io import whole_folder


def encode_tasks(
    work: Path, langs: list[str], tokens: str, model: Path, max_length: int, max_ratio: float
) -> list[Task]:
    """Return a task per shard.

    Args:
        work: folder with clean/.
        langs: source and target.
        tokens: kind of `model`, a key of clean.STEPS.
        model: merges of BPE or sentencepiece model.
        max_length: pieces of a line.
        max_ratio: pieces of one side for each piece of the other.
    """
    tasks = []
    for shard in finished_shards(work / "clean"):
        output = work / "encoded" / shard.name
        size = sum((shard / f"{split}.{lang}").stat().st_size for split in SPLITS for lang in langs)
        tasks.append(Task(output, encode_shard, (shard, langs, output, tokens, model, max_length, max_ratio), size))
    return tasks


def piece_encoder(tokens: str, model: Path) -> Callable[[str], list[str]]:
    """Return the function from a cleaned line to its pieces."""
    if tokens == "sentencepiece":
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        return lambda line: processor.encode(line, out_type=str)
    from wikibooks.encode_shards import Encoder

    encoder = Encoder(model, None)  # it remembers words, as many as 100 MB hold
    return lambda line: " ".join(map(encoder, line.split())).split()


def unfit(lengths: list[int], max_length: int, max_ratio: float) -> str | None:
    """Return why a pair with these numbers of pieces is left out, by Moses' clean-corpus-n.perl; or None."""
    if min(lengths) == 0:
        return "empty"
    if max(lengths) > max_length:
        return "too_many_pieces"
    return "ratio" if max(lengths) > max_ratio * min(lengths) else None


def encode_shard(
    shard: Path, langs: list[str], output: Path, tokens: str, model: Path, max_length: int, max_ratio: float
) -> None:
    """Write the folder of one shard."""
    to_pieces = piece_encoder(tokens, model)
    stats: Counter[str] = Counter()
    symbols: Counter[str] = Counter()  # of the training text, both languages: the dictionary is joined
    with whole_folder(output, option="") as folder:
        for split in SPLITS:
            with ExitStack() as opened:
                names = [f"{split}.{lang}" for lang in langs]
                pairs = zip(*(opened.enter_context(open(shard / n, encoding="utf-8", newline="\n")) for n in names))
                files = [opened.enter_context(open(folder / name, "w", encoding="utf-8")) for name in names]
                for pair in pairs:
                    pieces = [to_pieces(line) for line in pair]
                    reason = unfit(list(map(len, pieces)), max_length, max_ratio)
                    stats[f"{split}_{reason or 'pairs'}"] += 1
                    for lang, side, file in () if reason else zip(langs, pieces, files):
                        stats[f"{split}_pieces_{lang}"] += len(side)
                        file.write(" ".join(side) + "\n")
                        if split == "train":
                            symbols.update(side)
        write_counts(symbols, folder / "symbols.txt")
        (folder / "stats.json").write_text(json.dumps(stats) + "\n")
