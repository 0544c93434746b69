"""Draw the distributions of the values of embedding matrices and vectors in one figure, with Xavier's sigma and the
sigma of the position encoding (Kim et al. 2024, Tables 2 and 6)."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from embinit_fairseq.analysis.histograms import draw_values, embedding_matrices, value_histograms
from embinit_fairseq.analysis.transforms import FORMULAS, position_table
from embinit_fairseq.checkpoints.loading import load_checkpoint
from embinit_fairseq.cli.print_records import at_least, number, show, table
from embinit_fairseq.cli.vector_options import read_vectors
from embinit_fairseq.errors import CheckpointError, CoverageError, OptionError
from embinit_fairseq.figures import check_output
from embinit_fairseq.init.alignment import align
from embinit_fairseq.init.init_report import describe
from embinit_fairseq.vectors.open import FORMATS
from embinit_fairseq.vocab.dictionary import read_dictionary

HELP = "values of embedding matrices, with Xavier's and the positions' sigma"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("paths", nargs="*", help=argparse.SUPPRESS)  # a file without its flag, for a message that names the flags
    add("--vectors", nargs="+", default=[], metavar="PATH", help="vectors in any format that --embed-init reads")
    add("--checkpoint", nargs="+", default=[], metavar="FILE.pt", help="written by fairseq-train")
    add(
        "--slot", nargs="+", default=[], metavar="SLOT", help="matrices of the checkpoints (encoder, ...); default: all"
    )
    add("--dict", metavar="DICT", help="fairseq's dict.txt: only its words of --vectors; default: all rows")
    add("--format", choices=list(FORMATS), help="format of --vectors; default: recognised from the content")
    add("--scaled", action="store_true", help="times sqrt(D), as a transformer adds them to the positions")
    add("--bins", type=at_least(2, 10_000), default=201, metavar="N", help="default: %(default)s")
    add("--position-formula", choices=FORMULAS, default="fairseq", help="default: %(default)s")
    add("--position-rows", type=at_least(1, 65_536), default=1024, metavar="L", help="default: %(default)s")
    add("--output", required=True, metavar="FILE.png", help="the figure")
    add("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    """Read, count, draw, print."""
    if args.paths or not (args.vectors or args.checkpoint):
        fact = f"{args.paths[0]}: a file without its flag" if args.paths else "nothing to draw"
        raise OptionError(f"{fact}; give --vectors PATH or --checkpoint FILE.pt")
    if args.slot and not args.checkpoint:
        raise OptionError(f"--slot {args.slot[0]}: a slot of a checkpoint; give --checkpoint FILE.pt")
    check_output(args.output)
    edges, histograms = value_histograms(_matrices(args), args.bins, args.scaled)
    positions = {dim: _position_std(args, dim) for dim in {histogram.dim for histogram in histograms}}
    draw_values(edges, histograms, positions, args.scaled, args.output)
    tables = [
        {
            "name": histogram.name,
            "rows": histogram.rows,
            "dim": histogram.dim,
            **histogram.moments,
            "outside": histogram.outside,
            "xavier_std": histogram.xavier_std,
            "position_std": positions[histogram.dim],
            "density": histogram.density.tolist(),
        }
        for histogram in histograms
    ]
    record = {"picture": args.output, "scaled": args.scaled, "edges": edges.tolist(), "tables": tables}
    show(record, render, args.json)
    return 0


def _matrices(args: argparse.Namespace) -> dict[str, np.ndarray]:
    """Return name -> (N, D) float32 of all --vectors and --checkpoint."""
    matrices: dict[str, np.ndarray] = {}
    for path, name in short_names(args.vectors, 1).items():
        matrices[name] = _vectors(path, args)
    for path, name in short_names(args.checkpoint, 2).items():
        state = load_checkpoint(path).get("model")
        if not isinstance(state, dict):
            raise CheckpointError(f"{path}: not a fairseq checkpoint; name a checkpoint*.pt that fairseq-train wrote")
        for slot, matrix in embedding_matrices(state, path, args.slot).items():
            matrices[f"{name}, {slot}"] = matrix
    return matrices


def short_names(paths: Sequence[str], least: int) -> dict[str, str]:
    """Return path -> its last parts: at least `least`, and as many as distinguish the paths."""
    parts = {path: os.path.realpath(path).split(os.sep) for path in paths}
    different = len(set(map(tuple, parts.values())))
    while len({tuple(names[-least:]) for names in parts.values()}) < different:
        least += 1
    return {path: os.path.join(*names[-least:]) for path, names in parts.items()}


def _vectors(path: str, args: argparse.Namespace) -> np.ndarray:
    source = argparse.Namespace(vectors=path, format=args.format, strict=False, side=None)
    if args.dict is None:
        return read_vectors(source, None).matrix
    vocabulary = read_dictionary(args.dict)
    vectors = read_vectors(source, vocabulary)
    rows, matrix = align(vocabulary, vectors).gather(vectors, vocabulary)
    if not len(rows):
        raise CoverageError(f"--dict {args.dict}: none of its words is in {path}; check language and tokenisation")
    return matrix


def _position_std(args: argparse.Namespace, dim: int) -> float:
    """Return sigma of the position encoding; without --scaled in units of the matrix before it is scaled."""
    std = describe(position_table(args.position_formula, args.position_rows, dim))["std"]
    return std if args.scaled else std / math.sqrt(dim)


def render(record: dict[str, Any]) -> str:
    """Return the record as text."""
    cells = [["", "N x D", "min", "max", "mean", "sigma", "Xavier's", "positions'", "beyond"]]
    for matrix in record["tables"]:
        numbers = [number(matrix[key]) for key in ("min", "max", "mean", "std", "xavier_std", "position_std")]
        beyond = f"{matrix['outside']:.2%}"  # share of values outside of the axis
        cells.append([matrix["name"], f"{matrix['rows']:,} x {matrix['dim']}", *numbers, beyond])
    unit = "times sqrt(D)" if record["scaled"] else "as stored; positions' sigma divided by sqrt(D)"
    return "\n".join([unit, "", *table(cells), "", f"figure: {record['picture']}"])
