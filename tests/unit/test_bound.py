"""The bound on KL(old || new) of rows that are means of old ones. Oracles: KL by its definition from logits, whatever
they are; the largest that a search finds; counter-examples outside of the theorem."""

import math

import numpy as np
import pytest
import torch
from expand_checkpoints import TWO_TABLES, USER_DIR, as_fairseq, make, w_of
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.init.methods import MethodInputs, recipe_of
from embinit_fairseq.init.weights import bound_entries, bound_of


def divergence(w: np.ndarray, z: np.ndarray) -> float:
    """KL(old || new) over the old words by its definition; w (k, n) makes the logits of new words."""
    new = np.concatenate([z, w @ z])
    p, q = np.exp(z - np.logaddexp.reduce(z)), np.exp(new - np.logaddexp.reduce(new))
    return float((p * np.log(p / q[: len(p)])).sum())


def dense(rows, counts, size: int) -> np.ndarray:
    w = np.zeros((len(rows), size))
    for number, (columns, weights) in enumerate(rows):
        np.add.at(w[number], columns, 1 / len(columns) if weights is None else weights)
    return np.repeat(w, counts, axis=0)


def random_rows(generator, count: int, size: int):
    """Half are means of subwords, some of them repeated; half have weights, as of similar words."""
    rows = []
    for number in range(count):
        columns = generator.integers(0, size, generator.integers(1, 5))
        weights = generator.random(len(columns)) if number % 2 else None
        rows.append((columns, None if weights is None else weights / weights.sum()))
    return rows


def ascent(w: np.ndarray, start: np.ndarray, steps: int = 1000) -> np.ndarray:
    """Logits with a large KL, by gradient ascent on F (another way than the iteration of the code)."""
    z = start.copy()
    for _ in range(steps):
        p = np.exp(z - np.logaddexp.reduce(z))
        g = np.exp(w @ z - np.logaddexp.reduce(z))
        z += w.T @ g / g.sum() - p
    return z


@given(st.integers(1, 8), st.integers(2, 9), st.integers(0, 10**6))
@settings(max_examples=25)
def test_no_logits_exceed_it_and_free_logits_attain_it(count, size, seed):
    generator = np.random.default_rng(seed)
    rows, counts = random_rows(generator, count, size), generator.integers(1, 4, count)
    w, bound = dense(rows, counts, size), bound_of(rows, counts, np.ones(size, bool))
    assert bound.attained <= bound.limit <= bound.uniform * (1 + 1e-12) <= bound.separate * (1 + 1e-12)
    assert bound.uniform == pytest.approx(math.log1p(w.sum(axis=0).max()))
    assert bound.separate == pytest.approx(math.log1p(w.max(axis=1).sum()))
    for scale in (0.1, 3, 60):
        assert divergence(w, scale * generator.normal(size=size)) <= bound.limit * (1 + 1e-9)
    found = divergence(w, ascent(w, np.zeros(size)))
    assert found <= bound.limit * (1 + 1e-9)
    assert found >= 0.97 * bound.limit


@given(st.integers(1, 2000), st.integers(1, 5000))
def test_the_mean_of_all_has_exactly_k_over_n(count, size):
    entries = bound_entries(bound_of([(np.arange(size), None)], [count], np.ones(size, bool)))
    assert {entries["bound"], *entries["bounds"].values()} == {math.log1p(count / size)}


def test_values_by_hand():
    """Two words, sqrt(p_0 p_1) and p_2: F is largest where p = (1/3, 1/3, 2/3) / (4/3), which is p_2 alone: 1."""
    rows = [(np.array([0, 1]), None), (np.array([2, 2]), None)]
    bound = bound_of(rows, [1, 1], np.ones(3, bool))
    assert (bound.limit, bound.uniform) == (math.log(2), math.log(2))
    assert bound.separate == pytest.approx(math.log(2.5))
    # sqrt(p_0 p_1) + sqrt(p_0 p_2) <= sqrt(p_0 2 (p_1 + p_2)) <= sqrt(2) / 2; the uniform p gives 1
    bound = bound_of([(np.array([0, 1]), None), (np.array([0, 2]), None)], [1, 1], np.ones(3, bool))
    assert bound.limit == pytest.approx(math.log1p(math.sqrt(0.5)), rel=1e-3)
    assert bound.attained <= math.log1p(math.sqrt(0.5)) * (1 + 1e-12) <= bound.limit * (1 + 1e-12)
    assert bound.uniform == pytest.approx(math.log(2))


def test_outside_of_the_theorem_there_is_no_bound():
    """And there is none: the logits that make KL large are given."""
    stays = np.ones(3, bool)
    negative = (np.array([0, 1]), np.array([2.0, -1.0]))
    assert divergence(dense([negative], [1], 3), np.array([0.0, -80.0, 0.0])) > 70
    more_than_one = (np.array([0, 1]), np.array([0.75, 0.75]))
    assert divergence(dense([more_than_one], [1], 3), np.array([80.0, 80.0, 0.0])) > 30
    less_than_one = (np.array([0]), np.array([0.5]))
    assert divergence(dense([less_than_one], [1], 3), np.full(3, -80.0)) > 30
    for row in (negative, more_than_one, less_than_one):
        assert bound_of([(np.array([0]), None), row], [1, 1], stays) is None
    # of a row that is removed: Z is the sum over the others, which may be small
    removed, z = np.array([True, True, False]), np.array([0.0, 0.0, 80.0])
    assert bound_of([(np.array([2]), None)], [1], removed) is None
    assert z[2] - np.logaddexp.reduce(z[removed]) > 70
    assert bound_of([(np.array([0, 1]), None)], [1], removed).limit == math.log(1.5)
    # a bias of another W: the product has a bound, the sum has none
    assert divergence(dense([(np.array([0]), None)], [1], 3), np.array([0.0, 0, 0])) <= math.log(2)
    w, bias = dense([(np.array([0]), None)], [1], 3), np.full(3, -80.0)
    logits = np.concatenate([bias, w @ np.zeros(3) + 0.0])
    assert np.logaddexp.reduce(logits) - np.logaddexp.reduce(bias) > 70


def test_many_words_take_milliseconds_and_the_limit_is_near():
    generator = np.random.default_rng(3)
    rows = random_rows(generator, 1000, 500)
    bound = bound_of(rows, np.ones(1000), np.ones(500, bool))
    assert math.expm1(bound.limit) <= math.expm1(bound.attained) * 1.002
    assert bound.limit < 0.9 * bound.uniform


def test_a_word_whose_share_vanishes():
    """Of 1010, 1000 and 1 copies the third loses a factor of 1,000 a step, while the others are compared for long."""
    rows = [(np.array([row]), None) for row in range(3)]
    with np.errstate(divide="raise", invalid="raise"):
        assert bound_of(rows, [1010, 1000, 1], np.ones(3, bool)).limit == pytest.approx(math.log1p(1010))


def test_a_second_copy_of_a_row_is_a_new_word():
    """Old words a, b; new ones a, b, b: all probability on b is halved. And a filler is a mean of what stays."""
    given = MethodInputs(2, np.array([0, 1, 1]), np.ones(3, bool), (np.array([0, 1]), None))
    bound = recipe_of("avg", given).bound(())
    assert bound.limit == math.log(2)
    assert divergence(np.array([[0.0, 1.0]]), np.array([-60.0, 0.0])) == pytest.approx(math.log(2))
    # old a, b, c; new a, b and a filler; then a word that is the mean of a, b and c, too
    mean = (np.arange(3), np.full(3, 1 / 3))
    filler = MethodInputs(3, np.array([0, 1, -1]), np.array([True, True, False]), mean)
    assert w_of(recipe_of("avg", filler).weights)[2].tolist() == [0.5, 0.5, 0]
    assert recipe_of("avg", filler).bound(()).limit == math.log(1.5)
    removed = MethodInputs(3, np.array([0, 1, -1, -1]), np.array([True, True, False, True]), mean)
    assert recipe_of("avg", removed).bound(()) is None
    # nothing is new
    assert recipe_of("copy", MethodInputs(3, np.array([2, 0]), np.ones(2, bool), mean)).bound(()).limit == 0


FAMILIES = ["lm", "lm_tied", "roberta", "tupe", "electra", "transformer_shared", "duo", "lstm"]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_hidden_states_of_a_model_exceed_it(family, tmp_path):
    """All parameters but the matrices with a row per word are trained to make KL large, from random ones."""
    checkpoint = make(tmp_path, family)
    words = ("x\tw1 w2", "y\tw3 w1 w3", "z\tw1 w5 w6")
    record = checkpoint.expand("subword", words, user_dir=USER_DIR, side="decoder" if family in TWO_TABLES else None)
    model, task = as_fairseq(checkpoint)
    model, symbols = model.double(), task.target_dictionary or task.source_dictionary
    new = torch.tensor([symbols.index(word) for word in "xyz"])
    old = torch.tensor([row for row in range(len(symbols)) if row not in new])
    tables = {name for names in record["tables"].values() for name in names}
    others = [parameter for name, parameter in model.named_parameters() if name not in tables]
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in others:
            parameter += 0.3 * torch.randn_like(parameter)
    target = torch.tensor([[0, 5, 7, 4, 8, 2]])
    inputs = (target, torch.tensor([6]), target) if "transformer_" in family or family in TWO_TABLES else (target,)
    optimizer, found = torch.optim.Adam(others, lr=0.05, maximize=True), []
    for _ in range(30):
        z = model(*inputs)[0][0]
        kl = torch.nn.functional.softplus(z[:, new].logsumexp(-1) - z[:, old].logsumexp(-1))
        found.append(kl.max().item())
        optimizer.zero_grad()
        kl.max().backward()
        optimizer.step()
    assert max(found) <= record["bound"] * (1 + 1e-6)
    assert max(found) > found[0]
    assert record["bound"] < record["bounds"]["uniform"] < record["bounds"]["separate"]
