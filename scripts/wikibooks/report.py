"""What the prepared data holds: sums over all shards, as JSON in the data's folder and in words."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from wikibooks.split import read_records

from embinit_fairseq.errors import one_line
from embinit_fairseq.files import write_json


def collect(work: Path, dictionary: Path) -> dict:
    """{"raw": ..., "clean": ..., "words": ..., "encoded": ..., "dictionary": symbols in dict.txt}."""
    raw: Counter[str] = Counter()
    for record in read_records(work / "raw"):
        raw.update({key: record[key] for key in ("bytes", "lines", "too_long")})
    sums = {"raw": dict(raw)}
    for stage in ("clean", "encoded"):
        found: Counter[str] = Counter()
        for path in sorted((work / stage).glob("[0-9]*/stats.json")):
            found.update(json.loads(path.read_text()))
        sums[stage] = dict(sorted(found.items()))
    sums["words"] = json.loads((work / "words" / "stats.json").read_text())
    with open(dictionary, encoding="utf-8") as lines:
        sums["dictionary"] = sum(1 for _ in lines)
    return sums


def sentences(sums: dict) -> list[str]:
    """One line for each part of the data."""
    clean, encoded, words = sums["clean"], sums["encoded"], sums["words"]
    lines = [f"input: {sums['raw']['bytes'] / 1e6:,.1f} MB of text, {sums['raw']['lines']:,} lines"]
    duplicates = [(key, number) for key, number in clean.items() if key in ("duplicate_lines", "duplicate_documents")]
    left_out = [*duplicates, ("lines of more than 1,000,000 characters", sums["raw"]["too_long"])]
    left_out += [("documents out of length", clean.get("documents_out_of_length", 0))]
    lines += ["left out: " + ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in left_out)]
    if clean["lines_not_utf8"]:
        lines += [f"{clean['lines_not_utf8']:,} lines were not UTF-8: the bytes concerned are gone; check the input"]
    lines += [f"{words['word_types']:,} word types in training, {words['frequent_types']:,} of them kept"]
    for split in ("train", "valid"):
        count = {key: encoded[f"{split}_{key}"] for key in ("documents", "sentences", "tokens", "unknown")}
        share = 100 * count["unknown"] / max(count["tokens"], 1)
        lines += [
            f"{split}: {count['documents']:,} documents, {count['sentences']:,} sentences, "
            f"{count['tokens']:,} sub-words ({share:.2f} % <unk>)"
        ]
    return [*lines, f"dictionary: {sums['dictionary']:,} symbols beside fairseq's four and <mask>"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of the shards")
    parser.add_argument("--dictionary", type=Path, required=True, help="dict.txt")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args()
    sums = collect(args.work, args.dictionary)
    if not sums["encoded"].get("valid_sentences"):
        raise SystemExit("error: nothing was left for validation: give more text, or a smaller --valid-every")
    write_json(args.output, sums)
    print("\n".join(sentences(sums)))


if __name__ == "__main__":
    with one_line():
        main()
