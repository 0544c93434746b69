"""What a file of vectors looks like as the embedding table of a dictionary: coverage, range, mean, sigma, and beside
them Xavier's range and the position encoding (Kim et al. 2024, Tables 2 and 6)."""

from __future__ import annotations

import argparse
import math
from typing import Any

from embinit_fairseq.analysis.positions import FORMULAS
from embinit_fairseq.analysis.statistics import table_statistics
from embinit_fairseq.cli.sources import add_vector_options, print_json, read_vectors
from embinit_fairseq.errors import counted
from embinit_fairseq.vocab.align import RULES, align, plan
from embinit_fairseq.vocab.dictionary import read_dictionary

HELP = "coverage and distribution of vectors for a dictionary"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_vector_options(parser)
    parser.add_argument("--dict", metavar="DICT", help="fairseq's dict.txt; without it all rows of the file are meant")
    parser.add_argument("--dim", type=int, metavar="D", help="refuse vectors of another dimension")
    parser.add_argument("--match", nargs="+", choices=RULES, default=list(RULES), help="rules to match words by")
    parser.add_argument("--position-formula", choices=FORMULAS, default="fairseq", help="default: %(default)s")
    parser.add_argument("--position-rows", type=int, default=1024, metavar="L", help="default: %(default)s")
    parser.add_argument("--missing", type=int, default=20, metavar="K", help="list K frequent words without a vector")


def run(args: argparse.Namespace) -> int:
    """Read, match, print."""
    if args.dict is None:
        table = read_vectors(args, None, args.dim)
        vocabulary = alignment = None
    else:
        vocabulary = read_dictionary(args.dict)
        table = read_vectors(args, plan(vocabulary, args.match), args.dim)
        alignment = align(vocabulary, table, args.match)
    record = table_statistics(
        table, vocabulary, alignment, args.position_formula, args.position_rows, max(args.missing, 0)
    )
    if args.json:
        print_json(record)
    else:
        print(render(record))
    return 0


def render(record: dict[str, Any]) -> str:
    """The record as a table for people."""
    rows = counted(record["source_rows"], "row")
    lines = [
        f"vectors        {record['vectors']} ({record['format']}, {rows} x {record['dim']})",
        f"table          N = {counted(record['rows'], 'row')} x D = {record['dim']}",
    ]
    named = {"duplicates": "duplicate", "broken_lines": "broken line"}
    flaws = [counted(record[key], noun) for key, noun in named.items() if record[key]]
    if flaws:
        lines.append(f"ignored        {', '.join(flaws)}")
    if record["coverage_types"] is not None:
        rules = ", ".join(f"{rule} {count:,}" for rule, count in record["rows_by_rule"].items())
        lines.append(f"found          {counted(record['found'], 'word')} ({rules})")
        lines.append(
            f"coverage       {record['coverage_types']:.1%} of types, {record['coverage_tokens']:.1%} of tokens"
        )
    lines += ["", f"{'':<20}{'min':>11}{'max':>11}{'mean':>11}{'sigma':>11}{'absorption':>12}"]
    for name, table in record["tables"].items():
        lines.append(_line(name, table))
        lines.append(_line("  (scaled)", table["scaled"]) + _number(record["absorption_ratios"][name], 12))
    positions = record["positions"]
    lines.append(_line("positions", positions) + f"   {positions['formula']}, {counted(positions['length'], 'row')}")
    if record["missing"]:
        words = ", ".join(f"{word} ({count:,})" for word, count in record["missing"])
        lines += ["", f"without a vector: {words}"]
    return "\n".join(lines)


def _number(value: float | None, width: int) -> str:
    """Right-aligned; a dash for what does not exist (the sigma of a single number)."""
    return f"{'-':>{width}}" if value is None or not math.isfinite(value) else f"{value:>{width}.4g}"


def _line(name: str, moments: dict[str, float]) -> str:
    return f"{name:<20}" + "".join(_number(moments[key], 11) for key in ("min", "max", "mean", "std"))
