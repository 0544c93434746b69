"""Shards of raw text -> normalised and, for BPE, tokenised lines, and counts of the words of the training text.

work/shards.json -> work/clean/00000/{train.en,train.de,valid.en,valid.de,words.txt,stats.json}
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Callable

from wikibooks.pool import run_tasks
from wikibooks.words import write_counts

from embinit_fairseq.errors import one_line
from embinit_fairseq.files import whole_folder

#: A longer line would have more than 250 pieces; the libraries' time grows with the square of some lines' length.
MAX_CHARS = 5000
TOKENS = ("subword_nmt", "sentencepiece")
SPLITS = ("train", "valid")


def normaliser(lang: str) -> Callable[[str], str]:
    """Moses' normalisation of punctuation; what does not print is removed, blanks of all kinds become one blank."""
    from sacremoses import MosesPunctNormalizer

    moses = MosesPunctNormalizer(lang=lang)
    return lambda line: moses.remove_control_chars(" ".join(moses.normalize(line).split()))


def moses_words(lang: str, split_hyphens: bool) -> Callable[[str], str]:
    """Moses tokens without its escapes, separated by blanks. split_hyphens: well-known -> well @-@ known."""
    from sacremoses import MosesTokenizer

    moses = MosesTokenizer(lang=lang)
    return lambda line: " ".join(moses.tokenize(line, aggressive_dash_splits=split_hyphens, escape=False))


def cleaner(lang: str, tokens: str) -> Callable[[str], str]:
    """What becomes of a line before it is cut into pieces. Raises SystemExit without sacremoses."""
    try:
        normalise, words = normaliser(lang), moses_words(lang, split_hyphens=True)
    except ModuleNotFoundError as error:
        raise SystemExit(f"error: {error.name} is missing: pip install sacremoses") from None
    return normalise if tokens == "sentencepiece" else lambda line: words(normalise(line))


def lines_of(place: list) -> Iterator[bytes]:
    """place: path, offset, bytes."""
    path, offset, size = place
    with open(path, "rb") as file:
        file.seek(offset)
        while size > 0:
            line = file.readline()
            size -= len(line)
            yield line


def clean_shard(number: int, shard: dict, langs: list[str], output: Path, tokens: str, valid_every: int) -> None:
    cleaners = [cleaner(lang, tokens) for lang in langs]
    words: Counter[str] = Counter()  # of the training text only: the validation text teaches nothing
    stats: Counter[str] = Counter()
    with whole_folder(output / f"{number:05}", option="") as folder:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder with shards.json; gets clean/")
    parser.add_argument("--langs", nargs=2, required=True, help="source and target")
    parser.add_argument("--tokens", choices=TOKENS, required=True, help="what the text is cut by later")
    parser.add_argument("--valid-every", type=int, required=True, help="every N-th pair is for validation")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    args = parser.parse_args()
    output = args.work / "clean"
    cleaner(args.langs[0], args.tokens)  # a missing library is best reported before anything is done
    tasks = [
        (sum(shard[lang][2] for lang in args.langs), (number, shard, args.langs, output, args.tokens, args.valid_every))
        for number, shard in enumerate(json.loads((args.work / "shards.json").read_text()))
        if not (output / f"{number:05}").is_dir()
    ]
    run_tasks("cleaning", clean_shard, tasks, args.jobs)


if __name__ == "__main__":
    with one_line():
        main()
