"""Convert IWSLT 2017's files of German and English to the layout that scripts/multi30k/prepare.sh reads.

train.tags.de-en.de           a sentence a line; lines that begin with a tag, such as <url>, are about the talk
IWSLT17.TED.dev2010.de-en.de.xml    <seg id="1"> a sentence </seg>

-> raw/{train,val,test_2016_flickr}.{de,en}.gz and tok/ with the same text in lower case, punctuation normalised, in
Moses tokens with Moses' escapes.
"""

from __future__ import annotations

import gzip
import html
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm
from wmt14.sgm import read_pair, same_length, utf8_lines

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.vocab.cleaning import moses_punctuation
from embinit_fairseq.vocab.preparation_steps import STEPS

LANGS = ("de", "en")
#: Multi30k's names of the splits
TRAIN, VALID, TEST = "train", "val", "test_2016_flickr"
#: beginning of a line about the talk; "<3" and "<<" begin a sentence, which the other side has, too
_TAG = re.compile(r"\s*</?[a-z]+(?:\s[^<>]*)?>")


def find(folder: Path, name: str, pair: str) -> Path:
    """Return the file `name`, which contains {pair}: of either direction, in `folder` or in a folder of that name."""
    other = "-".join(reversed(pair.split("-")))
    tried = [base / name.format(pair=either) for either in (pair, other) for base in (folder, folder / either)]
    file = next((path for path in tried if path.is_file()), None)
    if file is None:
        raise SystemExit(
            f"error: {folder} has no {name.format(pair=pair)}, nor has a folder {pair} in it: unpack IWSLT 2017's "
            f"{pair}.tgz there, or set DATA to where it is"
        )
    return file


def read_train(path: Path) -> list[str]:
    """Return the sentences of a train.tags file, without the lines about a talk (<url>, <title>, ...)."""
    lines = (line for line in utf8_lines(path) if not _TAG.match(line))
    return [" ".join(html.unescape(line).split()) for line in lines]


def training_pairs(folder: Path, pair: str) -> list[tuple[str, str]]:
    """Return (de, en), in the order of LANGS; SystemExit for files that do not belong together."""
    paths = tuple(find(folder, f"train.tags.{{pair}}.{lang}", pair) for lang in LANGS)
    sides = tuple(read_train(path) for path in paths)
    same_length(paths, sides)
    pairs = [both for both in zip(*sides) if all(both)]
    if not pairs:
        raise SystemExit(f"error: {paths[0]}: no sentence in it; unpack it again")
    if len(pairs) < len(sides[0]):
        print(f"note: training pairs with an empty side, left out: {len(sides[0]) - len(pairs):,}", file=sys.stderr)
    return pairs


def test_pairs(folder: Path, pair: str, names: list[str]) -> list[tuple[str, str]]:
    """Return (de, en) of sets such as dev2010, in this order."""
    pairs: list[tuple[str, str]] = []
    for name in names:
        paths = [find(folder, f"IWSLT17.TED.{name}.{{pair}}.{lang}.xml", pair) for lang in LANGS]
        sides = ([html.unescape(line) for line in side] for side in read_pair(*paths))
        pairs += zip(*sides)
    return pairs


def tokenised(lines: list[str], lang: str) -> Iterator[str]:
    """Yield lower-cased, normalised Moses tokens with their escapes: Multi30k's lc.norm.tok."""
    from sacremoses import MosesTokenizer

    normalise, lower, moses = moses_punctuation(lang), STEPS["lowercase"].apply(), MosesTokenizer(lang=lang)
    for line in tqdm(lines, desc=f"tokens, {lang}", unit="line", disable=None, leave=False):
        yield moses.tokenize(lower(normalise(line)), return_str=True)


def write(folder: Path, split: str, pairs: list[tuple[str, str]]) -> None:
    """Write the raw text and the tokens of a split."""
    for lang, lines in zip(LANGS, zip(*pairs)):
        raw, tok = folder / f"raw/{split}.{lang}.gz", folder / f"tok/{split}.lc.norm.tok.{lang}"
        for path in (raw, tok):
            path.parent.mkdir(parents=True, exist_ok=True)
        raw.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
        tok.write_text("".join(f"{line}\n" for line in tokenised(lines, lang)), encoding="utf-8")


def main() -> None:
    """Convert the splits."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with IWSLT 2017's files")
    parser.add_argument("--pair", required=True, choices=("de-en", "en-de"), help="source and target")
    parser.add_argument("--valid", nargs="+", required=True, help="sets for validation, such as dev2010")
    parser.add_argument("--test", nargs="+", required=True, help="sets for the test, such as tst2010")
    parser.add_argument("output", type=Path, help="folder in the layout of Multi30k")
    args = parser.parse_args()
    sets = [*args.valid, *args.test]
    if repeated := sorted({name for name in sets if sets.count(name) > 1}):
        flags = f"--valid {' '.join(args.valid)} --test {' '.join(args.test)}"
        parser.error(f"{flags}: {repeated[0]} more than once; choose different sets")
    splits = {
        TRAIN: training_pairs(args.data, args.pair),
        VALID: test_pairs(args.data, args.pair, args.valid),
        TEST: test_pairs(args.data, args.pair, args.test),
    }
    for split, pairs in splits.items():
        write(args.output, split, pairs)
    print(" ".join(f"{split}: {len(pairs):,} pairs" for split, pairs in splits.items()), file=sys.stderr)


if __name__ == "__main__":
    main()
