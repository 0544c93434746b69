"""fairseq without a compiler beside the compiled one: the same files, losses and translations? Prints JSON.

    python -m fairseq_compat install --target compiled
    python -m fairseq_compat install --target pure --no-compiler
    python benchmarks/pure_python.py --compiled compiled --pure pure --text m30k/text --source de --target en

`--text` is a folder with train, valid and test in both languages, as scripts/multi30k/prepare.sh writes it. Each
fairseq binarises it with one worker, trains a small transformer for --updates updates with one thread, and translates
the test set with beam 5 and BLEU; they take turns, step by step. Seconds are those of the processor, of a whole command
with its imports; `ratio` is of the smallest of --repeats. `equal`: the binary files byte by byte, all logged losses,
all translations with their scores.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from peers import machine

MODEL = """--arch transformer --encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 64 --decoder-embed-dim 64
    --encoder-ffn-embed-dim 128 --decoder-ffn-embed-dim 128 --encoder-attention-heads 4 --decoder-attention-heads 4
    --optimizer adam --lr 0.002 --max-tokens 2000 --seed 1 --cpu --num-workers 0 --no-epoch-checkpoints
    --log-format json --log-interval 10 --disable-validation"""

#: what is compiled, on a million sentences: seconds of its own, and a sum over the result
PARTS = """
import time
import numpy as np
from fairseq.data import data_utils_fast, token_block_utils_fast

lengths = np.sort(np.random.default_rng(1).integers(1, 100, 1_000_000))
start = time.process_time()
batches = data_utils_fast.batch_by_size_vec(np.arange(len(lengths)), lengths, 4000, -1, 8)
batched = time.process_time()
slices = token_block_utils_fast._get_slice_indices_fast(lengths, "none", 512, 1)
print(batched - start, time.process_time() - batched, len(batches), int(np.asarray(slices).sum()), sep="|")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiled", required=True, type=Path, help="folder of a compiled fairseq")
    parser.add_argument("--pure", required=True, type=Path, help="folder of one without a compiler")
    parser.add_argument("--text", required=True, type=Path)
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    for folder in (args.compiled, args.pure):
        if not (folder / "fairseq" / "__init__.py").is_file():
            parser.error(f"{folder}: no fairseq in it; python -m fairseq_compat install --target {folder} makes one")
    if not args.text.is_dir():
        parser.error(f"--text {args.text}: no such folder")
    seconds: dict[str, dict[str, list[float]]] = {}
    outcomes: dict[str, set[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(args.repeats):
            for step in (preprocess, train, generate, batches, blocks):
                for name in ("compiled", "pure"):
                    run = Path(folder) / f"{name}.{repeat}"
                    spent, outcome = step(args, run, getattr(args, name))
                    seconds.setdefault(step.__name__, {}).setdefault(name, []).append(round(spent, 3))
                    outcomes.setdefault(step.__name__, set()).add(outcome)
    record = {
        "machine": machine(("torch", "numpy", "fairseq")),
        "options": {name: str(value) for name, value in vars(args).items()},
        "cpu_seconds": seconds,
        "equal": {step: len(found) == 1 for step, found in outcomes.items()},
        "ratio": {step: round(min(each["pure"]) / min(each["compiled"]), 2) for step, each in seconds.items()},
    }
    print(json.dumps(record, indent=2))


def command(fairseq: Path, *words: object) -> tuple[float, str]:
    """(CPU seconds, output) of Python with this fairseq, with one thread."""
    environment = {**os.environ, "PYTHONPATH": str(fairseq.resolve()), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    line = [sys.executable, *map(str, words)]
    done = subprocess.run(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"benchmarks/pure_python.py: error: {' '.join(line)} says:\n{done.stdout[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def preprocess(args: argparse.Namespace, run: Path, fairseq: Path) -> tuple[float, Any]:
    texts = [word for split in ("train", "valid", "test") for word in (f"--{split}pref", args.text / split)]
    languages = ("--source-lang", args.source, "--target-lang", args.target)
    spent, _ = command(
        fairseq, "-m", "fairseq_cli.preprocess", *languages, *texts, "--destdir", run / "data", "--workers", 1
    )
    files = sorted(path for path in (run / "data").iterdir() if path.suffix in {".bin", ".idx", ".txt"})
    return spent, tuple((path.name, path.read_bytes()) for path in files)


def train(args: argparse.Namespace, run: Path, fairseq: Path) -> tuple[float, Any]:
    options = [*MODEL.split(), "--max-update", args.updates, "--save-dir", run / "checkpoints"]
    spent, output = command(fairseq, "-m", "fairseq_cli.train", run / "data", *options)
    return spent, tuple(re.findall(r'"loss": "([^"]+)"', output))


def generate(args: argparse.Namespace, run: Path, fairseq: Path) -> tuple[float, Any]:
    checkpoint = run / "checkpoints" / "checkpoint_last.pt"
    spent, output = command(
        fairseq, "-m", "fairseq_cli.generate", run / "data", "--path", checkpoint, "--beam", 5, "--cpu"
    )
    return spent, tuple(line for line in output.splitlines() if line.startswith("H-") or "BLEU4 = " in line)


def batches(args: argparse.Namespace, run: Path, fairseq: Path) -> tuple[float, Any]:
    """Cutting a million sentences into batches."""
    _, output = command(fairseq, "-c", PARTS)
    spent, _, count, _ = output.splitlines()[-1].split("|")
    return float(spent), count


def blocks(args: argparse.Namespace, run: Path, fairseq: Path) -> tuple[float, Any]:
    """Cutting a text of a million sentences into blocks of 512 tokens."""
    _, output = command(fairseq, "-c", PARTS)
    _, spent, _, total = output.splitlines()[-1].split("|")
    return float(spent), total


if __name__ == "__main__":
    main()
