"""Word vectors of the toy corpus: counts and PPMI against hand-drawn numbers, and what the SVD must keep."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from toy import vectors
from toy.corpus import CorpusConfig, make


def test_cooccurrences_drawn_by_hand() -> None:
    # a b a: pairs (a, b) at 1, (a, a) at 2, (b, a) at 1; x is not in the vocabulary and closes up
    counts = vectors.cooccurrences([["a", "x", "b", "a"], ["b", "c"]], ["a", "b", "c"], window=2)
    np.testing.assert_allclose(counts, [[2 * 0.5, 2, 0], [2, 0, 1], [0, 1, 0]])
    np.testing.assert_allclose(vectors.cooccurrences([["a", "b", "a"]], ["a", "b"], window=1), [[0, 2], [2, 0]])


def test_ppmi_is_the_definition() -> None:
    generator = np.random.default_rng(0)
    counts = generator.integers(0, 4, size=(5, 5)).astype(float)
    counts = counts + counts.T
    counts[3] = counts[:, 3] = 0  # a word that was never seen with another
    context = [counts[:, column].sum() ** 0.75 for column in range(5)]
    for row in range(5):
        for column in range(5):
            expected = 0.0
            if counts[row, column]:
                probability = counts[row, column] / counts[row].sum()
                expected = max(0.0, math.log(probability / (context[column] / sum(context))))
            assert vectors.ppmi(counts)[row, column] == pytest.approx(expected)


def test_full_rank_factors_keep_the_inner_products_of_left_singular_vectors() -> None:
    generator = np.random.default_rng(1)
    matrix = generator.normal(size=(6, 6))
    matrix = matrix @ matrix.T  # positive: then U s U^T is the matrix itself
    factors = vectors.factorise(matrix, 6)
    np.testing.assert_allclose(factors @ factors.T, matrix, atol=1e-9)
    assert (factors[np.abs(factors).argmax(axis=0), np.arange(6)] > 0).all()
    best = vectors.factorise(matrix, 2)
    error = np.linalg.norm(best @ best.T - matrix)
    assert error == pytest.approx(np.linalg.norm(np.linalg.eigvalsh(matrix)[:-2]))  # Eckart and Young


def test_file_is_glove_text_with_the_wanted_scale_and_reproducible(tmp_path: Path) -> None:
    lines = make(CorpusConfig(train=10, valid=10, test=10, monolingual=1500))["mono.en"]
    (tmp_path / "mono").write_text("\n".join(lines), encoding="utf-8")
    for name in ("one.txt", "two.txt"):
        assert vectors.main([str(tmp_path / "mono"), "--output", str(tmp_path / name), "--dim", "12"]) == 0
    assert (tmp_path / "one.txt").read_bytes() == (tmp_path / "two.txt").read_bytes()
    rows = [line.split(" ") for line in (tmp_path / "one.txt").read_text(encoding="utf-8").splitlines()]
    matrix = np.array([row[1:] for row in rows], dtype=float)
    assert matrix.shape == (len({row[0] for row in rows}), 12)
    assert matrix.std() == pytest.approx(0.4, abs=1e-3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mono", "one.txt", "two.txt"]


def test_words_of_one_kind_are_neighbours() -> None:
    lines = make(CorpusConfig(train=10, valid=10, test=10, monolingual=4000))["mono.en"]
    words, matrix = vectors.learn(lines, dim=24, window=4, minimum=5, sigma=0.4)
    unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    place = {word: row for row, word in enumerate(words)}

    def similarity(first: str, second: str) -> float:
        return float(unit[place[first]] @ unit[place[second]])

    assert similarity("yesterday", "week") > similarity("yesterday", "her")
    assert similarity("twenty", "thirty") > similarity("twenty", "kitchen")
    assert similarity("newspaper", "letter") > similarity("newspaper", "garden")


def test_too_little_text_is_refused_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mono").write_text("the dog sleeps .\n" * 9, encoding="utf-8")
    with pytest.raises(SystemExit) as stop:
        vectors.main([str(tmp_path / "mono"), "--output", str(tmp_path / "out.txt"), "--dim", "12"])
    assert stop.value.code != 0
    message = capsys.readouterr().err
    assert "4 words" in message
    assert "--dim 12" in message
    assert not (tmp_path / "out.txt").exists()
