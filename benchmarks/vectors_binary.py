"""Reading the rows of a vocabulary from binary files: word2vec .bin, fastText .bin, safetensors.

    python benchmarks/vectors_binary.py
    python benchmarks/vectors_binary.py --rows 20000 --buckets 20000 --dim 50 --vocab 2000 --repeat 1

Peers: gensim (word2vec and fastText), `load_file` of safetensors for numpy and for torch. The files are generated
(seeded). Every job runs in a process of its own; the seconds are CPU seconds (user + system) of the read alone, imports
left out. Memory is the peak over a process that has only imported NumPy, file pages that are merely mapped included.
The rows that the jobs return are compared: bit by bit, for fastText (means of many rows) to 1e-5.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from peers import child_main, machine, measured, ratios, run_job, summary

GOALS = {"word2vec": 7, "fasttext": 25, "safetensors": 10}
TENSOR = "bert.embeddings.word_embeddings.weight"
_SYLLABLES = [a + b for a in ("b", "d", "f", "g", "k", "l", "m", "n", "r", "s", "t", "sch") for b in "aeiouäöü"]
_BLOCK = 4096  # rows generated at a time


def make_words(count: int, seed: int) -> list[str]:
    """Distinct words of two to five syllables, so that they share n-grams as words of a language do."""
    generator = np.random.default_rng(seed)
    words: dict[str, None] = {}
    while len(words) < count:
        picks = generator.integers(0, len(_SYLLABLES), (count, 5))
        lengths = generator.integers(2, 6, count)
        words.update(
            ("".join(_SYLLABLES[pick] for pick in row[:length]), None)
            for row, length in zip(picks.tolist(), lengths.tolist())
        )
    return list(words)[:count]


def blocks(rows: int, dim: int, seed: int) -> Any:
    """A (rows, dim) float32 matrix, in pieces."""
    generator = np.random.default_rng(seed)
    for begin in range(0, rows, _BLOCK):
        yield generator.standard_normal((min(_BLOCK, rows - begin), dim), dtype=np.float32)


def write_word2vec(file: Path, words: list[str], dim: int) -> None:
    """As the word2vec program writes it."""
    names = iter(words)
    with open(file, "wb") as stream:
        stream.write(b"%d %d\n" % (len(words), dim))
        for block in blocks(len(words), dim, 1):
            for row in block:
                stream.write(next(names).encode() + b" " + row.tobytes() + b"\n")


def write_fasttext(file: Path, words: list[str], dim: int, buckets: int) -> None:
    """As fastText writes it: skip-gram, n-grams of 3 to 6 characters. The output matrix is left to a single row."""
    with open(file, "wb") as stream:
        stream.write(struct.pack("<2i12id", 793712314, 12, dim, 5, 5, 1, 5, 1, 2, 2, buckets, 3, 6, 100, 1e-4))
        stream.write(struct.pack("<3i2q", len(words), len(words), 0, 10**9, -1))
        stream.write(b"".join(word.encode() + b"\0" + struct.pack("<qb", 9, 0) for word in words))
        stream.write(struct.pack("<?2q", False, len(words) + buckets, dim))
        for block in blocks(len(words) + buckets, dim, 2):
            stream.write(block.tobytes())
        stream.write(struct.pack("<?2q", False, 1, dim) + bytes(4 * dim))


def write_directory(folder: Path, words: list[str], dim: int, layers: int) -> None:
    """A BERT-like model: an embedding and `layers` times 12 * dim * dim other parameters, vocab.txt."""
    from safetensors.numpy import save_file

    folder.mkdir()
    tensors = {TENSOR: np.concatenate(list(blocks(len(words), dim, 3)))}
    for layer in range(layers):
        tensors[f"bert.encoder.layer.{layer}.weight"] = np.full((12 * dim, dim), layer, dtype=np.float32)
    save_file(tensors, str(folder / "model.safetensors"))
    (folder / "vocab.txt").write_text("".join(word + "\n" for word in words), encoding="utf-8")


def _import_ours() -> Any:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from embinit_fairseq.vectors.open import open_vectors
    from embinit_fairseq.vectors.table import Wanted

    return open_vectors, Wanted


def _vocabulary(args: argparse.Namespace) -> list[str]:
    return Path(args.words).read_text(encoding="utf-8").split()


def _finish(args: argparse.Namespace, matrix: np.ndarray, numbers: dict[str, Any]) -> dict[str, Any]:
    """Keep the job's rows (vocabulary, D), for the comparison."""
    np.save(args.output, np.ascontiguousarray(matrix, np.float32))
    return numbers


def job_base(args: argparse.Namespace) -> dict[str, Any]:
    return measured(lambda: None)[1]


def job_ours(args: argparse.Namespace) -> dict[str, Any]:
    """Any of the formats, from its path to the rows: recognition, vocabulary and all."""
    open_vectors, wanted = _import_ours()
    words = _vocabulary(args)
    table, numbers = measured(lambda: open_vectors(args.file).read(wanted.words(words)))
    row = {word: index for index, word in enumerate(table.words)}
    return _finish(args, table.matrix[[row[word] for word in words]], numbers)


def job_rows(args: argparse.Namespace) -> dict[str, Any]:
    """Only the rows of a safetensors matrix, their numbers known: what `load_file` and an index do."""
    _import_ours()
    from embinit_fairseq.vectors.hf_weights import safetensors_matrices

    rows = _row_numbers(args)
    file = Path(args.file) / "model.safetensors"
    matrix, numbers = measured(lambda: safetensors_matrices(file)[TENSOR].take(rows))
    return _finish(args, matrix, numbers)


def _row_numbers(args: argparse.Namespace) -> np.ndarray:
    lines = (Path(args.file) / "vocab.txt").read_text(encoding="utf-8").split("\n")
    place = {word: row for row, word in enumerate(lines)}
    return np.array([place[word] for word in _vocabulary(args)])


def job_load_file_numpy(args: argparse.Namespace) -> dict[str, Any]:
    from safetensors.numpy import load_file

    rows = _row_numbers(args)
    file = Path(args.file) / "model.safetensors"
    matrix, numbers = measured(lambda: load_file(file)[TENSOR][rows])
    return _finish(args, matrix, numbers)


def job_load_file_torch(args: argparse.Namespace) -> dict[str, Any]:
    import torch
    from safetensors.torch import load_file

    rows = torch.from_numpy(_row_numbers(args))
    file = Path(args.file) / "model.safetensors"
    matrix, numbers = measured(lambda: load_file(file)[TENSOR][rows].numpy())
    return _finish(args, matrix, numbers)


def job_gensim_word2vec(args: argparse.Namespace) -> dict[str, Any]:
    from gensim.models import KeyedVectors

    words = _vocabulary(args)
    vectors, numbers = measured(lambda: KeyedVectors.load_word2vec_format(args.file, binary=True))
    return _finish(args, vectors[words], numbers)


def job_gensim_fasttext(args: argparse.Namespace) -> dict[str, Any]:
    from gensim.models.fasttext import load_facebook_vectors

    words = _vocabulary(args)
    vectors, numbers = measured(lambda: load_facebook_vectors(args.file))
    return _finish(args, vectors[words], numbers)


JOBS = {
    "base": job_base,
    "ours": job_ours,
    "rows": job_rows,
    "load_file_numpy": job_load_file_numpy,
    "load_file_torch": job_load_file_torch,
    "gensim_word2vec": job_gensim_word2vec,
    "gensim_fasttext": job_gensim_fasttext,
}
#: format -> (ours, the others); the first is what the ratios refer to.
CASES = {
    "word2vec": (["ours"], ["gensim_word2vec"]),
    "fasttext": (["ours"], ["gensim_fasttext"]),
    "safetensors": (["rows", "ours"], ["load_file_numpy", "load_file_torch"]),
}


def compare(args: argparse.Namespace, folder: Path, case: str, base: float) -> dict[str, Any]:
    """Generate one format's file, run its jobs, compare what they return."""
    rows = args.hf_rows if case == "safetensors" else args.rows
    words = make_words(rows, 7)
    file, vocabulary = folder / case, folder / f"{case}.vocabulary"
    if case == "word2vec":
        write_word2vec(file, words, args.dim)
    elif case == "fasttext":
        write_fasttext(file, words, args.dim, args.buckets)
    else:
        write_directory(file, words, args.hf_dim, args.hf_layers)
    chosen = np.sort(np.random.default_rng(5).permutation(rows)[: min(args.vocab, rows // 2)]).tolist()
    vocabulary.write_text("".join(words[row] + "\n" for row in chosen), encoding="utf-8")
    ours, peers = CASES[case]
    results, tables = {}, {}
    for job in ours + peers:
        output = folder / f"{case}.{job}.npy"
        arguments = ["--file", str(file), "--words", str(vocabulary), "--output", str(output)]
        repeat = args.repeat if job in ours else args.peer_repeat
        results[job] = summary([run_job(__file__, job, arguments) for _ in range(repeat)], base)
        if output.exists():
            tables[job] = np.load(output)
    tolerance = 1e-5 if case == "fasttext" else 0
    first = tables[ours[0]]
    equal = all(np.allclose(first, table, rtol=0, atol=tolerance) for table in tables.values())
    return {
        "rows": rows,
        "vocabulary": len(chosen),
        "bytes": (file / "model.safetensors" if file.is_dir() else file).stat().st_size,
        "results": results,
        "ratios": ratios(results, ours[0]),
        "goal": GOALS[case],
        "rows_equal": equal,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000, help="words of the word2vec and fastText files")
    parser.add_argument("--dim", type=int, default=300, help="columns of these files")
    parser.add_argument("--buckets", type=int, default=400_000, help="n-gram rows of the fastText file")
    parser.add_argument("--vocab", type=int, default=30_000, help="words that are looked for (at most half of a file)")
    parser.add_argument("--hf-rows", type=int, default=120_000, help="rows of the safetensors matrix (mBERT: 119,547)")
    parser.add_argument("--hf-dim", type=int, default=768, help="columns of the safetensors matrix")
    parser.add_argument("--hf-layers", type=int, default=12, help="layers of 12 * dim * dim parameters beside it")
    parser.add_argument("--repeat", type=int, default=3, help="runs of our readers")
    parser.add_argument("--peer-repeat", type=int, default=1, help="runs of each peer")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="formats to measure")
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    parser.add_argument("--words", help=argparse.SUPPRESS)
    parser.add_argument("--output", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        return child_main(JOBS, args)
    base = run_job(__file__, "base", [])["peak_mb"]
    cases = {}
    for case in args.cases:
        with tempfile.TemporaryDirectory() as folder:
            cases[case] = compare(args, Path(folder), case, base)
    report = {
        "what": "rows of a vocabulary from binary files",
        "dim": args.dim,
        "machine": machine(["numpy", "gensim", "safetensors", "torch"]),
        "base_mb": round(base, 1),
        "cases": cases,
    }
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
