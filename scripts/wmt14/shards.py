"""Where the shards of the training text begin: the second step of prepare.sh. Nothing is copied.

A shard is a number of pairs of lines of one corpus. Pairs are numbered over all corpora, from 1, so that the choice of
those for validation depends neither on the shards nor on the number of processes.

work/shards.json: [{"first": number of the first pair, "pairs": ..., "en": [path, offset, bytes], "de": ...}, ...]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from tqdm import tqdm

from embinit_fairseq.errors import one_line
from embinit_fairseq.files import write_text


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder with files.json")
    parser.add_argument("--langs", nargs=2, required=True, help="source and target")
    parser.add_argument("--pairs", type=int, default=50_000, help="pairs of lines in a shard (default %(default)s)")
    parser.add_argument("--limit", type=int, help="only the first pairs of each corpus")
    args = parser.parse_args()
    files = json.loads((args.work / "files.json").read_text())
    broken = changed(files, args.langs)
    if broken is not None:
        raise SystemExit(f"error: {broken} was there before, and is missing or changed now: remove {args.work}")
    if (args.work / "shards.json").is_file():
        print("shards: there already", file=sys.stderr)
        return
    shards: list[dict] = []
    with tqdm(unit=" pairs", unit_scale=True, desc="shards") as bar:
        for corpus in files["corpora"]:
            first = shards[-1]["first"] + shards[-1]["pairs"] if shards else 1
            paths = {lang: Path(corpus[lang]["path"]) for lang in args.langs}
            for shard in cut(paths, first, args.pairs, args.limit):
                shards.append({"corpus": corpus["name"], **shard})
                bar.update(shard["pairs"])
    if not shards:
        raise SystemExit("error: the files of all corpora are empty: get them again")
    write_text(args.work / "shards.json", "[\n" + ",\n".join(map(json.dumps, shards)) + "\n]\n")


if __name__ == "__main__":
    with one_line():
        main()
