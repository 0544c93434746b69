"""scripts/train_vectors.py: counts and PMI against loops over the text, the factorisation against the full matrix."""

import itertools
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import train_vectors as vectors
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.errors import EmbinitError, VectorFileError

#: two kinds of words that never share a context
TEXT = ["the red dog runs", "the blue dog runs", "the red cat sleeps", "the blue cat sleeps", "a red dog sleeps"] * 3
texts = st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=7), min_size=1, max_size=6)


def test_columns_are_the_leading_singular_directions() -> None:
    assert vectors.vocabulary([["b", "a", "c", "c"], ["b", "a", "d"]], 2) == ["a", "b", "c"]  # by frequency, spelling
    sentences = [line.split() for line in TEXT]
    words, found = vectors.learn(sentences, vectors.parse("--text a --output b --dim 3".split()))
    pmi = vectors.positive_pmi(vectors.cooccurrences(sentences, words, 5)).toarray()
    left, values, _ = np.linalg.svd(pmi)
    assert np.abs(found) == pytest.approx(np.abs(left[:, :3] * np.sqrt(values[:3])), abs=1e-5)
    assert found.dtype == np.float32


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The script, options -> words and matrix of the file that it writes."""

    def run(*options: str) -> tuple[list[str], np.ndarray]:
        (tmp_path / "text").write_text("\n".join(TEXT) + "\n\n", encoding="utf-8")
        text = [] if "--text" in options else ["--text", str(tmp_path / "text")]
        arguments = [*text, "--output", str(tmp_path / "out"), *options]
        monkeypatch.setattr(sys, "argv", ["train_vectors.py", *arguments])
        vectors.main()
        rows = [line.split(" ") for line in (tmp_path / "out").read_text(encoding="utf-8").splitlines()]
        return [row[0] for row in rows], np.array([row[1:] for row in rows], dtype=np.float32)

    return run


@pytest.mark.parametrize("method", ["ppmi_svd", "word2vec", "fasttext"])
def test_same_seed_same_vectors_and_std_sets_the_scale_and_nothing_else(run, method: str) -> None:
    if method != "ppmi_svd":
        pytest.importorskip("gensim")
    options = ("--dim", "4", "--method", method, "--seed", "3", "--epochs", "2")
    (words, matrix), (_, again) = run(*options), run(*options, "--std", "0.4")
    assert (words[0], matrix.shape) == ("the", (len(words), 4))
    assert again.std(ddof=1) == pytest.approx(0.4, rel=1e-5)
    assert again / 0.4 == pytest.approx(matrix / matrix.std(ddof=1), abs=1e-5)


def test_several_files_are_one_text(tmp_path: Path, run) -> None:
    """Also the last line of a file that does not end: it is no beginning of the next file's first line."""
    for name, part in (("de", TEXT[:7]), ("en", TEXT[7:])):
        (tmp_path / name).write_text("\n".join(part), encoding="utf-8")
    options = ("--dim", "4", "--min-count", "1")
    (words, matrix), (same, again) = run(*options), run(*options, "--text", *(str(tmp_path / n) for n in ("de", "en")))
    assert (same, again.tolist()) == (words, matrix.tolist())


def test_a_word_that_no_line_of_text_can_hold(tmp_path: Path, monkeypatch) -> None:
    """A byte-order mark alone: the remedy of the error works."""
    (tmp_path / "text").write_text("a \ufeff b\nb a \ufeff\n", encoding="utf-8")
    options = ["train_vectors.py", "--text", str(tmp_path / "text"), "--dim", "2", "--min-count", "1", "--output"]
    monkeypatch.setattr(sys, "argv", [*options, str(tmp_path / "v.txt")])
    with pytest.raises(VectorFileError, match=r"\.npz"):
        vectors.main()
    monkeypatch.setattr(sys, "argv", [*options, str(tmp_path / "v.npz")])
    vectors.main()
    assert sorted(np.load(tmp_path / "v.npz")["words"]) == ["a", "b", "\ufeff"]


@pytest.mark.parametrize("option", ["--dim 300", "--dim 0", "--min-count 99", "--std -1", "--text missing"])
def test_errors_name_the_option_and_leave_no_file(tmp_path: Path, run, capsys, option: str) -> None:
    with pytest.raises((EmbinitError, SystemExit)) as refused:
        run(*option.split())
    assert option.removesuffix(" 99") in f"{refused.value}{capsys.readouterr().err}"
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


@settings(max_examples=30)
@given(texts, st.integers(1, 4), st.integers(1, 3))
def test_counts_and_positive_pmi_are_their_definitions(sentences: list[list[str]], window: int, least: int) -> None:
    expected: dict[tuple[str, str], float] = defaultdict(float)
    for sentence in sentences:
        for (i, word), (j, other) in itertools.permutations(enumerate(sentence), 2):
            expected[word, other] += 1 / abs(i - j) if abs(i - j) <= window else 0
    words = vectors.vocabulary(sentences, least)
    if not words:
        return
    counts = vectors.cooccurrences(sentences, words, window)
    dense = np.array([[expected[a, b] for b in words] for a in words])
    assert counts.toarray() == pytest.approx(dense)
    if dense.any():
        found, total, smooth = vectors.positive_pmi(counts).toarray(), dense.sum(), dense.sum(axis=0) ** 0.75
        for i, j in zip(*dense.nonzero()):
            ratio = dense[i, j] / total / (dense[i].sum() / total * smooth[j] / smooth.sum())
            assert found[i, j] == pytest.approx(max(0.0, math.log(ratio)))
        assert not found[dense == 0].any()
