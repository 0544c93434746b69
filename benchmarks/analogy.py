"""Time analogy questions: this plugin, gensim, and a batched matrix product over the questions. Prints JSON.

    python benchmarks/analogy.py --questions questions-words.txt [--rows 400000] [--dim 300] [--full]

The matrix is generated (Gaussian rows; the question words at random places among the first 300,000 rows), so that
every question is applicable. gensim answers one question at a time: without --full it gets an evenly spaced sample,
and its time is multiplied by the ratio of questions ("extrapolated"). Every job runs in a process of its own with one
BLAS thread; reading the matrix is not timed, normalising it is.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from peers import child_main, machine, measured, run_job

from embinit_fairseq.arguments import ArgumentParser


def generate(args: argparse.Namespace) -> None:
    """Write matrix.npy, words.txt and rows.npy (question words as rows) into args.folder."""
    from embinit_fairseq.analysis.word_analogies import read_questions

    generator = np.random.default_rng(1)
    questions = read_questions(args.questions)
    vocabulary = sorted(questions.vocabulary())
    words = [f"word{row}" for row in range(args.rows)]
    for place, word in zip(generator.choice(min(args.rows, 300_000), len(vocabulary), replace=False), vocabulary):
        words[place] = word
    np.save(args.folder / "matrix.npy", generator.standard_normal((args.rows, args.dim), dtype=np.float32))
    np.save(args.folder / "rows.npy", questions.rows(words))
    (args.folder / "words.txt").write_text("\n".join(words), encoding="utf-8")


def answered(args: argparse.Namespace, asked: np.ndarray, answer: Callable[[], np.ndarray]) -> dict[str, Any]:
    """Time `answer`, keep the predicted rows, and compare them with this plugin's."""
    predicted, numbers = measured(answer)
    np.save(args.folder / f"{args.job}.npy", predicted)
    ours = predicted if args.job == "ours" else np.load(args.folder / "ours.npy")[asked]
    scale = len(np.load(args.folder / "rows.npy")) / len(asked)
    seconds = {name: numbers[name] * scale for name in ("cpu_seconds", "wall_seconds")}
    added = numbers["peak_mb"] - numbers["imports_mb"]
    same = float((ours == predicted).mean())
    return {**numbers, **seconds, "added_mb": added, "questions": len(asked), "extrapolated": scale != 1, "same": same}


def read(args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Return matrix and questions, (N, 4) rows."""
    return np.load(args.folder / "matrix.npy"), np.load(args.folder / "rows.npy")


def job_ours(args: argparse.Namespace) -> dict[str, Any]:
    from embinit_fairseq.analysis.word_analogies import nearest

    matrix, rows = read(args)
    return answered(args, np.arange(len(rows)), lambda: nearest(matrix, rows[:, :3]))


def job_batched_product(args: argparse.Namespace) -> dict[str, Any]:
    """Multiply 100 questions at a time by the normalised matrix, in single precision; question words are excluded."""
    matrix, rows = read(args)

    def answer() -> np.ndarray:
        unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        predicted = []
        for first in range(0, len(rows), 100):
            a, b, c, _ = rows[first : first + 100].T
            scores = (unit[b] - unit[a] + unit[c]) @ unit.T
            at = np.arange(len(a))
            scores[at, a] = scores[at, b] = scores[at, c] = -np.inf
            predicted.append(scores.argmax(axis=1))
        return np.concatenate(predicted)

    return answered(args, np.arange(len(rows)), answer)


def job_gensim(args: argparse.Namespace) -> dict[str, Any]:
    """Call `KeyedVectors.evaluate_word_analogies` with the whole vocabulary as candidates."""
    from gensim.models import KeyedVectors

    matrix, rows = read(args)
    words = (args.folder / "words.txt").read_text(encoding="utf-8").split("\n")
    vectors = KeyedVectors(matrix.shape[1])
    vectors.add_vectors(words, matrix)
    asked = np.arange(0, len(rows), 1 if args.full else max(1, len(rows) // args.sample))
    sample = args.folder / "sample.txt"
    sample.write_text(": all\n" + "\n".join(" ".join(words[row] for row in rows[at]) for at in asked) + "\n")
    row_of = {word: row for row, word in enumerate(words)}
    most_similar, answers = vectors.most_similar, []

    def recording(**keywords: Any) -> Any:  # gensim keeps right and wrong only; the comparison needs the word
        similar = most_similar(**keywords)
        question = {word.lower() for word in keywords["positive"] + keywords["negative"]}
        answers.append(next(row_of[word] for word, _ in similar if word.lower() not in question))
        return similar

    def answer() -> np.ndarray:
        vectors.most_similar = recording
        vectors.evaluate_word_analogies(str(sample), restrict_vocab=len(words))
        return np.array(answers)

    return answered(args, asked, answer)


JOBS = {"ours": job_ours, "batched_product": job_batched_product, "gensim": job_gensim}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", required=True, help="word2vec's questions-words.txt")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--sample", type=int, default=400, help="questions for gensim (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help="all questions for gensim, too")
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        child_main(JOBS, args)
        return
    with tempfile.TemporaryDirectory() as folder:
        args.folder = Path(folder)
        generate(args)
        options = [f"--questions={args.questions}", f"--folder={folder}", f"--sample={args.sample}"]
        results = {job: run_job(__file__, job, options + ["--full"] * args.full) for job in JOBS}
    seconds = {name: result["cpu_seconds"] for name, result in results.items() if "cpu_seconds" in result}
    faster = {name: round(value / seconds["ours"], 1) for name, value in seconds.items()}
    record = {"machine": machine(["numpy", "gensim"]), "rows": args.rows, "dim": args.dim}
    print(json.dumps({**record, "results": results, "times_faster_cpu": faster}, indent=2))


if __name__ == "__main__":
    main()
