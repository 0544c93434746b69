"""The methods focus and omp of transfer-vocab: their equations, and the package deepfocus."""

import numpy as np
import pytest
import torch
from expand_checkpoints import w_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_resize_transfer import SPECIALS, inputs_of, symbols, weights_of

from embinit_fairseq.init import weights as weights_module
from embinit_fairseq.init.methods import sparsemax


@settings(max_examples=50)
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=8))
def test_sparsemax_is_the_nearest_point_of_the_simplex(scores: list[float]) -> None:
    """Its optimality: with p = max(z - tau, 0), all z_i - p_i are tau where p_i > 0, and no more where it is 0."""
    z = np.array(scores)
    p = sparsemax(z)
    assert p.sum() == pytest.approx(1)
    assert (p >= 0).all()
    tau = (z - p)[p > 0]
    assert np.ptp(tau) < 1e-12
    assert (z[p == 0] <= tau.mean() + 1e-12).all()


def focus_case(words: int = 60, dim: int = 12, wide: int = 8, seed: int = 1):
    """(old names, new names, old table, vectors of some new words), words without a vector on both sides included."""
    generator = np.random.default_rng(seed)
    old, new = [f"o{n}" for n in range(words)], [f"n{n}" for n in range(words)]
    new[::2] = old[: len(new[::2])]
    table = generator.normal(size=(words + 4, dim))
    vectors = {word: generator.normal(size=wide).astype(np.float32) for word in new if not word.endswith("7")}
    vectors[new[1]] = np.zeros(wide, dtype=np.float32)
    return old, new, table, vectors


def focus_by_its_equation(old: list[str], new: list[str], table: np.ndarray, vectors: dict) -> dict[str, np.ndarray]:
    """Dobler and de Melo 2023, section 3, in float64; sparsemax by sorting (Martins and Astudillo 2016)."""
    shared = [word for word in new if word in old and word in vectors]
    rows = {}
    for word in new:
        if word in old or word not in vectors or not vectors[word].any():
            continue
        a = vectors[word].astype(float)
        z = [a @ b / np.sqrt(a @ a) / np.sqrt(b @ b) for b in (vectors[each].astype(float) for each in shared)]
        ranked, k = sorted(z, reverse=True), 0
        while k < len(z) and 1 + (k + 1) * ranked[k] > sum(ranked[: k + 1]):
            k += 1
        tau = (sum(ranked[:k]) - 1) / k
        rows[word] = sum(max(value - tau, 0) * table[4 + old.index(each)] for value, each in zip(z, shared))
    return rows


def focus_here(old, new, table, vectors, method="focus", **more) -> tuple[np.ndarray, np.ndarray]:
    """(W times the table, without the drawn rows; which are drawn)."""
    one, other = symbols(*old), symbols(*new)
    at = np.array([4 + row for row, word in enumerate(new) if word in vectors])
    rows = [vectors[other.names[row]] for row in at]
    special = rows[0]  # <s> has a vector, too, and takes no part
    case = inputs_of(one, other, vector_rows=np.array([0, *at]), vectors=np.stack([special, *rows]), **more)
    weights = weights_of(method, case)
    return w_of(weights) @ table, weights.rows_of("drawn")


def test_focus_is_its_equation() -> None:
    case = focus_case()
    made, drawn = focus_here(*case)
    expected = focus_by_its_equation(*case)
    assert len(expected) > 20
    for word, row in expected.items():
        np.testing.assert_allclose(made[4 + case[1].index(word)], row, rtol=0, atol=1e-12)
    assert {case[1][row - 4] for row in drawn} == {"n1", "n7", "n17", "n27", "n37", "n47", "n57"}


def omp_by_its_steps(old: list[str], new: list[str], vectors: dict, sparsity: int) -> dict[str, dict[str, float]]:
    """Orthogonal matching pursuit in float64, by least squares anew after each step: word -> shared word -> number."""
    shared = [word for word in new if word in old and word in vectors]
    result = {}
    for word in new:
        if word in old or word not in vectors or not vectors[word].any():
            continue
        target = remainder = vectors[word].astype(float)
        chosen: list[str] = []
        for _ in range(sparsity):
            atoms = {each: vectors[each].astype(float) for each in shared if each not in chosen}
            chosen.append(
                max(atoms, key=lambda each: abs(atoms[each] @ remainder) / np.sqrt(atoms[each] @ atoms[each]))
            )
            matrix = np.stack([vectors[each].astype(float) for each in chosen], axis=1)
            numbers = np.linalg.lstsq(matrix, target, rcond=None)[0]
            remainder = target - matrix @ numbers
        result[word] = dict(zip(chosen, numbers))
    return result


@pytest.mark.parametrize("elements", [1, 90, 4_000_000])
def test_omp_is_its_steps(elements: int, monkeypatch) -> None:
    """Vectors of different lengths; in blocks of one word, of three, and in one. What has no vector is drawn."""
    monkeypatch.setattr(weights_module, "_BLOCK_ELEMENTS", elements)
    old, new, table, vectors = focus_case()
    vectors = {word: vector * (1 + number % 5) for number, (word, vector) in enumerate(vectors.items())}
    for sparsity in (1, 3, 8):
        made, drawn = focus_here(old, new, table, vectors, "omp", sparsity=sparsity)
        expected = omp_by_its_steps(old, new, vectors, sparsity)
        assert len(expected) > 20
        for word, parts in expected.items():
            row = sum(number * table[4 + old.index(each)] for each, number in parts.items())
            np.testing.assert_allclose(made[4 + new.index(word)], row, rtol=0, atol=1e-11)
        assert np.array_equal(drawn, focus_here(old, new, table, vectors)[1])


def test_omp_ends_where_nothing_remains() -> None:
    """One word is enough for a vector of its direction."""
    old, new, _, vectors = focus_case()
    twin, shared, eye = new[3], new[4], np.eye(len(old) + 4)
    vectors[twin] = -3 * vectors[shared]
    for sparsity in (1, None):
        row = focus_here(old, new, eye, vectors, "omp", sparsity=sparsity)[0][4 + new.index(twin)]
        np.testing.assert_allclose(row, -3 * eye[4 + old.index(shared)], rtol=0, atol=1e-6)
    few = {word: vectors[word] for word in (twin, shared)}  # --sparsity may be the number of shared words
    row = focus_here(old, new, eye, few, "omp", sparsity=1)[0][4 + new.index(twin)]
    np.testing.assert_allclose(row, -3 * eye[4 + old.index(shared)], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("dimension", "words", "expected"), [(7, 60, 1), (32, 60, 4), (700, 150, 64), (700, 20, 10)])
def test_by_default_omp_takes_an_eighth_of_the_dimension(dimension: int, words: int, expected: int) -> None:
    """At most 64, or all shared words."""
    old, new, _, vectors = focus_case(words=words, wide=dimension)
    vectors |= {word: np.ones(dimension, dtype=np.float32) for word in new if word in old and word not in vectors}
    row = focus_here(old, new, np.eye(len(old) + 4), vectors, "omp")[0][4 + new.index(new[3])]
    assert np.count_nonzero(row) == expected


@pytest.mark.parametrize("method", ["focus", "omp"])
def test_vectors_that_were_not_trained_compose_nothing(method: str) -> None:
    """A shared word and a new one with vectors of length 1e-17; the others are as if these had none."""
    old, new, table, vectors = focus_case()
    shared = next(word for word in new if word in old and word in vectors and vectors[word].any())
    wanted = next(word for word in new if word not in old and word in vectors and vectors[word].any())
    noise = {word: 1e-17 * np.eye(len(vectors[word]))[0] for word in (shared, wanted)}
    made, drawn = focus_here(old, new, table, vectors | noise, method)
    expected, _ = focus_here(old, new, table, {word: vectors[word] for word in vectors if word not in noise}, method)
    assert 4 + new.index(wanted) in drawn
    np.testing.assert_array_equal(made, expected)


def test_focus_is_that_of_the_package_deepfocus(monkeypatch) -> None:
    focus = pytest.importorskip("deepfocus.focus", reason="pip install deepfocus: FOCUS by its authors")
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    old, new, table, vectors = focus_case(words=400, dim=48, wide=20)
    monkeypatch.setattr(focus, "load_target_token_embedding", lambda **_: vectors)
    numbers = ({word: number for number, word in enumerate([*SPECIALS, *words])} for words in (new, old))
    tokenizers = [
        PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(each, "<unk>"))) for each in numbers
    ]
    data = {"target_training_data_path": "patched", "verbosity": "silent"}
    theirs = focus.FOCUS(*tokenizers, torch.from_numpy(table).float(), **data).numpy()
    ours, drawn = focus_here(old, new, table.astype(np.float32), vectors)
    compared = np.setdiff1d(np.arange(len(ours)), drawn)
    assert len(compared) > 350
    np.testing.assert_allclose(ours[compared], theirs[compared], rtol=0, atol=5e-6)  # they count in float32
