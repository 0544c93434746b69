"""The word-analogy task (a is to b as c is to ...) on vectors, plain or after what a transformer does to them. --table4
answers the questions after each of the transformations of Kim et al. 2024, Table 4."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from embinit_fairseq.analysis.analogy import TABLE4, Row, Score, evaluate, read_questions
from embinit_fairseq.analysis.statistics import frequent_words
from embinit_fairseq.analysis.transforms import FORMULAS, RANDOM, TRANSFORMS, Surroundings
from embinit_fairseq.cli.progress import progress
from embinit_fairseq.cli.records import print_json
from embinit_fairseq.cli.vector_options import add_vector_options, read_vectors
from embinit_fairseq.errors import CoverageError, OptionError
from embinit_fairseq.init.alignment import align, plan


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_vector_options(parser)
    add = parser.add_argument
    add("--questions", required=True, metavar="FILE", help="in the format of word2vec's questions-words.txt")
    add("--case", action="store_true", help="keep the questions' capitals; default: lower case")
    add(
        "--vocabulary",
        metavar="FILE",
        help="dict.txt or tokenised text whose words are the table; default: all vectors",
    )
    add("--top", type=int, metavar="N", help="only the N most frequent words of --vocabulary, or the first N vectors")
    what = parser.add_mutually_exclusive_group()
    steps = f"steps, from left to right: {', '.join(TRANSFORMS)}"
    what.add_argument("--transform", nargs="+", choices=TRANSFORMS, default=[], metavar="NAME", help=steps)
    what.add_argument("--table4", action="store_true", help="all rows of Kim's Table 4")
    add("--xavier-rows", type=int, metavar="N", help="N of Xavier's range (Kim: 5893); default: rows of the table")
    add("--position-formula", choices=FORMULAS, default="kim", help="default: %(default)s")
    add("--position-rows", type=int, default=5000, metavar="L", help="positions to draw from; default: %(default)s")
    add("--seed", type=int, default=1, help="of the random positions; default: %(default)s")
    add("--repeats", type=int, default=3, help="seeds, where positions are drawn; default: %(default)s")
    add(
        "--block-size", type=int, default=8192, metavar="B", help="words at a time; bounds memory; default: %(default)s"
    )


def run(args: argparse.Namespace) -> int:
    """Read, answer, print."""
    for name in ("xavier_rows", "top"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise OptionError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}")
    questions = read_questions(args.questions, lower=not args.case)
    words, matrix = _table(args)
    around = Surroundings(args.xavier_rows, args.position_formula, args.position_rows, args.seed)
    chains = TABLE4 if args.table4 else [(" & ".join(["vectors", *args.transform]), tuple(args.transform), None)]
    results = []
    for name, transforms, published in chains:
        blocks = partial(_progress, description=name)
        repeats = args.repeats
        row = evaluate(words, matrix, questions, transforms, around, repeats, args.block_size, blocks)
        results.append((name, row, published))
    size = {"rows": len(words), "dim": matrix.shape[1]}
    if args.json:
        print_json(_record(args, size, results))
    else:
        print(render(size, results, sections=not args.table4))
    return 0


def _table(args: argparse.Namespace) -> tuple[Sequence[str], np.ndarray]:
    """Words and vectors to choose answers from, in the order of the vocabulary (or of the file)."""
    if args.vocabulary is None:
        table = read_vectors(args, None)
        return table.words[: args.top], table.matrix[: args.top]
    vocabulary = frequent_words(args.vocabulary, args.top)
    table = read_vectors(args, plan(vocabulary))
    rows, matrix = align(vocabulary, table).gather(table, vocabulary)
    if not len(rows):
        raise CoverageError(
            f"{args.vectors} holds none of the {len(vocabulary)} words of --vocabulary {args.vocabulary}"
        )
    return [vocabulary.symbols[row] for row in rows], matrix


def _progress(blocks: Iterable[int], description: str) -> Iterable[int]:
    return progress(blocks, description, "block")


def _record(
    args: argparse.Namespace, size: dict[str, int], results: list[tuple[str, Row, float | None]]
) -> dict[str, Any]:
    settings = ("vectors", "questions", "vocabulary", "top", "case", "xavier_rows", "position_formula", "position_rows")
    rows = [{"name": name, **_row_record(row, args.seed), "published_percent": paper} for name, row, paper in results]
    return {**{name: getattr(args, name) for name in settings}, **size, "results": rows}


def _row_record(row: Row, seed: int) -> dict[str, Any]:
    total = row.runs[0][-1]
    return {
        "transforms": list(row.transforms),
        "accuracy": row.mean,
        "accuracy_std": row.std,
        "seeds": [seed + run for run in range(len(row.runs))] if RANDOM.intersection(row.transforms) else [],
        "applicable": total.applicable,
        "questions": total.total,
        "runs": [[{**vars(score), "accuracy": score.accuracy} for score in run] for run in row.runs],
    }


def render(size: dict[str, int], results: list[tuple[str, Row, float | None]], sections: bool) -> str:
    """The results as text; by section if asked for (first seed)."""
    total = results[0][1].runs[0][-1]
    lines = [
        f"table {size['rows']:,} x {size['dim']}; {total.applicable:,} of {total.total:,} questions applicable "
        f"({total.applicable / total.total:.1%})"
    ]
    if sections:
        lines += [_section(score) for score in results[0][1].runs[0][:-1] if score.total]
    width = max(len(name) for name, _, _ in results) + 2
    paper = any(published is not None for _, _, published in results)
    lines += ["", f"{'':<{width}}{'accuracy (%)':>14}{'sigma':>8}{'correct':>14}" + ("    Kim (%)" if paper else "")]
    for name, row, published in results:
        first = row.runs[0][-1]
        sigma = "-" if math.isnan(row.std) else f"{100 * row.std:.1f}"
        counted = f"{np.mean([run[-1].correct for run in row.runs]):.0f}/{first.applicable}"
        line = f"{name:<{width}}{100 * row.mean:>14.1f}{sigma:>8}{counted:>14}"
        lines.append(line + (f"{published if published is not None else '-':>11}" if paper else ""))
    return "\n".join(lines)


def _section(score: Score) -> str:
    accuracy = f"{score.accuracy:>7.1%}" if score.applicable else f"{'-':>7}"
    return f"  {score.name:<32}{accuracy}  {score.correct}/{score.applicable} (of {score.total})"
