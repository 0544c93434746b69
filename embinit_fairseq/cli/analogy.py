"""Answer analogy questions (a is to b as c is to ...) by vectors, plain or transformed as in a transformer. --table4
answers them after each of the transformations of Kim et al. 2024, Table 4."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from embinit_fairseq.analysis.statistics import frequent_words
from embinit_fairseq.analysis.transforms import FORMULAS, RANDOM, TRANSFORMS, Surroundings
from embinit_fairseq.analysis.word_analogies import TABLE4, Score, evaluate, read_questions
from embinit_fairseq.cli.print_records import at_least, number, show, table
from embinit_fairseq.cli.progress import progress
from embinit_fairseq.cli.vector_options import add_vector_options, read_vectors
from embinit_fairseq.errors import CoverageError
from embinit_fairseq.init.alignment import align


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_vector_options(parser)
    add = parser.add_argument
    add("--questions", required=True, metavar="FILE", help="questions in the format of word2vec's questions-words.txt")
    add("--case", action="store_true", help="keep the questions' capitals; default: lower case")
    add("--vocabulary", metavar="FILE", help="dict.txt or tokenised text: use its words only; default: all vectors")
    add(
        "--top",
        type=at_least(1),
        metavar="N",
        help="the N most frequent words of --vocabulary, or the first N vectors",
    )
    what = parser.add_mutually_exclusive_group()
    steps = f"steps, from left to right: {', '.join(TRANSFORMS)}"
    what.add_argument("--transform", nargs="+", choices=TRANSFORMS, default=[], metavar="NAME", help=steps)
    what.add_argument("--table4", action="store_true", help="all rows of Kim's Table 4")
    add(
        "--xavier-rows",
        type=at_least(1),
        metavar="N",
        help="N of Xavier's range (Kim: 5893); default: number of vectors",
    )
    add("--position-formula", choices=FORMULAS, default="kim", help="default: %(default)s")
    add("--position-rows", type=at_least(1), default=5000, metavar="L", help="positions; default: %(default)s")
    add("--seed", type=int, default=1, help="seed of the random positions; default: %(default)s")
    add("--repeats", type=at_least(1), default=3, help="number of seeds if positions are drawn; default: %(default)s")
    add("--block-size", type=at_least(1), default=8192, metavar="B", help="words at a time; default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Read, answer, print."""
    questions = read_questions(args.questions, lower=not args.case)
    words, matrix = _vectors(args)
    around = Surroundings(args.xavier_rows, args.position_formula, args.position_rows, args.seed)
    chains = TABLE4 if args.table4 else [(" & ".join(["vectors", *args.transform]), tuple(args.transform), None)]
    settings = ("vectors", "questions", "vocabulary", "top", "case", "xavier_rows", "position_formula", "position_rows")
    record = {name: getattr(args, name) for name in settings}
    record |= {"rows": len(words), "dim": matrix.shape[1], "results": []}
    for name, transforms, published in chains:
        runs = evaluate(
            *(words, matrix, questions, transforms, around, args.repeats, args.block_size),
            progress=partial(progress, description=name, unit="block"),
        )
        record["results"].append({"name": name, **_record(transforms, runs, args.seed), "published_percent": published})
    show(record, render, args.json)
    return 0


def _vectors(args: argparse.Namespace) -> tuple[Sequence[str], np.ndarray]:
    """Return the possible answers and their vectors, in the order of the vocabulary or of the file."""
    if args.vocabulary is None:
        vectors = read_vectors(args, None)
        return vectors.words[: args.top], vectors.matrix[: args.top]
    vocabulary = frequent_words(args.vocabulary, args.top)
    vectors = read_vectors(args, vocabulary)
    rows, matrix = align(vocabulary, vectors).gather(vectors, vocabulary)
    if not len(rows):
        raise CoverageError(
            f"--vocabulary {args.vocabulary}: none of the {len(vocabulary)} words is in {args.vectors}; check language "
            "and case"
        )
    return [vocabulary.symbols[row] for row in rows], matrix


def _record(transforms: Sequence[str], runs: list[list[Score]], seed: int) -> dict[str, Any]:
    """Return the result of one chain of steps; runs: the scores for each seed, the total last."""
    total, accuracies = runs[0][-1], [run[-1].accuracy for run in runs]
    return {
        "transforms": list(transforms),
        "accuracy": float(np.mean(accuracies)),
        "accuracy_std": float(np.std(accuracies, ddof=1)) if len(runs) > 1 else float("nan"),
        "seeds": [seed + run for run in range(len(runs))] if RANDOM.intersection(transforms) else [],
        "applicable": total.applicable,
        "questions": total.total,
        "runs": [[{**vars(score), "accuracy": score.accuracy} for score in run] for run in runs],
    }


def render(record: dict[str, Any]) -> str:
    """Return the record as text; the sections (of the first seed) if there is one result."""
    results = record["results"]
    applicable, total = results[0]["applicable"], results[0]["questions"]
    lines = [f"{record['rows']:,} words x {record['dim']}; {applicable:,} of {total:,} questions applicable"]
    if len(results) == 1:
        sections = [section for section in results[0]["runs"][0][:-1] if section["total"]]
        cells = [["section", "accuracy", "correct", "applicable", "questions"]]
        for part in sections:
            counts = [f"{part[key]:,}" for key in ("correct", "applicable", "total")]
            cells.append([part["name"], number(part["accuracy"], ".1%"), *counts])
        lines += ["", *table(cells)]
    cells = [["", "accuracy (%)", "sigma", "correct", "Kim (%)"]]
    for result in results:
        correct = np.mean([run[-1]["correct"] for run in result["runs"]])
        numbers = [100 * result["accuracy"], 100 * result["accuracy_std"]]
        published = number(result["published_percent"], ".1f")
        cells.append([result["name"], *(number(value, ".1f") for value in numbers), f"{correct:,.0f}", published])
    return "\n".join([*lines, "", *table(cells)])
