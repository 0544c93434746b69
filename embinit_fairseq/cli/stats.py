"""Describe vectors as the embedding matrix of a dictionary: coverage, range, mean and sigma, compared with Xavier's
distribution and the position encodings (Kim et al. 2024, Tables 2 and 6)."""

from __future__ import annotations

import argparse
from typing import Any

from embinit_fairseq.analysis.statistics import dictionary_statistics, file_statistics
from embinit_fairseq.analysis.transforms import FORMULAS
from embinit_fairseq.cli.print_records import at_least, number, show, table
from embinit_fairseq.cli.vector_options import add_vector_options, read_for, read_vectors, source_of
from embinit_fairseq.errors import OptionError, counted
from embinit_fairseq.init.alignment import RULES
from embinit_fairseq.init.init_report import shares
from embinit_fairseq.vocab.dictionary import read_dictionary


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_vector_options(parser, "; with --dict also several as one matrix: concat:A,B, avg:A,B, concat-l2:, avg-l2:")
    parser.add_argument("--dict", metavar="DICT", help="fairseq's dict.txt; default: all rows of the file")
    parser.add_argument("--dim", type=int, metavar="D", help="refuse vectors of another dimension")
    parser.add_argument("--match", nargs="+", choices=RULES, default=list(RULES), help="rules to match words by")
    parser.add_argument("--position-formula", choices=FORMULAS, default="fairseq", help="default: %(default)s")
    parser.add_argument("--position-rows", type=at_least(1), default=1024, metavar="L", help="default: %(default)s")
    parser.add_argument("--missing", type=int, default=20, metavar="K", help="list K frequent words without a vector")


def run(args: argparse.Namespace) -> int:
    """Read, match, print."""
    positions = (args.position_formula, args.position_rows)
    if args.dict is None:
        if source_of(args).how is not None:
            raise OptionError(f"--vectors {args.vectors}: several files make one matrix for a dictionary; add --dict")
        record = file_statistics(read_vectors(args, None, args.dim), *positions)
    else:
        vocabulary = read_dictionary(args.dict)
        reading = read_for(args, vocabulary, args.match, args.dim)
        record = dictionary_statistics(reading, vocabulary, *positions, max(args.missing, 0))
    show(record, render, args.json)
    return 0


def render(record: dict[str, Any]) -> str:
    """Return the record as text."""
    rows = counted(record["source_rows"], "row")
    lines = [
        f"vectors        {record['vectors']} ({record['format']}, {rows} x {record['dim']})",
        f"matrix         N = {counted(record['rows'], 'row')} x D = {record['dim']}",
    ]
    named = {"duplicates": "duplicate", "broken_lines": "broken or missing line"}
    if flaws := [counted(record[key], noun) for key, noun in named.items() if record[key]]:
        lines.append(f"ignored        {', '.join(flaws)}")
    if record["coverage_types"] is not None:
        rules = ", ".join(f"{rule} {count:,}" for rule, count in record["rows_by_rule"].items())
        language = f" of {record['language']}" if record.get("language") else ""
        lines.append(f"found          {counted(record['found'], 'word')}{language} ({rules})")
        lines.append(f"coverage       {shares(record)}")
    if "sources" in record:
        lines.append(f"in all files   {counted(record['found_in_all'], 'word')}")
    for file in record.get("sources", ()):
        size = f"{file['format']}, {counted(file['source_rows'], 'row')} x {file['dim']}"
        lines.append(f"  {file['vectors']} ({size}): {counted(file['found'], 'word')}, {shares(file)}")
    cells = [["", "min", "max", "mean", "sigma", "absorption"]]
    for name, matrix in record["tables"].items():
        cells.append(_cells(name, matrix))
        cells.append(_cells("  (scaled)", matrix["scaled"], number(record["absorption_ratios"][name])))
        if name in record["all_rows"]:  # the lines above are about rows with a vector
            ratio = number(record["absorption_ratios_all_rows"][name])
            cells.append(_cells("  (scaled, all rows)", record["all_rows"][name]["scaled"], ratio))
    positions = record["positions"]
    cells.append(_cells(f"{counted(positions['length'], 'position')}, {positions['formula']}", positions))
    lines += ["", *table(cells)]
    if record["missing"]:
        lines += ["", "without a vector: " + ", ".join(f"{word} ({count:,})" for word, count in record["missing"])]
    return "\n".join(lines)


def _cells(name: str, moments: dict[str, float], absorption: str = "") -> list[str]:
    return [name, *(number(moments[key]) for key in ("min", "max", "mean", "std")), absorption]
