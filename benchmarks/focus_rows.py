"""Make FOCUS's rows for another list of symbols: `ei.transfer(..., "focus")` and FOCUS's package deepfocus 1.0.1.

    python benchmarks/focus_rows.py                                 # 20,000 symbols, half of them new; 512 columns
    python benchmarks/focus_rows.py --rows 2000 --repeat 1

Both take the same random matrix and the same random vectors of 100 dimensions. deepfocus would read them by fasttext,
for which a mapping stands in, so that reading them is in our time only. Every job runs in a process of its own, with
one thread. Prints the quickest run of each, and the largest difference of their rows. deepfocus needs entmax, fastdist,
numba and print-on-steroids, and is reported as missing without them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import child_main, machine, measured, resident_mb, run_job

import embinit_fairseq as ei
from embinit_fairseq.arguments import ArgumentParser

_COLUMNS, _DIMENSIONS = 512, 100


def symbols(rows: int) -> tuple[list[str], list[str]]:
    """Return the old and the new symbols; they share the first half."""
    old = [f"w{number}" for number in range(rows)]
    return old, [*old[: rows // 2], *(f"n{number}" for number in range(rows - rows // 2))]


def focus_of_the_authors(matrix: torch.Tensor, old: list[str], new: list[str], vectors: dict[str, Any]) -> Any:
    """Return a function that makes the rows by deepfocus, without fasttext."""
    for name in ("fasttext", "datasets", "datasets.fingerprint", "datasets.load"):
        sys.modules.setdefault(name, types.ModuleType(name))
    vars(sys.modules["datasets.fingerprint"]).setdefault("Hasher", object)
    vars(sys.modules["datasets.load"]).setdefault("load_dataset", None)
    from deepfocus import focus
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vars(focus)["load_target_token_embedding"] = lambda **_: vectors
    tokenizers = []
    for words in (new, old):
        model = models.WordLevel({word: row for row, word in enumerate(words)}, unk_token=words[0])
        tokenizers.append(PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model)))
    return lambda: focus.FOCUS(*tokenizers, matrix, fasttext_model_path="-", verbosity="silent", processes=1)


def job(args: argparse.Namespace) -> dict[str, Any]:
    """Make the rows; save them to the folder, and return CPU seconds and additional memory."""
    draws = np.random.default_rng(0)
    old, new = symbols(args.rows)
    names = [*old, *new[args.rows // 2 :]]
    matrix = torch.from_numpy(draws.standard_normal((args.rows, _COLUMNS), dtype=np.float32))
    values = draws.standard_normal((len(names), _DIMENSIONS), dtype=np.float32)
    if args.job == "deepfocus":
        work = focus_of_the_authors(matrix, old, new, dict(zip(names, values)))
    else:
        file = str(Path(args.folder, "vectors.npz"))
        np.savez(file, words=np.array(names), vectors=values)

        def work() -> Any:
            return ei.transfer(matrix, old, new, "focus", vectors=file).matrices

    before = resident_mb()
    made, numbers = measured(work)
    np.save(Path(args.folder, f"{args.job}.npy"), np.asarray(made))
    return {"cpu_seconds": round(numbers["cpu_seconds"], 2), "added_mb": round(numbers["peak_mb"] - before)}


def main() -> None:
    """Print one JSON object with the quickest run of each job."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20000, metavar="N")
    parser.add_argument("--repeat", type=int, default=2, help="runs of every job; the quickest counts")
    for name in ("--job", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    args = parser.parse_args()
    names = ("transfer", "deepfocus")
    if args.job:
        child_main(dict.fromkeys(names, job), args)
        return
    report: dict[str, Any] = {"machine": machine(("torch", "numpy", "transformers")), "rows": args.rows}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            print(f"{name} ...", file=sys.stderr)
            runs = [run_job(__file__, name, ["--rows", str(args.rows), "--folder", folder]) for _ in range(args.repeat)]
            report[name] = min(runs, key=lambda run: run.get("cpu_seconds", 0))
        if "missing" not in report["deepfocus"]:
            rows = [np.load(Path(folder, f"{name}.npy")) for name in names]
            report["largest_difference"] = float(np.abs(rows[0] - rows[1]).max())
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
