"""Rows for new words, drawn from N(mu, c Sigma) of the old ones.

    python benchmarks/expand.py                                   # 32,000 x 4096 and 250,000 x 768; 10 and 1,000 words
    python benchmarks/expand.py --sizes 2000x64 --words 10 --repeat 1

Peers: Hugging Face's `resize_token_embeddings` (a GPT-2 with one tied table and no layers; it draws the same law with
c = 1e-9), and Hewitt's own lines with `torch.distributions.MultivariateNormal` (c = 1e-5; its draws are made in one
call instead of one a word). Every job gets the same table, returns the longer one, and runs in a process of its own
with one thread. Seconds are CPU seconds; memory is the peak over what the process held when the table was there, the
longer table included. That all of them drew something is checked: mean and deviation of the new rows are those of the
law, unless a peer fell back to the mean.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from peers import child_main, machine, measured, peak_mb, run_job

GOAL = {"times_faster": 30, "memory": 0.5}
SCALES = {"ours": 1e-5, "ours_avg": 0.0, "hugging_face": 1e-9, "multivariate_normal": 1e-5}
COLUMN_MEAN = 0.5


def make_table(rows: int, columns: int) -> np.ndarray:
    """(rows, columns) float32 with correlated columns and a mean that is not 0."""
    generator = np.random.default_rng(0)
    table = generator.standard_normal((rows, columns), dtype=np.float32)
    table[:, 1:] += 0.5 * table[:, :-1]
    table += np.float32(COLUMN_MEAN)
    return table


def held_mb() -> float:
    """Resident now, not at its peak."""
    status = Path("/proc/self/status")
    if not status.exists():
        return peak_mb()
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def finish(args: argparse.Namespace, work: Any) -> dict[str, Any]:
    """Time `work`, which returns the longer table, and describe its new rows."""
    before = held_mb()
    longer, numbers = measured(work)
    new = longer[-args.k :].astype(np.float64)
    deviation = float((new - new.mean(axis=0)).std() / math.sqrt(1 - 1 / args.k)) if args.k > 1 else 0.0
    return {
        **numbers,
        "added_mb": numbers["peak_mb"] - before,
        "result_mb": longer.nbytes / 2**20,
        "new_rows": {"mean": float(new.mean()), "std": deviation},
    }


def _ours(args: argparse.Namespace, method: str) -> dict[str, Any]:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    import torch

    from embinit_fairseq.init.new_rows import Recipe, new_rows
    from embinit_fairseq.resize.optimizer import with_rows

    table = torch.from_numpy(np.load(args.file))
    row_map = np.concatenate([np.arange(len(table)), np.full(args.k, -1)])

    def work() -> np.ndarray:
        recipe = Recipe(method, args.k, np.arange(len(table)))
        return with_rows(table, row_map, new_rows(recipe, {"table": [table]})["table"][0]).numpy()

    return finish(args, work)


def job_ours(args: argparse.Namespace) -> dict[str, Any]:
    return _ours(args, "gaussian")


def job_ours_avg(args: argparse.Namespace) -> dict[str, Any]:
    return _ours(args, "avg")


def job_hugging_face(args: argparse.Namespace) -> dict[str, Any]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    table = torch.from_numpy(np.load(args.file))
    rows, columns = table.shape
    cfg = GPT2Config(
        vocab_size=rows, n_embd=columns, n_layer=0, n_head=1, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    with torch.device("meta"):
        model = GPT2LMHeadModel(cfg)
    model.to_empty(device="cpu")
    model.transformer.wte.weight = torch.nn.Parameter(table)
    model.tie_weights()

    def work() -> np.ndarray:
        return model.resize_token_embeddings(rows + args.k).weight.detach().numpy()

    return finish(args, work)


def job_multivariate_normal(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    table = torch.from_numpy(np.load(args.file))

    def work() -> np.ndarray:
        mu = table.mean(dim=0)
        sigma = ((table - mu).T @ (table - mu)) / len(table)
        law = torch.distributions.MultivariateNormal(mu, covariance_matrix=1e-5 * sigma)
        return torch.cat([table, law.sample((args.k,))]).numpy()

    return finish(args, work)


JOBS = {
    "ours": job_ours,
    "ours_avg": job_ours_avg,
    "hugging_face": job_hugging_face,
    "multivariate_normal": job_multivariate_normal,
}


def compare(args: argparse.Namespace, folder: Path, size: str, count: int) -> dict[str, Any]:
    """All jobs on one table and number of words, in turn, `repeat` times."""
    runs: dict[str, list[dict[str, Any]]] = {job: [] for job in JOBS}
    for _ in range(args.repeat):
        for job in JOBS:
            print(f"{size}, {count} words: {job} ...", file=sys.stderr)
            runs[job].append(run_job(__file__, job, ["--file", str(folder / f"{size}.npy"), "--k", str(count)]))
    results = {job: found[0] if "missing" in found[0] else _summary(job, found) for job, found in runs.items()}
    ours = results["ours"]
    peers = [job for job in ("hugging_face", "multivariate_normal") if "missing" not in results[job]]
    return {
        "table": size,
        "words": count,
        "results": results,
        "times_faster": {job: round(results[job]["cpu_seconds"] / ours["cpu_seconds"], 1) for job in peers},
        "memory": {job: round(ours["added_mb"] / results[job]["added_mb"], 2) for job in peers},
    }


def _summary(job: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The quickest run. as_the_law: are mean and deviation of the new rows within a tenth of the law's?"""
    best = min(runs, key=lambda run: run["cpu_seconds"])
    expected = math.sqrt(SCALES[job] * 1.25)
    mean, std = best["new_rows"]["mean"], best["new_rows"]["std"]
    near = abs(mean - COLUMN_MEAN) < 0.05 and abs(std - expected) <= 0.1 * expected + 1e-7
    numbers = {key: round(best[key], 3) for key in ("cpu_seconds", "wall_seconds", "added_mb", "result_mb")}
    return {**numbers, "all_cpu_seconds": [round(run["cpu_seconds"], 3) for run in runs], "as_the_law": near}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["32000x4096", "250000x768"], metavar="ROWSxCOLUMNS")
    parser.add_argument("--words", nargs="+", type=int, default=[10, 1000], metavar="K")
    parser.add_argument("--repeat", type=int, default=2, help="runs of every job; the quickest counts")
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    parser.add_argument("--k", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Print one JSON object."""
    args = parse()
    if args.job:
        return child_main(JOBS, args)
    report: dict[str, Any] = {"goal": GOAL, "machine": machine(("torch", "numpy", "transformers")), "cases": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in args.sizes:
            rows, columns = map(int, size.split("x"))
            np.save(folder / f"{size}.npy", make_table(rows, columns))
            report["cases"] += [compare(args, folder, size, count) for count in args.words]
            (folder / f"{size}.npy").unlink()
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
