"""What a file of vectors looks like as the embedding table of a dictionary: coverage, range, mean, sigma, and beside
them Xavier's range and the position encoding (Kim et al. 2024, Tables 2 and 6)."""

from __future__ import annotations

import argparse
import math
from typing import Any

from embinit_fairseq.analysis.statistics import table_statistics
from embinit_fairseq.analysis.transforms import FORMULAS
from embinit_fairseq.cli.records import show
from embinit_fairseq.cli.vector_options import add_vector_options, read_for, read_vectors, source_of
from embinit_fairseq.errors import OptionError, counted
from embinit_fairseq.init.alignment import RULES, Reading
from embinit_fairseq.vectors.table import VectorTable
from embinit_fairseq.vocab.dictionary import Vocabulary, read_dictionary


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_vector_options(parser, "; with --dict also several as one table: concat:A,B, avg:A,B, concat-l2:, avg-l2:")
    parser.add_argument("--dict", metavar="DICT", help="fairseq's dict.txt; without it all rows of the file are meant")
    parser.add_argument("--dim", type=int, metavar="D", help="refuse vectors of another dimension")
    parser.add_argument("--match", nargs="+", choices=RULES, default=list(RULES), help="rules to match words by")
    parser.add_argument("--position-formula", choices=FORMULAS, default="fairseq", help="default: %(default)s")
    parser.add_argument("--position-rows", type=int, default=1024, metavar="L", help="default: %(default)s")
    parser.add_argument("--missing", type=int, default=20, metavar="K", help="list K frequent words without a vector")


def run(args: argparse.Namespace) -> int:
    """Read, match, print."""
    vocabulary: Vocabulary | None = None
    source: VectorTable | Reading
    if args.dict is None:
        if source_of(args).how is not None:
            raise OptionError(f"--vectors {args.vectors}: several files make a table for a dictionary only; add --dict")
        source = read_vectors(args, None, args.dim)
    else:
        vocabulary = read_dictionary(args.dict)
        source = read_for(args, vocabulary, args.match, args.dim)
    record = table_statistics(source, vocabulary, args.position_formula, args.position_rows, max(args.missing, 0))
    show(record, render, args.json)
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
        lines.append(f"coverage       {_shares(record)}")
    if "sources" in record:
        lines.append(f"in all files   {counted(record['found_in_all'], 'word')}")
    for file in record.get("sources", ()):
        size = f"{file['format']}, {counted(file['source_rows'], 'row')} x {file['dim']}"
        lines.append(f"  {file['vectors']} ({size}): {counted(file['found'], 'word')}, {_shares(file)}")
    lines += ["", f"{'':<20}{'min':>11}{'max':>11}{'mean':>11}{'sigma':>11}{'absorption':>12}"]
    for name, table in record["tables"].items():
        lines.append(_line(name, table))
        lines.append(_line("  (scaled)", table["scaled"]) + _number(record["absorption_ratios"][name], 12))
        if name in record["all_rows"]:  # the others hold for the rows that have a vector
            whole = _line("  (scaled, all rows)", record["all_rows"][name]["scaled"])
            lines.append(whole + _number(record["absorption_ratios_all_rows"][name], 12))
    positions = record["positions"]
    lines.append(_line("positions", positions) + f"   {positions['formula']}, {counted(positions['length'], 'row')}")
    if record["missing"]:
        words = ", ".join(f"{word} ({count:,})" for word, count in record["missing"])
        lines += ["", f"without a vector: {words}"]
    return "\n".join(lines)


def _shares(source: dict[str, Any]) -> str:
    return f"{source['coverage_types']:.1%} of types, {source['coverage_tokens']:.1%} of tokens"


def _number(value: float | None, width: int) -> str:
    """Right-aligned; a dash for what does not exist (the sigma of a single number)."""
    return f"{'-':>{width}}" if value is None or not math.isfinite(value) else f"{value:>{width}.4g}"


def _line(name: str, moments: dict[str, float]) -> str:
    return f"{name:<20}" + "".join(_number(moments[key], 11) for key in ("min", "max", "mean", "std"))
