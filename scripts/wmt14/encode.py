"""Shards of cleaned text -> pieces, without pairs of which a side is empty or too long, or much longer than the other.

work/clean/00000/train.en -> work/encoded/00000/{train.en,train.de,valid.en,valid.de,stats.json}
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from wikibooks.pool import finished_shards, run_tasks
from wmt14.clean import SPLITS, TOKENS

from embinit_fairseq.errors import one_line
from embinit_fairseq.files import whole_folder
from embinit_fairseq.machine import cores


def piece_encoder(tokens: str, model: Path) -> Callable[[str], list[str]]:
    """A function from a cleaned line to its pieces."""
    if tokens == "sentencepiece":
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        return lambda line: processor.encode(line, out_type=str)
    from wikibooks.encode import Encoder

    encoder = Encoder(model, None)  # it remembers words, as many as 100 MB hold
    return lambda line: " ".join(map(encoder, line.split())).split()


def unfit(lengths: list[int], max_length: int, max_ratio: float) -> str | None:
    """Why a pair of so many pieces is left out: the rule of Moses' clean-corpus-n.perl."""
    if min(lengths) == 0:
        return "empty"
    if max(lengths) > max_length:
        return "too_many_pieces"
    return "ratio" if max(lengths) > max_ratio * min(lengths) else None


def encode_shard(
    shard: Path, langs: list[str], output: Path, tokens: str, model: Path, max_length: int, max_ratio: float
) -> None:
    encode = piece_encoder(tokens, model)
    stats: Counter[str] = Counter()
    with whole_folder(output / shard.name, option="") as folder:
        for split in SPLITS:
            with ExitStack() as opened:
                names = [f"{split}.{lang}" for lang in langs]
                pairs = zip(*(opened.enter_context(open(shard / n, encoding="utf-8", newline="\n")) for n in names))
                files = [opened.enter_context(open(folder / name, "w", encoding="utf-8")) for name in names]
                for pair in pairs:
                    pieces = [encode(line) for line in pair]
                    reason = unfit(list(map(len, pieces)), max_length, max_ratio)
                    stats[f"{split}_{reason or 'pairs'}"] += 1
                    for lang, side, file in () if reason else zip(langs, pieces, files):
                        stats[f"{split}_pieces_{lang}"] += len(side)
                        file.write(" ".join(side) + "\n")
        (folder / "stats.json").write_text(json.dumps(stats) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder with clean/; gets encoded/")
    parser.add_argument("--langs", nargs=2, required=True, help="source and target")
    parser.add_argument("--tokens", choices=TOKENS, required=True, help="what the model is")
    parser.add_argument("--model", type=Path, required=True, help="merges or sentencepiece model")
    parser.add_argument("--max-length", type=int, required=True, help="pieces of a line")
    parser.add_argument("--max-ratio", type=float, required=True, help="pieces of one side for each of the other")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes (default: one per core)")
    args = parser.parse_args()
    output = args.work / "encoded"
    tasks = [
        (
            sum((shard / f"{split}.{lang}").stat().st_size for split in SPLITS for lang in args.langs),
            (shard, args.langs, output, args.tokens, args.model, args.max_length, args.max_ratio),
        )
        for shard in finished_shards(args.work / "clean")
        if not (output / shard.name).is_dir()
    ]
    run_tasks("encoding", encode_shard, tasks, args.jobs)


if __name__ == "__main__":
    with one_line():
        main()
