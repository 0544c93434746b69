"""Time rows for new words, drawn from N(mu, c Sigma) of the old rows.

    python benchmarks/expand.py                                   # 32,000 x 4096 and 250,000 x 768; 10 and 1,000 words
    python benchmarks/expand.py --sizes 2000x64 --words 10 --repeat 1

Peers: Hugging Face's `resize_token_embeddings` (a GPT-2 with one tied matrix and no layers; it draws the same law with
c = 1e-9), and Hewitt's own lines with `torch.distributions.MultivariateNormal` (c = 1e-5; its draws are made in one
call instead of one a word). Every job gets the same matrix, returns the longer one, and runs in a process of its own
with one thread. Seconds are CPU seconds; memory is the peak less the process's memory with the first matrix, the
longer matrix included. `as_the_law` checks that they drew something: mean and deviation of the new rows are as in the
law, unless a peer fell back to the mean.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import child_main, machine, measured, resident_mb, run_job

from embinit_fairseq.arguments import ArgumentParser

GOAL = {"times_faster": 30, "memory": 0.5}
#: job -> c
SCALES = {"ours": 1e-5, "ours_avg": 0.0, "hugging_face": 1e-9, "multivariate_normal": 1e-5}
COLUMN_MEAN = 0.5
#: returns the longer matrix
Work = Callable[[], torch.Tensor]


def make_matrix(rows: int, columns: int) -> np.ndarray:
    """Return (rows, columns) float32 with correlated columns and a mean that is not 0."""
    matrix = np.random.default_rng(0).standard_normal((rows, columns), dtype=np.float32)
    matrix[:, 1:] += 0.5 * matrix[:, :-1]
    matrix += np.float32(COLUMN_MEAN)
    return matrix


def ours(matrix: torch.Tensor, k: int, method: str = "gaussian") -> Work:
    from embinit_fairseq.init.methods import MethodInputs, new_rows, recipe_of
    from embinit_fairseq.resize.symbol_tensors import with_rows

    rows = np.arange(len(matrix))
    old_row = np.concatenate([rows, np.full(k, -1)])
    recipe = recipe_of(method, MethodInputs(len(rows), old_row, old_row < 0, (rows, None)))
    return lambda: with_rows(matrix, old_row, new_rows(recipe, {"matrix": [matrix]})["matrix"][0])


def hugging_face(matrix: torch.Tensor, k: int) -> Work:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": len(matrix), "n_embd": matrix.shape[1], "n_layer": 0, "n_head": 1, "n_positions": 8}
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    model.to_empty(device="cpu")
    model.transformer.wte.weight = torch.nn.Parameter(matrix)
    model.tie_weights()
    return lambda: model.resize_token_embeddings(len(matrix) + k).weight.detach()


def multivariate_normal(matrix: torch.Tensor, k: int) -> Work:
    def work() -> torch.Tensor:
        mu = matrix.mean(dim=0)
        sigma = ((matrix - mu).T @ (matrix - mu)) / len(matrix)
        law = torch.distributions.MultivariateNormal(mu, covariance_matrix=1e-5 * sigma)
        return torch.cat([matrix, law.sample((k,))])

    return work


WORKS: dict[str, Callable[[torch.Tensor, int], Work]] = {
    "ours": ours,
    "ours_avg": lambda matrix, k: ours(matrix, k, "avg"),
    "hugging_face": hugging_face,
    "multivariate_normal": multivariate_normal,
}


def job(args: argparse.Namespace) -> dict[str, Any]:
    """Time one job, and describe its new rows. as_the_law: True if mean and deviation are the law's within a tenth."""
    work = WORKS[args.job](torch.from_numpy(np.load(args.file)), args.k)
    before = resident_mb(peak=False)
    longer, numbers = measured(work)
    new = longer[-args.k :].double().numpy()
    std = (new - new.mean(axis=0)).std() / math.sqrt(1 - 1 / args.k) if args.k > 1 else 0.0
    expected = math.sqrt(SCALES[args.job] * 1.25)
    as_the_law = abs(new.mean() - COLUMN_MEAN) < 0.05 and abs(std - expected) <= 0.1 * expected + 1e-7
    memory = {"added_mb": numbers["peak_mb"] - before, "result_mb": longer.nbytes / 2**20}
    seconds = {name: numbers[name] for name in ("cpu_seconds", "wall_seconds")}
    return {**{name: round(n, 3) for name, n in {**seconds, **memory}.items()}, "as_the_law": bool(as_the_law)}


def compare(args: argparse.Namespace, file: Path, count: int) -> dict[str, Any]:
    """Run all jobs on one matrix and number of words, in turn, `repeat` times; the quickest runs count."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in WORKS}
    for _ in range(args.repeat):
        for name in WORKS:
            print(f"{file.stem}, {count} words: {name} ...", file=sys.stderr)
            runs[name].append(run_job(__file__, name, ["--file", str(file), "--k", str(count)]))
    results = {name: min(of_job, key=lambda run: run.get("cpu_seconds", 0)) for name, of_job in runs.items()}
    peers = [name for name in ("hugging_face", "multivariate_normal") if "missing" not in results[name]]
    seconds, memory = (
        {n: results[n][key] / results["ours"][key] for n in peers} for key in ("cpu_seconds", "added_mb")
    )
    for name in (*peers, "ours", "ours_avg"):
        results[name]["all_cpu_seconds"] = [run["cpu_seconds"] for run in runs[name]]
    return {
        "table": file.stem,
        "words": count,
        "results": results,
        "times_faster": {name: round(ratio, 1) for name, ratio in seconds.items()},
        "memory": {name: round(1 / ratio, 2) for name, ratio in memory.items()},
    }


def main() -> None:
    """Print one JSON object."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["32000x4096", "250000x768"], metavar="ROWSxCOLUMNS")
    parser.add_argument("--words", nargs="+", type=int, default=[10, 1000], metavar="K")
    parser.add_argument("--repeat", type=int, default=2, help="runs of every job; the quickest counts")
    for name, kind in (("--job", str), ("--file", str), ("--k", int)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        child_main(dict.fromkeys(WORKS, job), args)
        return
    report: dict[str, Any] = {"goal": GOAL, "machine": machine(("torch", "numpy", "transformers")), "cases": []}
    with tempfile.TemporaryDirectory() as folder:
        for size in args.sizes:
            file = Path(folder) / f"{size}.npy"
            np.save(file, make_matrix(*map(int, size.split("x"))))
            report["cases"] += [compare(args, file, count) for count in args.words]
            file.unlink()
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
