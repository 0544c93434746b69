"""scripts/train_vectors.py: counts and PMI against loops over the text, the factorisation against the full matrix."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.errors import EmbinitError

pytest.importorskip("scipy")
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "train_vectors.py"
_spec = importlib.util.spec_from_file_location("train_vectors", SCRIPT)
vectors = importlib.util.module_from_spec(_spec)
sys.modules["train_vectors"] = vectors  # dataclasses look their module up
_spec.loader.exec_module(vectors)

#: two kinds of words that never share a context
TEXT = ["the red dog runs", "the blue dog runs", "the red cat sleeps", "the blue cat sleeps", "a red dog sleeps"] * 3
texts = st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=7), min_size=1, max_size=6)


def naive_counts(sentences: list[list[str]], window: int) -> dict[tuple[str, str], float]:
    counts: dict[tuple[str, str], float] = defaultdict(float)
    for sentence in sentences:
        for i, word in enumerate(sentence):
            for j, other in enumerate(sentence):
                if 0 < abs(i - j) <= window:
                    counts[word, other] += 1 / abs(i - j)
    return counts


@settings(max_examples=50, deadline=None)
@given(texts, st.integers(1, 4), st.integers(1, 3))
def test_counts_equal_a_loop_over_the_text(sentences: list[list[str]], window: int, min_count: int) -> None:
    words = vectors.vocabulary(sentences, min_count)
    if not words:
        return
    expected = naive_counts(sentences, window)
    found = vectors.cooccurrences(sentences, words, window).toarray()
    assert found == pytest.approx(np.array([[expected[a, b] for b in words] for a in words]))


@settings(max_examples=50, deadline=None)
@given(texts)
def test_positive_pmi_is_its_definition(sentences: list[list[str]]) -> None:
    words = vectors.vocabulary(sentences, 1)
    counts = vectors.cooccurrences(sentences, words, 2)
    if counts.nnz == 0:
        return
    found = vectors.positive_pmi(counts).toarray()
    dense = counts.toarray()
    smooth = [column.sum() ** 0.75 for column in dense.T]
    for i, row in enumerate(dense):
        for j, count in enumerate(row):
            p_pair, p_word, p_context = count / dense.sum(), row.sum() / dense.sum(), smooth[j] / sum(smooth)
            expected = max(0.0, math.log(p_pair / (p_word * p_context))) if count else 0.0
            assert found[i, j] == pytest.approx(expected)


def test_columns_are_the_leading_singular_directions() -> None:
    assert vectors.vocabulary([["b", "a", "c", "c"], ["b", "a", "d"]], 2) == ["a", "b", "c"]  # by frequency, spelling
    sentences = [line.split() for line in TEXT]
    words, found = vectors.learn("ppmi_svd", sentences, vectors.Settings(dim=3))
    pmi = vectors.positive_pmi(vectors.cooccurrences(sentences, words, 5)).toarray()
    left, values, _ = np.linalg.svd(pmi)
    assert np.abs(found) == pytest.approx(np.abs(left[:, :3] * np.sqrt(values[:3])), abs=1e-5)
    assert found.dtype == np.float32


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str) -> tuple[list[str], np.ndarray]:
    (folder / "text").write_text("\n".join(TEXT) + "\n", encoding="utf-8")
    command = [str(SCRIPT), "--text", str(folder / "text"), "--output", str(folder / "out"), *options]
    monkeypatch.setattr(sys, "argv", command)
    vectors.main()
    rows = [line.split(" ") for line in (folder / "out").read_text(encoding="utf-8").splitlines()]
    return [row[0] for row in rows], np.array([row[1:] for row in rows], dtype=np.float32)


@pytest.mark.parametrize("method", ["ppmi_svd", "word2vec", "fasttext"])
def test_same_seed_same_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    if method != "ppmi_svd":
        pytest.importorskip("gensim")
    options = ("--dim", "4", "--method", method, "--seed", "3", "--epochs", "2")
    (words, matrix), (_, again) = (run(monkeypatch, tmp_path, *options) for _ in range(2))
    assert (matrix == again).all()
    assert (words[0], matrix.shape) == ("the", (len(words), 4))
    assert np.isfinite(matrix).all()


def test_std_sets_the_scale_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    _, plain = run(monkeypatch, tmp_path, "--dim", "4")
    _, scaled = run(monkeypatch, tmp_path, "--dim", "4", "--std", "0.4")
    assert scaled.std(ddof=1) == pytest.approx(0.4, rel=1e-5)
    assert scaled / 0.4 == pytest.approx(plain / plain.std(ddof=1), abs=1e-5)
    assert f"{tmp_path / 'out'}: 8 words x 4, " in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--dim 300", "--dim 0", "--min-count 99", "--std -1", "--text missing"])
def test_errors_name_the_option_and_leave_no_file(tmp_path: Path, monkeypatch, option: str) -> None:
    with pytest.raises(EmbinitError, match=option.removesuffix(" 99").removeprefix("--text ")):
        run(monkeypatch, tmp_path, *option.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text"]
