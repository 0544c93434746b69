"""Analogy questions: ours against gensim and against a batched matrix product over the questions. Prints JSON.

    python benchmarks/analogy.py --questions questions-words.txt [--rows 400000] [--dim 300] [--full]

The table is generated (Gaussian rows; the question words at random places among the first 300,000 rows), so that
every question is applicable. gensim answers one question at a time: without --full it gets an evenly spaced sample,
and its time is multiplied by the ratio of questions ("extrapolated": true). Every contestant runs in a process
of its own with --threads BLAS threads; reading the table is not timed, preparing it (normalisation) is.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
CONTESTANTS = ("ours", "batched_product", "gensim")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", required=True, help="word2vec's questions-words.txt")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--sample", type=int, default=400, help="questions for gensim (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help="all questions for gensim, too")
    parser.add_argument("--threads", type=int, default=1, help="BLAS threads (default: %(default)s)")
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if args.contestant:
        print(json.dumps(compete(args)))
        return
    with tempfile.TemporaryDirectory() as folder:
        args.folder = folder
        generate(args)
        results = {name: in_its_own_process(name, args) for name in CONTESTANTS}
    print(json.dumps(report(args, results), indent=2))


def generate(args: argparse.Namespace) -> None:
    """Write matrix.npy, words.txt and rows.npy (question words as rows) into args.folder."""
    from embinit_fairseq.analysis.analogy import read_questions

    generator = np.random.default_rng(1)
    questions = read_questions(args.questions)
    vocabulary = sorted(questions.vocabulary())
    words = [f"word{row}" for row in range(args.rows)]
    for place, word in zip(generator.choice(min(args.rows, 300_000), len(vocabulary), replace=False), vocabulary):
        words[place] = word
    folder = Path(args.folder)
    np.save(folder / "matrix.npy", generator.standard_normal((args.rows, args.dim), dtype=np.float32))
    np.save(folder / "rows.npy", questions.rows(words))
    (folder / "words.txt").write_text("\n".join(words), encoding="utf-8")


def in_its_own_process(name: str, args: argparse.Namespace) -> dict:
    """The contestant's measurements; its predictions stay in the folder."""
    command = [sys.executable, __file__, f"--questions={args.questions}", f"--contestant={name}"]
    command += [f"--folder={args.folder}", f"--sample={args.sample}"] + ["--full"] * args.full
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(args.threads))}
    print(f"{name} ...", file=sys.stderr)
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def compete(args: argparse.Namespace) -> dict:
    """Run one contestant in this process."""
    folder = Path(args.folder)
    matrix, rows = np.load(folder / "matrix.npy"), np.load(folder / "rows.npy")
    words = (folder / "words.txt").read_text(encoding="utf-8").split("\n")
    prepare = {"ours": ours, "batched_product": batched_product, "gensim": gensim}[args.contestant]
    answer, asked = prepare(matrix, rows, words, args)
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    predicted = answer()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    np.save(folder / f"{args.contestant}.npy", np.stack([asked, predicted]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    same = None
    if args.contestant != "ours":
        of_ours = np.load(folder / "ours.npy")[1]
        same = float((of_ours[asked] == predicted).mean())
    scale = len(rows) / len(asked)
    return {
        "questions": len(asked),
        "cpu_seconds": cpu * scale,
        "wall_seconds": wall * scale,
        "extrapolated": scale != 1,
        "measured_cpu_seconds": cpu,
        "rss_added_mb": (peak - base) / 1024,
        "rss_peak_mb": peak / 1024,
        "same_answers_as_ours": same,
    }


Answers = tuple[Callable[[], np.ndarray], np.ndarray]


def ours(matrix: np.ndarray, rows: np.ndarray, words: list[str], args: argparse.Namespace) -> Answers:
    from embinit_fairseq.analysis.analogy import nearest

    return lambda: nearest(matrix, rows[:, :3]), np.arange(len(rows))


def batched_product(matrix: np.ndarray, rows: np.ndarray, words: list[str], args: argparse.Namespace) -> Answers:
    """100 questions at a time against the whole normalised table, in single precision, question words excluded."""

    def answer() -> np.ndarray:
        unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        predicted = np.empty(len(rows), dtype=np.int64)
        for first in range(0, len(rows), 100):
            a, b, c, _ = rows[first : first + 100].T
            scores = (unit[b] - unit[a] + unit[c]) @ unit.T
            at = np.arange(len(a))
            scores[at, a] = scores[at, b] = scores[at, c] = -np.inf
            predicted[first : first + 100] = scores.argmax(axis=1)
        return predicted

    return answer, np.arange(len(rows))


def gensim(matrix: np.ndarray, rows: np.ndarray, words: list[str], args: argparse.Namespace) -> Answers:
    """`KeyedVectors.evaluate_word_analogies` with the whole vocabulary as candidates."""
    from gensim.models import KeyedVectors

    vectors = KeyedVectors(matrix.shape[1])
    vectors.add_vectors(words, matrix)
    step = 1 if args.full else max(1, len(rows) // args.sample)
    asked = np.arange(0, len(rows), step)
    sample = Path(args.folder) / "sample.txt"
    sample.write_text(": all\n" + "\n".join(" ".join(words[row] for row in rows[at]) for at in asked) + "\n")
    row_of = {word: row for row, word in enumerate(words)}

    def answer() -> np.ndarray:
        answers: list[int] = []
        plain = vectors.most_similar

        def recording(**keywords):  # gensim keeps right and wrong only; the comparison needs the word
            found = plain(**keywords)
            given = {word.lower() for word in keywords["positive"] + keywords["negative"]}
            answers.append(next(row_of[word] for word, _ in found if word.lower() not in given))
            return found

        vectors.most_similar = recording
        vectors.evaluate_word_analogies(str(sample), restrict_vocab=len(words))
        return np.array(answers)

    return answer, asked


def report(args: argparse.Namespace, results: dict[str, dict]) -> dict:
    def ratio(other: str, key: str) -> float:
        return round(results[other][key] / results["ours"][key], 1)

    peers = CONTESTANTS[1:]
    return {
        "rows": args.rows,
        "dim": args.dim,
        "threads": args.threads,
        "results": results,
        "times_faster_cpu": {peer: ratio(peer, "cpu_seconds") for peer in peers},
        "times_faster_wall": {peer: ratio(peer, "wall_seconds") for peer in peers},
    }


if __name__ == "__main__":
    main()
