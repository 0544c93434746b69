"""How the values of embedding tables are distributed, several tables in one picture, beside Xavier's sigma and the
sigma of the position encoding (Kim et al. 2024, Tables 2 and 6)."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from embinit_fairseq.analysis.histograms import ValueHistogram, embedding_tables, value_histograms
from embinit_fairseq.analysis.transforms import FORMULAS, position_table
from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.cli.records import show
from embinit_fairseq.cli.vector_options import read_vectors
from embinit_fairseq.errors import CheckpointError, OptionError
from embinit_fairseq.figures import check_output
from embinit_fairseq.init.alignment import align, plan
from embinit_fairseq.init.report import describe
from embinit_fairseq.plots.histograms import draw_values, xavier_std
from embinit_fairseq.vectors.open import FORMATS
from embinit_fairseq.vocab.dictionary import read_dictionary

#: more make no other picture, only a full memory
_MOST_BINS, _MOST_ROWS = 10_000, 65_536
HELP = "values of embedding tables, with Xavier's and the positions' sigma"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--vectors", nargs="+", default=[], metavar="PATH", help="vectors in any format that --embed-init reads")
    add("--checkpoint", nargs="+", default=[], metavar="FILE.pt", help="written by fairseq-train")
    add("--slot", nargs="+", default=[], metavar="SLOT", help="tables of the checkpoints (encoder, ...); default: all")
    add("--dict", metavar="DICT", help="fairseq's dict.txt: of --vectors only the rows of its words; default: all rows")
    add("--format", choices=list(FORMATS), help="of --vectors; default: recognised from the content")
    add("--scaled", action="store_true", help="times sqrt(D), as a transformer adds them to the positions")
    add("--bins", type=int, default=201, metavar="N", help="default: %(default)s")
    add("--position-formula", choices=FORMULAS, default="fairseq", help="default: %(default)s")
    add("--position-rows", type=int, default=1024, metavar="L", help="default: %(default)s")
    add("--output", required=True, metavar="FILE.png", help="the picture")
    add("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    """Read, count, draw, print."""
    if not args.vectors and not args.checkpoint:
        raise OptionError("nothing to draw: give --vectors PATH or --checkpoint FILE.pt")
    if args.slot and not args.checkpoint:
        raise OptionError(f"--slot {args.slot[0]}: tables of a checkpoint are meant; give --checkpoint FILE.pt")
    if not 2 <= args.bins <= _MOST_BINS:
        raise OptionError(f"--bins {args.bins}: must be at least 2 and at most {_MOST_BINS:,}")
    if not 1 <= args.position_rows <= _MOST_ROWS:
        raise OptionError(f"--position-rows {args.position_rows}: must be at least 1 and at most {_MOST_ROWS:,}")
    check_output(args.output)
    tables = read_tables(args)
    edges, histograms = value_histograms(tables, args.bins, args.scaled)
    positions = {table.dim: position_std(args, table.dim) for table in histograms}
    draw_values(edges, histograms, positions, args.scaled, args.output)
    record = _record(edges, histograms, positions, args)
    show(record, render, args.json)
    return 0


def read_tables(args: argparse.Namespace) -> dict[str, np.ndarray]:
    """Name -> (N, D) float32 of everything that was asked for."""
    tables: dict[str, np.ndarray] = {}
    for path, name in short_names(args.vectors, 1).items():
        tables[name] = _vectors(path, args)
    for path, name in short_names(args.checkpoint, 2).items():
        state = load_checkpoint(path).get("model")
        if not isinstance(state, dict):
            raise CheckpointError(f"{path}: not a fairseq checkpoint; name a checkpoint*.pt that fairseq-train wrote")
        for slot, table in embedding_tables(state, path, args.slot).items():
            tables[f"{name}, {slot}"] = table
    return tables


def short_names(paths: Sequence[str], least: int) -> dict[str, str]:
    """Return path -> its last parts: at least `least`, and as many as tell all paths apart."""
    parts = {path: os.path.realpath(path).split(os.sep) for path in paths}
    different = len({tuple(each) for each in parts.values()})
    while len({tuple(each[-least:]) for each in parts.values()}) < different:
        least += 1
    return {path: os.path.join(*each[-least:]) for path, each in parts.items()}


def _vectors(path: str, args: argparse.Namespace) -> np.ndarray:
    source = argparse.Namespace(vectors=path, format=args.format, strict=False, side=None)
    if args.dict is None:
        return read_vectors(source, None).matrix
    vocabulary = read_dictionary(args.dict)
    table = read_vectors(source, plan(vocabulary))
    rows, matrix = align(vocabulary, table).gather(table, vocabulary)
    if not len(rows):
        raise OptionError(f"--dict {args.dict}: none of its words is in {path}; check language and tokenisation")
    return matrix


def position_std(args: argparse.Namespace, dim: int) -> float:
    """sigma of the position encoding; without --scaled in units of the table before it is scaled."""
    std = describe(position_table(args.position_formula, args.position_rows, dim))["std"]
    return std if args.scaled else std / math.sqrt(dim)


def _record(
    edges: np.ndarray, histograms: list[ValueHistogram], positions: dict[int, float], args: argparse.Namespace
) -> dict[str, Any]:
    tables = [
        {
            "name": each.name,
            "rows": each.rows,
            "dim": each.dim,
            **each.moments,
            "outside": each.outside,
            "xavier_std": xavier_std(each, args.scaled),
            "position_std": positions[each.dim],
            "density": each.density.tolist(),
        }
        for each in histograms
    ]
    return {"picture": args.output, "scaled": args.scaled, "edges": edges.tolist(), "tables": tables}


def render(record: dict[str, Any]) -> str:
    """The record as a table for people."""
    width = max(len(table["name"]) for table in record["tables"]) + 2
    titles = ("N x D", "min", "max", "mean", "sigma", "Xavier's", "positions'")
    lines = ["times sqrt(D)" if record["scaled"] else "as stored; positions' sigma divided by sqrt(D)", ""]
    lines.append(f"{'':<{width}}" + "".join(f"{title:>12}" for title in titles))
    for table in record["tables"]:
        size = f"{table['rows']:,} x {table['dim']}"
        values = [table[key] for key in ("min", "max", "mean", "std", "xavier_std", "position_std")]
        lines.append(f"{table['name']:<{width}}{size:>12}" + "".join(f"{value:>12.4g}" for value in values))
    return "\n".join([*lines, "", f"picture: {record['picture']}"])
