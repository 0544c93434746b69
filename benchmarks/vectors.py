"""Reading the rows of a vocabulary from GloVe-like text: our reader, fairseq's own loader and gensim.

    python benchmarks/vectors.py                      # 400k x 300 (1 GB), vocabulary 30k
    python benchmarks/vectors.py --rows 20000 --dim 50 --vocab 2000

The file is generated (seeded): numbers with five significant digits as in the published GloVe files. Every job runs
in a process of its own; the seconds are CPU seconds (user + system) of the read alone, imports left out. Memory is the
peak over a process that has only imported NumPy. The tables that the jobs return are compared bit by bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from peers import child_main, machine, measured, ratios, run_job, summary

GOALS = {"fairseq": 35, "gensim": 100, "peak_over_base_mb": 100}
_POOL = 200_003  # distinct numbers in the generated file; a row is a random stretch of them


def generate(folder: Path, rows: int, dim: int, vocabulary: int, seed: int = 1) -> tuple[Path, Path]:
    """Write (vectors as text, vocabulary) unless they are there; complete or not at all."""
    from embinit_fairseq.io import whole_file  # not in the processes whose memory is measured

    text = folder / f"glove-like-{rows}x{dim}-{seed}.txt"
    words = folder / f"glove-like-{rows}x{dim}-{seed}-{vocabulary}.vocabulary"
    generator = np.random.default_rng(seed)
    if not text.exists():
        numbers = [b" %.5g" % value for value in generator.normal(0, 0.4, _POOL + dim)]
        ends = np.cumsum([0, *map(len, numbers)])
        pool = b"".join(numbers)
        starts = generator.integers(0, _POOL, rows)
        with whole_file(text) as file:
            for row, (start, end) in enumerate(zip(ends[starts].tolist(), ends[starts + dim].tolist())):
                file.write(b"w%d%b\n" % (row, pool[start:end]))
    # fairseq's loader takes line 1 for a header, whatever it is: leave its word out so that the tables can be equal
    chosen = np.sort(1 + generator.permutation(rows - 1)[:vocabulary])
    words.write_text("".join(f"w{row}\n" for row in chosen.tolist()))
    return text, words


def _vocabulary(args: argparse.Namespace) -> list[str]:
    return Path(args.words).read_text().split()


def _digest(matrix: np.ndarray) -> str:
    """Of a (vocabulary, D) float32 matrix in the vocabulary's order."""
    return hashlib.sha256(np.ascontiguousarray(matrix, np.float32).tobytes()).hexdigest()


def job_base(args: argparse.Namespace) -> dict[str, Any]:
    return measured(lambda: None)[1]


def job_scan(args: argparse.Namespace) -> dict[str, Any]:
    """A floor: find the wanted lines, parse nothing."""
    wanted = {word.encode() for word in _vocabulary(args)}

    def scan() -> int:
        with open(args.file, "rb", buffering=1 << 18) as file:
            return sum(line[: line.find(b" ")] in wanted for line in file)

    return measured(scan)[1]


def job_ours(args: argparse.Namespace) -> dict[str, Any]:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from embinit_fairseq.vectors.open import open_vectors
    from embinit_fairseq.vectors.table import Wanted

    words = _vocabulary(args)
    table, numbers = measured(lambda: open_vectors(args.file).read(Wanted.words(words)))
    row = {word: index for index, word in enumerate(table.words)}
    return {**numbers, "digest": _digest(table.matrix[[row[word] for word in words]])}


def job_fairseq(args: argparse.Namespace) -> dict[str, Any]:
    import torch
    from fairseq.data import Dictionary
    from fairseq.utils import load_embedding, parse_embedding

    dictionary = Dictionary()
    for word in _vocabulary(args):
        dictionary.add_symbol(word)
    embedding = torch.nn.Embedding(len(dictionary), args.dim)
    filled, numbers = measured(lambda: load_embedding(parse_embedding(args.file), dictionary, embedding))
    return {**numbers, "digest": _digest(filled.weight.detach().numpy()[dictionary.nspecial :])}


def job_gensim(args: argparse.Namespace) -> dict[str, Any]:
    from gensim.models import KeyedVectors

    words = _vocabulary(args)
    load = KeyedVectors.load_word2vec_format
    vectors, numbers = measured(lambda: load(args.file, binary=False, no_header=True))
    return {**numbers, "digest": _digest(vectors[words])}


JOBS = {"base": job_base, "scan": job_scan, "ours": job_ours, "fairseq": job_fairseq, "gensim": job_gensim}


def compare(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Generate the file and run all jobs on it."""
    text, words = generate(folder, args.rows, args.dim, args.vocab)
    arguments = ["--file", str(text), "--words", str(words), "--dim", str(args.dim)]
    base = run_job(__file__, "base", arguments)["peak_mb"]
    repeats = {"scan": args.repeat, "ours": args.repeat, "fairseq": args.peer_repeat, "gensim": args.peer_repeat}
    runs = {
        name: [run_job(__file__, name, arguments) for _ in range(count)] for name, count in repeats.items() if count
    }
    results = {name: summary(found, base) for name, found in runs.items()}
    digests = {found[0]["digest"] for found in runs.values() if "digest" in found[0]}
    return {
        "what": "rows of a vocabulary from GloVe-like text",
        "rows": args.rows,
        "dim": args.dim,
        "vocabulary": args.vocab,
        "bytes": text.stat().st_size,
        "machine": machine(["numpy", "torch", "fairseq", "gensim"]),
        "base_mb": round(base, 1),
        "results": results,
        "ratios": ratios(results, "ours"),
        "goals": GOALS,
        "tables_equal": len(digests) == 1,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000, help="lines of the generated file")
    parser.add_argument("--dim", type=int, default=300, help="numbers in a line")
    parser.add_argument("--vocab", type=int, default=30_000, help="words that are looked for, all in the file")
    parser.add_argument("--repeat", type=int, default=3, help="runs of our reader and of the line scan")
    parser.add_argument("--peer-repeat", type=int, default=1, help="runs of each peer; 0: none")
    parser.add_argument(
        "--cache", type=Path, help="keep the generated file in this folder (default: removed afterwards)"
    )
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    parser.add_argument("--words", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        return child_main(JOBS, args)
    if not 0 < args.vocab < args.rows:
        parser.error("--vocab must be at least 1 and less than --rows")
    if args.cache:
        args.cache.mkdir(parents=True, exist_ok=True)
        print(json.dumps(compare(args, args.cache), indent=1))
    else:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(compare(args, Path(folder)), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
