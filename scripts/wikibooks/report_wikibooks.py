"""Describe prepared text: sums over all shards, as JSON in the data's folder and in words."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

from shards.tasks import SPLITS, finished_shards, sum_stats
from wikibooks.clean_shards import cleaner
from wikibooks.duplicates import read_documents
from wikibooks.encode_shards import Encoder
from wikibooks.split import shard_records

from embinit_fairseq.corpora.fairseq_data import count
from embinit_fairseq.io import read_json, write_json
from embinit_fairseq.vocab.preparation_options import parse_steps
from embinit_fairseq.vocab.preparation_record import record_preparation


def write_report(output: Path) -> dict[str, Any]:
    """Write report.json, the sums of all shards, and the record of the preparation into each part of the data."""
    work, codes = output / "work", output / "bpe.codes"
    with open(work / "dict.txt", encoding="utf-8") as lines:
        dictionary = sum(1 for _ in lines)
    parts = sorted(path.parent for path in output.glob("bin*/dict.txt"))
    for part in parts:
        record_preparation(
            part,
            {"dict.txt": parse_steps("wikibooks,bpe")},
            {"codes": codes},
            {"dict.txt": prepared_lines(work, codes)},
            "scripts/wikibooks/prepare.sh",
        )
    binary = {split: sum_binary(work, split) for split in SPLITS}
    sums = sum_up(work) | {"dictionary": dictionary, "parts": len(parts), "binary": binary}
    write_json(output / "report.json", sums)
    return sums


def sum_binary(work: Path, split: str) -> dict[str, int]:
    """Return the numbers of symbols that training reads, and of <unk> among them, after rare symbols became <unk>."""
    shards = [count(shard / split) for shard in finished_shards(work / "binary")]
    return {"tokens": sum(shard.tokens for shard in shards), "unknown": sum(shard.unknown for shard in shards)}


def prepared_lines(work: Path, codes: Path) -> list[tuple[str, str]]:
    """Return a few raw lines with their symbols by the steps `cleaning` and `encoding`."""
    first = min((work / "raw").glob("*/*.txt"))
    documents = islice(read_documents(first), 20)
    raw = [line.decode("utf-8", "ignore") for document in documents for line in document][:20]
    prepare, encode = cleaner(), Encoder(codes, None)
    return [(line, " ".join(encode(word) for words in prepare.sentences(line) for word in words)) for line in raw]


def sum_up(work: Path) -> dict[str, Any]:
    """Return {"raw": ..., "clean": ..., "encoded": ..., "words": ...}: numbers over all shards."""
    raw: Counter[str] = Counter()
    for shard in shard_records(work):
        raw.update({key: shard[key] for key in ("bytes", "lines", "too_long")})
    return {
        "raw": dict(raw),
        "clean": sum_stats(work / "clean"),
        "encoded": sum_stats(work / "encoded"),
        "words": read_json(work / "words" / "stats.json"),
    }


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
    for split in SPLITS:
        share = 100 * sums["binary"][split]["unknown"] / max(sums["binary"][split]["tokens"], 1)
        lines += [
            f"{split}: {encoded[f'{split}_documents']:,} documents, {encoded[f'{split}_sentences']:,} sentences, "
            f"{encoded[f'{split}_tokens']:,} subwords ({share:.2f} % <unk>)"
        ]
    return [*lines, f"dictionary: {sums['dictionary']:,} symbols besides fairseq's four and <mask>"]
