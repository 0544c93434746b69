"""Prepare text for masked-language-model pre-training in seven steps; `prepare.sh` says what they do and take.

Every step works on shards of the text and writes a folder below work/; a step or shard whose folder exists is done.

    work/raw/00000.txt            documents as they are, after each a blank line         split
    work/duplicates/000.npy       lines (or documents) that occurred before              duplicates
    work/clean/00000/train.txt    one tokenised sentence per line; words.txt: counts     cleaning
    work/words/bpe.txt            the most frequent words of the training text           words
    bpe.codes                     merges                                                 subword-nmt
    work/encoded/00000/train.txt  subwords; symbols.txt: counts                          encode
    bin/train.bin                 what fairseq-train reads                               binarise
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import OptionError, one_line
from embinit_fairseq.io import cores, read_json, whole_file, write_json


def prepare(args: argparse.Namespace) -> None:
    """Run the steps that are not done yet."""
    # Worker processes import this file: what a step needs is imported when the step comes.
    output, work = args.output, args.output / "work"
    from wikibooks import split

    split.split(args.input, work / "raw", int(args.shard_mb * 1e6), args.valid_every)
    from wikibooks import duplicates

    duplicates.find(work, args.duplicates, args.jobs)
    from wikibooks import cleaning

    cleaning.clean(work, args.duplicates, args.valid_every, args.jobs)
    from wikibooks import words

    words.count(work, args.frequent_types, args.bpe_words)
    if not (output / "bpe.codes").exists():
        learn_merges(work / "words" / "bpe.txt", args.bpe_merges, output / "bpe.codes")
    from wikibooks import encode

    encode.encode(work, output / "bpe.codes", args.jobs)
    from wikibooks import binarise

    sums = sum_up(work)
    if not sums["encoded"].get("valid_sentences"):
        raise OptionError("nothing was left for validation: give more text, or a smaller VALID_EVERY")
    sums["dictionary"] = binarise.binarise(work, output / "bin", args.vocabulary, args.jobs)
    write_json(output / "report.json", sums)
    print("\n".join(in_words(sums)))


def learn_merges(counts: Path, size: int, codes: Path) -> None:
    """Learn `size` merges of BPE from lines "word count"."""
    from subword_nmt.learn_bpe import learn_bpe

    with open(counts, encoding="utf-8") as words, whole_file(codes, "w") as file:
        learn_bpe(words, file, size, is_dict=True)


def sum_up(work: Path) -> dict[str, Any]:
    """Return {"raw": ..., "clean": ..., "encoded": ..., "words": ...}: numbers over all shards."""
    raw: Counter[str] = Counter()
    for shard in read_json(work / "raw" / "shards.json"):
        raw.update({key: shard[key] for key in ("bytes", "lines", "too_long")})
    sums: dict[str, Any] = {"raw": dict(raw)}
    for stage in ("clean", "encoded"):
        total: Counter[str] = Counter()
        for path in sorted((work / stage).glob("[0-9]*/stats.json")):
            total.update(read_json(path))
        sums[stage] = dict(sorted(total.items()))
    sums["words"] = read_json(work / "words" / "stats.json")
    return sums


def in_words(sums: dict[str, Any]) -> list[str]:
    """Return a line for each part of the report."""
    clean, encoded, words = sums["clean"], sums["encoded"], sums["words"]
    left_out = [(key, number) for key, number in clean.items() if key in ("duplicate_lines", "duplicate_documents")]
    left_out += [("lines of more than 1,000,000 characters", sums["raw"]["too_long"])]
    left_out += [("documents out of length", clean.get("documents_out_of_length", 0))]
    lines = [f"input: {sums['raw']['bytes'] / 1e6:,.1f} MB of text, {sums['raw']['lines']:,} lines"]
    lines += ["left out: " + ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in left_out)]
    if clean["lines_not_utf8"]:
        lines += [f"{clean['lines_not_utf8']:,} lines were not UTF-8: these bytes were removed; check the input"]
    lines += [f"{words['word_types']:,} word types in training, {words['frequent_types']:,} of them kept"]
    for split in ("train", "valid"):
        count = {key: encoded[f"{split}_{key}"] for key in ("documents", "sentences", "tokens", "unknown")}
        share = 100 * count["unknown"] / max(count["tokens"], 1)
        lines += [
            f"{split}: {count['documents']:,} documents, {count['sentences']:,} sentences, "
            f"{count['tokens']:,} subwords ({share:.2f} % <unk>)"
        ]
    return [*lines, f"dictionary: {sums['dictionary']:,} symbols besides fairseq's four and <mask>"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path, nargs="+", help="files with text")
    parser.add_argument("--output", type=Path, required=True, help="folder for work/, bin/, bpe.codes, report.json")
    parser.add_argument("--duplicates", choices=("lines", "documents", "none"), required=True)
    parser.add_argument("--frequent-types", type=float, required=True, help="share of the word types that are kept")
    parser.add_argument("--bpe-merges", type=int, required=True)
    parser.add_argument("--bpe-words", type=int, required=True, help="most frequent words to learn merges from")
    parser.add_argument("--vocabulary", type=int, required=True, help="symbols, with fairseq's own four")
    parser.add_argument("--valid-every", type=int, required=True, help="every N-th passage is for validation")
    parser.add_argument("--shard-mb", type=float, required=True)
    parser.add_argument("--jobs", type=int, default=cores(), help="processes (default: one per core)")
    prepare(parser.parse_args())


if __name__ == "__main__":
    with one_line():
        main()
