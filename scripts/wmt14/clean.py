"""Shards of raw text -> normalised and, for BPE, tokenised lines, and counts of the words of the training text.

work/files.json -> work/shards.json, work/clean/00000/{train.en,train.de,valid.en,valid.de,words.txt,stats.json}

A shard is a number of pairs of lines of one corpus; nothing is copied for it. Pairs are numbered over all corpora, from
1, so that the choice of those for validation depends neither on the shards nor on the number of processes.

work/shards.json: [{"first": number of the first pair, "pairs": ..., "en": [path, offset, bytes], "de": ...}, ...]
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path

from tqdm import tqdm
from wikibooks.pool import run_tasks
from wikibooks.words import write_counts

from embinit_fairseq.errors import one_line
from embinit_fairseq.files import whole_folder, write_text
from embinit_fairseq.machine import cores

#: A longer line would have more than 250 pieces; the libraries' time grows with the square of some lines' length.
MAX_CHARS = 5000
TOKENS = ("subword_nmt", "sentencepiece")
SPLITS = ("train", "valid")


def cut(paths: dict[str, Path], first: int, size: int, limit: int | None) -> Iterator[dict]:
    """Shards of two files of the same number of lines. SystemExit if their numbers differ."""
    (left, right), langs = paths.values(), list(paths)
    begin, end, pairs, total = [0, 0], [0, 0], 0, 0

    def shard() -> dict:
        places = {lang: [str(paths[lang]), begin[i], end[i] - begin[i]] for i, lang in enumerate(langs)}
        return {"first": first + total - pairs, "pairs": pairs, **places}

    with open(left, "rb") as left_lines, open(right, "rb") as right_lines:
        for each in zip_longest(left_lines, right_lines):
            if None in each:
                longer, shorter = (right, left) if each[0] is None else (left, right)
                raise SystemExit(
                    f"error: {longer} has more lines than {shorter} ({total:,}): they do not belong together, or one "
                    "is incomplete; get them again"
                )
            end = [end[0] + len(each[0]), end[1] + len(each[1])]
            pairs, total = pairs + 1, total + 1
            if pairs == size or total == limit:
                yield shard()
                begin, pairs = end, 0
            if total == limit:
                return
    if pairs:
        yield shard()


def changed(files: dict, langs: list[str]) -> Path | None:
    """A file that is not as it was when it was found."""
    for corpus in files["corpora"]:
        for lang in langs:
            path = Path(corpus[lang]["path"])
            if not path.is_file() or path.stat().st_size != corpus[lang]["bytes"]:
                return path
    return None


def write_shards(work: Path, langs: list[str], size: int, limit: int | None) -> None:
    """work/shards.json, unless it is there. SystemExit if a file is not as it was when it was found."""
    files = json.loads((work / "files.json").read_text())
    broken = changed(files, langs)
    if broken is not None:
        raise SystemExit(f"error: {broken} was there before, and is missing or changed now: remove {work}")
    if (work / "shards.json").is_file():
        return
    shards: list[dict] = []
    with tqdm(unit=" pairs", unit_scale=True, desc="shards") as bar:
        for corpus in files["corpora"]:
            first = shards[-1]["first"] + shards[-1]["pairs"] if shards else 1
            paths = {lang: Path(corpus[lang]["path"]) for lang in langs}
            for shard in cut(paths, first, size, limit):
                shards.append({"corpus": corpus["name"], **shard})
                bar.update(shard["pairs"])
    if not shards:
        raise SystemExit("error: the files of all corpora are empty: get them again")
    write_text(work / "shards.json", "[\n" + ",\n".join(map(json.dumps, shards)) + "\n]\n")


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
    parser.add_argument("--work", type=Path, required=True, help="folder with files.json; gets shards.json and clean/")
    parser.add_argument("--langs", nargs=2, required=True, help="source and target")
    parser.add_argument("--tokens", choices=TOKENS, required=True, help="what the text is cut by later")
    parser.add_argument("--valid-every", type=int, required=True, help="every N-th pair is for validation")
    parser.add_argument("--pairs", type=int, default=50_000, help="pairs of lines in a shard (default %(default)s)")
    parser.add_argument("--limit", type=int, help="only the first pairs of each corpus")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes (default: one per core)")
    args = parser.parse_args()
    output = args.work / "clean"
    cleaner(args.langs[0], args.tokens)  # a missing library is best reported before anything is done
    write_shards(args.work, args.langs, args.pairs, args.limit)
    tasks = [
        (sum(shard[lang][2] for lang in args.langs), (number, shard, args.langs, output, args.tokens, args.valid_every))
        for number, shard in enumerate(json.loads((args.work / "shards.json").read_text()))
        if not (output / f"{number:05}").is_dir()
    ]
    run_tasks("cleaning", clean_shard, tasks, args.jobs)


if __name__ == "__main__":
    with one_line():
        main()
