"""Describe prepared data: sums over all shards, as JSON in the data's folder and in words."""

from __future__ import annotations

import html
from collections import Counter
from pathlib import Path

from shards.tasks import SPLITS, sum_stats
from wmt14.clean import STEPS, shard_records

from embinit_fairseq.io import read_json, read_lines, write_json
from embinit_fairseq.vocab.preparation_options import parse_steps
from embinit_fairseq.vocab.preparation_record import record_preparation

_REASONS = {
    "too_many_characters": "more than 5,000 characters",
    "empty": "a side empty",
    "too_many_pieces": "too many pieces",
    "ratio": "one side much longer",
}


def collect(work: Path, dictionary: Path) -> dict:
    """Return the report: pairs of each corpus, numbers over all shards, the origin of the test set, symbols."""
    corpora: Counter[str] = Counter()
    for shard in shard_records(work):
        corpora[shard["corpus"]] += shard["pairs"]
    with open(dictionary, encoding="utf-8") as lines:
        symbols = sum(1 for _ in lines)
    return {
        "corpora": dict(corpora),
        "clean": sum_stats(work / "clean"),
        "encoded": sum_stats(work / "encoded"),
        "test": read_json(work / "files.json")["test"],
        "dictionary": symbols,
    }


def write_report(output: Path, pair: str, tokens: str, model: Path) -> dict:
    """Write report.json, the result of `collect` with the number of parts, and the preparation's record into each part.

    Args:
        output: folder of bin and work.
        pair: source and target, as en-de.
        tokens: kind of `model`.
        model: merges of BPE or sentencepiece model.
    """
    work = output / "work"
    parts = sorted({path.parent for path in output.glob("bin*/dict.*")})
    steps, pairs = {}, {}
    for lang in pair.split("-"):
        name = f"dict.{lang}.txt"
        steps[name] = parse_steps(STEPS[tokens], lang)
        raw, pieces = ([line for _, line in read_lines(folder / f"test.{lang}")] for folder in (output, work / "test"))
        pairs[name] = list(zip(map(html.unescape, raw), pieces))
    files = {"model" if tokens == "sentencepiece" else "codes": model}
    for part in parts:
        record_preparation(part, steps, files, pairs, "scripts/wmt14/prepare.sh")
    sums = {**collect(work, work / "dict.txt"), "parts": len(parts)}
    write_json(output / "report.json", sums)
    return sums


def sentences(sums: dict) -> list[str]:
    """Return a line for each part of the data."""
    clean, encoded = sums["clean"], sums["encoded"]
    lines = [", ".join(f"{name}: {pairs:,} pairs" for name, pairs in sums["corpora"].items())]
    out = Counter(too_many_characters=clean.get("too_many_characters", 0))
    for split in SPLITS:
        out.update({reason: encoded.get(f"{split}_{reason}", 0) for reason in _REASONS})
    lines += ["left out: " + ", ".join(f"{out[reason]:,} {text}" for reason, text in _REASONS.items())]
    if clean["not_utf8"]:
        lines += [f"{clean['not_utf8']:,} pairs were not UTF-8: the bytes concerned are gone"]
    for split in SPLITS:
        pieces = [f"{n:,} pieces {key[-2:]}" for key, n in encoded.items() if key.startswith(f"{split}_pieces_")]
        lines += [f"{split}: {encoded[f'{split}_pairs']:,} pairs, {', '.join(pieces)}"]
    test = sums["test"]
    origin = "sacrebleu's wmt14/full" if test["kind"] == "sacrebleu" else f"{test['src']} and {test['ref']}"
    return [*lines, f"test: {origin}", f"dictionary: {sums['dictionary']:,} symbols without fairseq's four"]
