"""Learn word vectors from monolingual text: positive pointwise mutual information, then a truncated SVD.

    PPMI(w, c) = max(0, log(#(w, c) S / (#(w) #(c)^0.75)))        S normalises the smoothed contexts to probabilities
    PPMI = U diag(s) V^T                                          vectors = U_D diag(s_D)^0.5

Levy & Goldberg 2014, Levy et al. 2015 (context smoothing 0.75, eigenvalue weight 0.5). Deterministic: nothing is drawn.
The file has GloVe's text format (word, blank, D numbers; no header). The matrix is multiplied by one number so that its
standard deviation is `--sigma`; the default 0.4 is the order of published GloVe tables, where plain SVD would give an
arbitrary scale. The mean is left where it is.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np


def cooccurrences(sentences: list[list[str]], words: list[str], window: int) -> np.ndarray:
    """(V, V) float64, symmetric: pairs at distance d <= window inside a sentence count 1/d, as in GloVe."""
    index = {word: row for row, word in enumerate(words)}
    counts = np.zeros((len(words), len(words)))
    for sentence in sentences:
        rows = [index[token] for token in sentence if token in index]
        for position, row in enumerate(rows):
            for distance, other in enumerate(rows[position + 1 : position + 1 + window], start=1):
                counts[row, other] += 1.0 / distance
    return counts + counts.T


def ppmi(counts: np.ndarray, smoothing: float = 0.75) -> np.ndarray:
    """(V, V) positive pointwise mutual information with smoothed context probabilities; empty rows stay zero."""
    words, contexts = counts.sum(axis=1), counts.sum(axis=0) ** smoothing
    expected = np.outer(words, contexts / max(contexts.sum(), np.finfo(float).tiny))
    ratio = np.divide(counts, expected, out=np.ones_like(counts), where=(counts > 0) & (expected > 0))
    return np.maximum(np.log(ratio), 0.0)


def factorise(matrix: np.ndarray, dim: int) -> np.ndarray:
    """(V, dim): U s^0.5 of the truncated SVD; each column's largest entry is positive, so that signs are defined."""
    left, singular, _ = np.linalg.svd(matrix)
    vectors = left[:, :dim] * np.sqrt(singular[:dim])
    signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(dim)])
    return vectors * np.where(signs == 0, 1.0, signs)


def learn(lines: list[str], dim: int, window: int, minimum: int, sigma: float) -> tuple[list[str], np.ndarray]:
    """(words by falling frequency, (V, dim) float64 with standard deviation `sigma`). Raises ValueError."""
    sentences = [line.split() for line in lines]
    frequencies = Counter(token for sentence in sentences for token in sentence)
    words = sorted(
        (word for word, count in frequencies.items() if count >= minimum), key=lambda w: (-frequencies[w], w)
    )
    if len(words) <= dim:
        raise ValueError(f"{len(words)} words occur {minimum} times or more: too few for --dim {dim}; give more text")
    vectors = factorise(ppmi(cooccurrences(sentences, words, window)), dim)
    return words, vectors * (sigma / vectors.std())


def write(path: Path, words: list[str], vectors: np.ndarray) -> None:
    """GloVe text, whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as stream:
        for word, vector in zip(words, vectors):
            stream.write(word + " " + " ".join(f"{value:.5f}" for value in vector) + "\n")
    os.replace(temporary, path)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="tokenised text, one sentence a line")
    parser.add_argument("--output", type=Path, required=True, help="file for the vectors")
    parser.add_argument("--dim", type=int, default=96, help="columns; must equal the model's --*-embed-dim")
    parser.add_argument("--window", type=int, default=4, help="furthest neighbour that counts as context")
    parser.add_argument("--minimum", type=int, default=5, help="words seen less often get no vector")
    parser.add_argument("--sigma", type=float, default=0.4, help="standard deviation of all values")
    options = parser.parse_args(argv)
    try:
        lines = options.text.read_text(encoding="utf-8").splitlines()
        words, vectors = learn(lines, options.dim, options.window, options.minimum, options.sigma)
    except (OSError, ValueError) as error:
        parser.error(f"{options.text}: {error}")
    write(options.output, words, vectors)
    print(f"{options.text.name}: {len(words)} words, {options.dim} dimensions, standard deviation {vectors.std():.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
