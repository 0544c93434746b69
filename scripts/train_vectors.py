"""Learn word vectors from plain text, if there are no published ones.

ppmi_svd (default): counts of word pairs in a window, weighted by 1/distance as in GloVe; positive pointwise mutual
information with smoothed contexts (exponent 0.75); truncated singular value decomposition, vectors U * sqrt(S) (Levy,
Goldberg and Dagan 2015, "Improving Distributional Similarity with Lessons Learned from Word Embeddings"). Needs scipy;
seconds for a few hundred thousand words. word2vec and fasttext: skip-gram by gensim, one thread. The same text and
--seed give the same file (on the same versions of the libraries).

The scale of the method depends on the text, is printed, and differs from that of GloVe vectors (standard deviation
about 0.4); --std sets it, for comparable experiments with unscaled vectors.

    python scripts/train_vectors.py --text train.de --dim 300 --output vectors.de.txt

The text has one sentence per line in tokens separated by spaces, the same tokens as the model's. Several files are read
as one text: a joined dictionary needs vectors of both languages. The output is text without a header (GloVe's format),
or .npz, which holds any word; the most frequent word is first.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.errors import OptionError, counted, one_line
from embinit_fairseq.io import read_lines
from embinit_fairseq.vectors.writers import write_npz, write_text


def vocabulary(sentences: list[list[str]], min_count: int) -> list[str]:
    """Return the words in order of falling frequency, then of spelling."""
    counts = Counter(chain.from_iterable(sentences))
    frequent = (word for word, count in counts.items() if count >= min_count)
    return sorted(frequent, key=lambda word: (-counts[word], word))


def cooccurrences(sentences: list[list[str]], words: list[str], window: int):
    """Return sums over pairs in the window of 1/distance, symmetric sparse (V, V) float64; rare words take up room."""
    from scipy.sparse import coo_matrix

    row = {word: index for index, word in enumerate(words)}
    ids = np.array([row.get(word, -1) for word in chain.from_iterable(sentences)])
    sentence = np.repeat(np.arange(len(sentences)), list(map(len, sentences)))
    shape = (len(words), len(words))
    total = coo_matrix(shape).tocsr()
    for distance in range(1, window + 1):
        left, right = ids[:-distance], ids[distance:]
        pairs = (sentence[:-distance] == sentence[distance:]) & (left >= 0) & (right >= 0)
        weights = np.full(int(pairs.sum()), 1.0 / distance)
        total = total + coo_matrix((weights, (left[pairs], right[pairs])), shape=shape).tocsr()
    return total + total.T


def positive_pmi(counts, smoothing: float = 0.75):
    """Return max(0, log P(w, c) / (P(w) P(c)^smoothing / Z)) of a sparse matrix of counts."""
    pairs = counts.tocoo()
    word_mass = np.asarray(counts.sum(axis=1)).ravel()
    context_mass = np.asarray(counts.sum(axis=0)).ravel() ** smoothing
    expected = word_mass[pairs.row] * context_mass[pairs.col] / context_mass.sum()
    pairs.data = np.maximum(np.log(pairs.data / expected), 0.0)
    result = pairs.tocsr()
    result.eliminate_zeros()
    return result


def ppmi_svd(sentences: list[list[str]], words: list[str], args: argparse.Namespace) -> np.ndarray:
    """Return (V, D) float32: the D leading left singular vectors of the PPMI matrix times the roots of their values."""
    from scipy.sparse.linalg import svds

    if args.dim >= len(words):
        raise OptionError(
            f"--dim {args.dim}: the text has {counted(len(words), 'word')} with --min-count {args.min_count}, and "
            "ppmi_svd gives fewer columns than words; take a lower --dim or more text"
        )
    matrix = positive_pmi(cooccurrences(sentences, words, args.window))
    start = np.random.default_rng(args.seed).standard_normal(len(words))
    left, values, _ = svds(matrix, k=args.dim, v0=start)
    order = np.argsort(-values)
    left, values = left[:, order], values[order]
    # The sign of a singular vector is arbitrary: fix it, or it would depend on the solver.
    left = left * np.sign(left[np.abs(left).argmax(axis=0), np.arange(args.dim)])
    return (left * np.sqrt(np.maximum(values, 0.0))).astype(np.float32)


def skip_gram(sentences: list[list[str]], words: list[str], args: argparse.Namespace) -> np.ndarray:
    """Return (V, D) float32 by gensim's word2vec or fastText."""
    from gensim.models import FastText, Word2Vec

    model = {"word2vec": Word2Vec, "fasttext": FastText}[args.method](
        sentences=sentences,
        vector_size=args.dim,
        window=args.window,
        min_count=args.min_count,
        sg=1,
        seed=args.seed,
        epochs=args.epochs,
        workers=1,  # several threads update in an order that differs from run to run
    )
    return np.stack([model.wv[word] for word in words]).astype(np.float32)


def learn(sentences: list[list[str]], args: argparse.Namespace) -> tuple[list[str], np.ndarray]:
    """Return words and their (V, D) float32 matrix."""
    words = vocabulary(sentences, args.min_count)
    if not words:
        raise OptionError(f"no word occurs {args.min_count} times: lower --min-count or give more text")
    try:
        matrix = (ppmi_svd if args.method == "ppmi_svd" else skip_gram)(sentences, words, args)
    except ModuleNotFoundError as error:
        raise OptionError(f"--method {args.method} needs {error.name}: pip install {error.name}") from error
    if args.std is not None:
        matrix = (matrix * (args.std / matrix.std(ddof=1, dtype=np.float64))).astype(np.float32)
    return words, matrix


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--text", type=Path, nargs="+", required=True, help="files with one sentence per line, tokens between spaces")
    add("--output", type=Path, required=True, help="file to write: text, or .npz")
    add("--method", choices=("ppmi_svd", "word2vec", "fasttext"), default="ppmi_svd", help="default: %(default)s")
    add("--std", type=float, help="scale all values to this standard deviation")
    add("--dim", type=int, default=300, help="number of columns (default: %(default)s)")
    add("--window", type=int, default=5, help="words to either side that count as context (default: %(default)s)")
    add("--min-count", type=int, default=2, help="rarer words get no vector (default: %(default)s)")
    add("--seed", type=int, default=1, help="seed of the solver's start, or of the training (default: %(default)s)")
    add("--epochs", type=int, default=20, help="passes over the text (word2vec, fasttext) (default: %(default)s)")
    args = parser.parse_args(argv)
    for name in ("dim", "window", "min_count", "epochs"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(args, name)}: must be at least 1")
    if args.std is not None and not args.std > 0:
        parser.error(f"--std {args.std}: must be greater than 0")
    return args


def main() -> None:
    """Learn the vectors and write them."""
    args = parse()
    lines = chain.from_iterable(read_lines(path, flag="--text") for path in args.text)
    sentences = [words for _, line in lines if (words := line.split())]
    words, matrix = learn(sentences, args)
    (write_npz if args.output.suffix == ".npz" else write_text)(args.output, words, matrix)
    mean, std = matrix.mean(dtype=np.float64), matrix.std(ddof=1, dtype=np.float64)
    size = f"{counted(len(words), 'word')} x {args.dim}"
    print(f"{args.output}: {size}, mean {mean:.4f}, standard deviation {std:.4f}", file=sys.stderr)


if __name__ == "__main__":
    with one_line():
        main()
