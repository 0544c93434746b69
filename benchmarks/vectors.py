"""Time reading the rows of a vocabulary: this plugin, fairseq's loader, gensim and safetensors. Prints JSON.

    python benchmarks/vectors.py                                    # text, word2vec, fastText, safetensors: 3 GB
    python benchmarks/vectors.py --cases text --rows 20000 --dim 50 --vocab 2000 --repeat 1

The files are generated (seeded); numbers of the text have five significant digits, as in GloVe's files. Every job runs
in a process of its own; the seconds are CPU seconds (user + system) of the read alone, imports left out. Memory is the
peak compared with a process that has only imported NumPy, mapped file pages included. The rows that the jobs return
are compared: bit by bit, for fastText (means of many rows) to 1e-5.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from peers import child_main, machine, measured, run_job

from embinit_fairseq.arguments import ArgumentParser

#: case -> this plugin's jobs, the first of which the ratios refer to, and the jobs of other programs
CASES = {
    "text": (["ours", "scan"], ["fairseq", "gensim_text"]),
    "word2vec": (["ours"], ["gensim_word2vec"]),
    "fasttext": (["ours"], ["gensim_fasttext"]),
    "safetensors": (["rows", "ours"], ["load_file_numpy", "load_file_torch"]),
}
TENSOR = "bert.embeddings.word_embeddings.weight"
_SYLLABLES = [a + b for a in ("b", "d", "f", "g", "k", "l", "m", "n", "r", "s", "t", "sch") for b in "aeiouäöü"]
#: rows generated at a time
_BLOCK = 4096
#: distinct numbers of the text; a row is a random stretch of them
_POOL = 200_003


# ---- Files ----------------------------------------------------------------------------------------------------------


def make_words(count: int) -> list[str]:
    """Return distinct words of two to five syllables, which share n-grams as words of a language do."""
    generator = np.random.default_rng(7)
    words: dict[str, None] = {}
    while len(words) < count:
        picks, lengths = generator.integers(0, len(_SYLLABLES), (count, 5)), generator.integers(2, 6, count)
        for row, length in zip(picks.tolist(), lengths.tolist()):
            words["".join(_SYLLABLES[pick] for pick in row[:length])] = None
    return list(words)[:count]


def blocks(rows: int, dim: int, seed: int) -> Iterator[np.ndarray]:
    """Yield a (rows, dim) float32 matrix in blocks."""
    generator = np.random.default_rng(seed)
    for begin in range(0, rows, _BLOCK):
        yield generator.standard_normal((min(_BLOCK, rows - begin), dim), dtype=np.float32)


def write_text(file: Path, words: list[str], args: argparse.Namespace) -> None:
    """Write GloVe's format."""
    generator = np.random.default_rng(1)
    numbers = [b" %.5g" % value for value in generator.normal(0, 0.4, _POOL + args.dim)]
    ends = np.cumsum([0, *map(len, numbers)])
    pool, starts = b"".join(numbers), generator.integers(0, _POOL, len(words))
    with open(file, "wb") as stream:
        for word, start, end in zip(words, ends[starts].tolist(), ends[starts + args.dim].tolist()):
            stream.write(b"%b%b\n" % (word.encode(), pool[start:end]))


def write_word2vec(file: Path, words: list[str], args: argparse.Namespace) -> None:
    """Write word2vec's binary format."""
    names = iter(words)
    with open(file, "wb") as stream:
        stream.write(b"%d %d\n" % (len(words), args.dim))
        for block in blocks(len(words), args.dim, 1):
            for row in block:
                stream.write(next(names).encode() + b" " + row.tobytes() + b"\n")


def write_fasttext(file: Path, words: list[str], args: argparse.Namespace) -> None:
    """Write fastText's format: skip-gram, n-grams of 3 to 6 characters, one row of the output matrix."""
    dim, buckets = args.dim, args.buckets
    with open(file, "wb") as stream:
        stream.write(struct.pack("<2i12id", 793712314, 12, dim, 5, 5, 1, 5, 1, 2, 2, buckets, 3, 6, 100, 1e-4))
        stream.write(struct.pack("<3i2q", len(words), len(words), 0, 10**9, -1))
        stream.write(b"".join(word.encode() + b"\0" + struct.pack("<qb", 9, 0) for word in words))
        stream.write(struct.pack("<?2q", False, len(words) + buckets, dim))
        for block in blocks(len(words) + buckets, dim, 2):
            stream.write(block.tobytes())
        stream.write(struct.pack("<?2q", False, 1, dim) + bytes(4 * dim))


def write_safetensors(folder: Path, words: list[str], args: argparse.Namespace) -> None:
    """Write a BERT-like model: an embedding, layers of 12 * dim * dim other parameters, vocab.txt."""
    from safetensors.numpy import save_file

    folder.mkdir()
    tensors = {TENSOR: np.concatenate(list(blocks(len(words), args.hf_dim, 3)))}
    for layer in range(args.hf_layers):
        tensors[f"bert.encoder.layer.{layer}.weight"] = np.full((12 * args.hf_dim, args.hf_dim), layer, np.float32)
    save_file(tensors, str(folder / "model.safetensors"))
    (folder / "vocab.txt").write_text("".join(word + "\n" for word in words), encoding="utf-8")


WRITERS = {"text": write_text, "word2vec": write_word2vec, "fasttext": write_fasttext, "safetensors": write_safetensors}


# ---- Jobs: the timed function, and the rows of the vocabulary's words in its result (none: the job has no rows) -----

Reading = tuple[Callable[[], Any], Callable[[Any], np.ndarray] | None]


def scan(args: argparse.Namespace, words: list[str]) -> Reading:
    """Find the wanted lines of text, parse nothing: a lower bound."""
    wanted = {word.encode() for word in words}

    def count() -> int:
        with open(args.file, "rb", buffering=1 << 18) as file:
            return sum(line[: line.find(b" ")] in wanted for line in file)

    return count, None


def ours(args: argparse.Namespace, words: list[str]) -> Reading:
    """Read any of the formats, recognition and vocabulary included."""
    from embinit_fairseq.vectors.open import open_vectors
    from embinit_fairseq.vectors.table import Wanted

    def rows(table: Any) -> np.ndarray:
        row = {word: index for index, word in enumerate(table.words)}
        return table.matrix[[row[word] for word in words]]

    return lambda: open_vectors(args.file).read(Wanted.words(words)), rows


def row_numbers(args: argparse.Namespace, words: list[str]) -> np.ndarray:
    lines = (Path(args.file) / "vocab.txt").read_text(encoding="utf-8").split("\n")
    place = {word: row for row, word in enumerate(lines)}
    return np.array([place[word] for word in words])


def rows(args: argparse.Namespace, words: list[str]) -> Reading:
    """Read rows of a safetensors matrix by their numbers: the work of `load_file` and an index."""
    from embinit_fairseq.vectors.hf_weights import safetensors_matrices

    numbers, file = row_numbers(args, words), Path(args.file) / "model.safetensors"
    return lambda: safetensors_matrices(file)[TENSOR].take(numbers), np.asarray


def load_file_numpy(args: argparse.Namespace, words: list[str]) -> Reading:
    from safetensors.numpy import load_file

    numbers = row_numbers(args, words)
    return lambda: load_file(f"{args.file}/model.safetensors")[TENSOR][numbers], np.asarray


def load_file_torch(args: argparse.Namespace, words: list[str]) -> Reading:
    import torch
    from safetensors.torch import load_file

    numbers = torch.from_numpy(row_numbers(args, words))
    return lambda: load_file(f"{args.file}/model.safetensors")[TENSOR][numbers], np.asarray


def fairseq(args: argparse.Namespace, words: list[str]) -> Reading:
    import torch
    from fairseq.data import Dictionary
    from fairseq.utils import load_embedding, parse_embedding

    dictionary = Dictionary()
    for word in words:
        dictionary.add_symbol(word)
    embedding = torch.nn.Embedding(len(dictionary), args.dim)
    fill = lambda: load_embedding(parse_embedding(args.file), dictionary, embedding)  # noqa: E731
    return fill, lambda filled: filled.weight.detach().numpy()[dictionary.nspecial :]


def gensim(args: argparse.Namespace, words: list[str], **options: bool) -> Reading:
    from gensim.models import KeyedVectors

    return lambda: KeyedVectors.load_word2vec_format(args.file, **options), lambda vectors: vectors[words]


def gensim_fasttext(args: argparse.Namespace, words: list[str]) -> Reading:
    from gensim.models.fasttext import load_facebook_vectors

    return lambda: load_facebook_vectors(args.file), lambda vectors: vectors[words]


JOBS: dict[str, Callable[[argparse.Namespace, list[str]], Reading]] = {
    "base": lambda args, words: (lambda: None, None),
    "scan": scan,
    "ours": ours,
    "rows": rows,
    "load_file_numpy": load_file_numpy,
    "load_file_torch": load_file_torch,
    "fairseq": fairseq,
    "gensim_text": lambda args, words: gensim(args, words, binary=False, no_header=True),
    "gensim_word2vec": lambda args, words: gensim(args, words, binary=True),
    "gensim_fasttext": gensim_fasttext,
}


def job(args: argparse.Namespace) -> dict[str, Any]:
    """Time one job and save its rows."""
    work, rows_of = JOBS[args.job](args, Path(args.words).read_text(encoding="utf-8").split() if args.words else [])
    result, numbers = measured(work)
    if rows_of:
        np.save(args.output, np.ascontiguousarray(rows_of(result), np.float32))
    return numbers


def summary(runs: list[dict[str, Any]], base_mb: float) -> dict[str, Any]:
    """Return all CPU seconds of repeated runs, their minimum and median, peak memory over the base process."""
    if "missing" in runs[0]:
        return runs[0]
    seconds = [run["cpu_seconds"] for run in runs]
    return {
        "cpu_seconds": [round(value, 3) for value in seconds],
        "min": round(min(seconds), 3),
        "median": round(statistics.median(seconds), 3),
        "wall_min": round(min(run["wall_seconds"] for run in runs), 3),
        "peak_over_base_mb": round(max(run["peak_mb"] for run in runs) - base_mb, 1),
        "imports_over_base_mb": round(max(run["imports_mb"] for run in runs) - base_mb, 1),
    }


def compare(args: argparse.Namespace, folder: Path, case: str, base: float) -> dict[str, Any]:
    """Generate the file of one case, run its jobs, compare their rows."""
    rows = args.hf_rows if case == "safetensors" else args.rows
    words, file, vocabulary = make_words(rows), folder / case, folder / f"{case}.vocabulary"
    WRITERS[case](file, words, args)
    # fairseq's loader takes line 1 for a header: its word is not in the vocabulary
    chosen = np.sort(1 + np.random.default_rng(5).permutation(rows - 1)[: min(args.vocab, rows // 2)]).tolist()
    vocabulary.write_text("".join(words[row] + "\n" for row in chosen), encoding="utf-8")
    ours, peers = CASES[case]
    results, tables = {}, []
    for job in ours + peers:
        output = folder / f"{case}.{job}.npy"
        arguments = ["--file", str(file), "--words", str(vocabulary), "--output", str(output), "--dim", str(args.dim)]
        repeat = args.repeat if job in ours else args.peer_repeat
        results[job] = summary([run_job(__file__, job, arguments) for _ in range(repeat)], base)
        tables += [np.load(output)] if output.exists() else []
    least = {job: result["min"] for job, result in results.items() if "min" in result}
    tolerance = 1e-5 if case == "fasttext" else 0
    return {
        "rows": rows,
        "vocabulary": len(chosen),
        "bytes": (file / "model.safetensors" if file.is_dir() else file).stat().st_size,
        "results": results,
        "ratios": {job: round(n / max(least[ours[0]], 1e-3), 1) for job, n in least.items() if job != ours[0]},
        "rows_equal": all(np.allclose(tables[0], table, rtol=0, atol=tolerance) for table in tables),
    }


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="formats to measure")
    parser.add_argument("--rows", type=int, default=400_000, help="words of the files of word vectors")
    parser.add_argument("--dim", type=int, default=300, help="columns of these files")
    parser.add_argument("--buckets", type=int, default=400_000, help="n-gram rows of the fastText file")
    parser.add_argument("--vocab", type=int, default=30_000, help="words that are read (at most half of a file)")
    parser.add_argument("--hf-rows", type=int, default=120_000, help="rows of the safetensors matrix (mBERT: 119,547)")
    parser.add_argument("--hf-dim", type=int, default=768, help="columns of the safetensors matrix")
    parser.add_argument("--hf-layers", type=int, default=12, help="layers of 12 * dim * dim other parameters")
    parser.add_argument("--repeat", type=int, default=3, help="runs of our readers")
    parser.add_argument("--peer-repeat", type=int, default=1, help="runs of each peer")
    for name in ("--job", "--file", "--words", "--output"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        child_main(dict.fromkeys(JOBS, job), args)
        return
    base = run_job(__file__, "base", [])["peak_mb"]
    cases = {}
    for case in args.cases:
        with tempfile.TemporaryDirectory() as folder:
            cases[case] = compare(args, Path(folder), case, base)
    hardware = machine(["numpy", "torch", "fairseq", "gensim", "safetensors"])
    print(json.dumps({"machine": hardware, "dim": args.dim, "base_mb": round(base, 1), "cases": cases}, indent=1))


if __name__ == "__main__":
    main()
