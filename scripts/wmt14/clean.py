"""Clean shards: normalise and, for BPE, tokenise lines, and count the words of the training text.

work/files.json -> work/ranges/*.json -> work/clean/00000/{train.en,train.de,valid.en,valid.de,words.txt,stats.json}

A shard is a range of pairs of lines of one corpus; nothing is copied for it. Pairs are numbered over all corpora, from
1, so that the choice of validation pairs depends neither on the shards nor on the number of processes.

work/ranges/*.json: [{"first": number of the first pair, "pairs": ..., "en": [path, offset, bytes], "de": ...}, ...]
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path

from shards.counts import write_counts
from shards.tasks import SPLITS, Task

from embinit_fairseq.errors import OptionError
from embinit_fairseq.io import read_json, whole_folder, write_json
from embinit_fairseq.vocab.preparation_options import parse_steps
from embinit_fairseq.vocab.preparation_record import libraries
from embinit_fairseq.vocab.preparation_steps import Preparation

#: characters; a longer line would have more than 250 pieces, and takes the libraries quadratic time
MAX_CHARS = 5000
#: kind of the pieces -> the steps from raw text, as `--preparation` has them
STEPS = {"subword_nmt": "normalised,moses:no-escape:dashes,bpe", "sentencepiece": "normalised,sentencepiece"}


def range_tasks(work: Path, langs: list[str], size: int, limit: int | None) -> list[Task]:
    """Return a task per corpus, which writes the places of `size` pairs per shard."""
    tasks = []
    for number, corpus in enumerate(read_json(work / "files.json")["corpora"]):
        output = work / "ranges" / f"{number:05}.json"
        paths = {lang: Path(corpus[lang]["path"]) for lang in langs}
        bytes_read = sum(corpus[lang]["bytes"] for lang in langs)
        tasks.append(Task(output, write_ranges, (corpus["name"], paths, size, limit, output), bytes_read))
    return tasks


def write_ranges(corpus: str, paths: dict[str, Path], size: int, limit: int | None, output: Path) -> None:
    """Write the shards of one corpus; its first pair has the number 0."""
    write_json(output, [{"corpus": corpus, **shard} for shard in cut(paths, 0, size, limit)])


def shard_records(work: Path) -> list[dict]:
    """Return the shards of all corpora; the first pair has the number 1. OptionError if there are none."""
    shards: list[dict] = []
    for path in sorted((work / "ranges").glob("*.json")):
        first = shards[-1]["first"] + shards[-1]["pairs"] if shards else 1
        shards += [{**shard, "first": first + shard["first"]} for shard in read_json(path)]
    if not shards:
        raise OptionError("the files of all corpora are empty: get them again")
    return shards


def clean_tasks(work: Path, langs: list[str], tokens: str, valid_every: int) -> list[Task]:
    """Return a task per shard.

    Args:
        work: folder with ranges/.
        langs: source and target.
        tokens: the kind of the pieces that the text will have, a key of STEPS.
        valid_every: every N-th pair is for validation.
    """
    tasks = []
    for number, shard in enumerate(shard_records(work)):
        output = work / "clean" / f"{number:05}"
        arguments = (shard, langs, output, tokens, valid_every)
        tasks.append(Task(output, clean_shard, arguments, sum(shard[lang][2] for lang in langs)))
    return tasks


def cut(paths: dict[str, Path], first: int, size: int, limit: int | None) -> Iterator[dict]:
    """Yield shards of two files; SystemExit if one has more lines."""
    (left, right), langs = paths.values(), list(paths)
    begin, end, pairs, total = [0, 0], [0, 0], 0, 0

    def shard() -> dict:
        places = {lang: [str(paths[lang]), begin[i], end[i] - begin[i]] for i, lang in enumerate(langs)}
        return {"first": first + total - pairs, "pairs": pairs, **places}

    with open(left, "rb") as left_lines, open(right, "rb") as right_lines:
        for pair in zip_longest(left_lines, right_lines):
            if None in pair:
                longer, shorter = (right, left) if pair[0] is None else (left, right)
                raise SystemExit(
                    f"error: {longer} has more lines than {shorter} ({total:,}): they do not belong together, or one "
                    "is incomplete; get them again"
                )
            end = [end[0] + len(pair[0]), end[1] + len(pair[1])]
            pairs, total = pairs + 1, total + 1
            if pairs == size or total == limit:
                yield shard()
                begin, pairs = end, 0
            if total == limit:
                return
    if pairs:
        yield shard()


def cleaner(lang: str, tokens: str) -> Callable[[str], str]:
    """Return the function that cleans a line before it is segmented; OptionError without sacremoses."""
    prepare = Preparation(parse_steps(STEPS[tokens], lang))
    with libraries():
        prepare.parts("")
    if tokens == "sentencepiece":
        return lambda line: "".join(prepare.parts(line))
    return lambda line: " ".join("".join(prepare.parts(line)).split())  # sacremoses may write two spaces


def lines_of(place: list) -> Iterator[bytes]:
    """Yield the lines of a place: path, offset, bytes."""
    path, offset, size = place
    with open(path, "rb") as file:
        file.seek(offset)
        while size > 0:
            line = file.readline()
            size -= len(line)
            yield line


def clean_shard(shard: dict, langs: list[str], output: Path, tokens: str, valid_every: int) -> None:
    """Write the folder of one shard."""
    cleaners = [cleaner(lang, tokens) for lang in langs]
    words: Counter[str] = Counter()  # of the training text only: the validation text teaches nothing
    stats: Counter[str] = Counter()
    with whole_folder(output, option="") as folder:
        with ExitStack() as opened:
            files = {
                split: [opened.enter_context(open(folder / f"{split}.{lang}", "w", encoding="utf-8")) for lang in langs]
                for split in SPLITS
            }
            for pair, raw in enumerate(zip(*(lines_of(shard[lang]) for lang in langs)), shard["first"]):
                texts = [line.decode("utf-8", "ignore") for line in raw]
                stats["pairs"] += 1
                stats["not_utf8"] += any(len(text.encode()) != len(line) for text, line in zip(texts, raw))
                if max(map(len, texts)) > MAX_CHARS:
                    stats["too_many_characters"] += 1
                    continue
                split = SPLITS[pair % valid_every == 0]
                for clean, text, file in zip(cleaners, texts, files[split]):
                    line = clean(text)
                    file.write(line + "\n")
                    if split == "train" and tokens == "subword_nmt":
                        words.update(line.split())
        write_counts(words, folder / "words.txt")
        (folder / "stats.json").write_text(json.dumps(stats) + "\n")
