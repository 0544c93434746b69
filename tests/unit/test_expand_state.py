"""Tensors with new rows. Oracles: real optimisers of torch and fairseq, which go on with the expanded state."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from fairseq.optim.adafactor import Adafactor
from torch import nn

from embinit_fairseq.errors import CheckpointError
from embinit_fairseq.expand.state import (
    averages_in,
    expand_optimizer,
    expand_settings,
    expand_weights,
    place_words,
    with_rows,
)
from embinit_fairseq.expand.tables import DictionaryTable
from embinit_fairseq.init.report import pack_rows, symbols_digest, unpack_rows
from embinit_fairseq.vocab.dictionary import Vocabulary

D, N = 3, 8
SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", "a", "madeupword0000", "b"]  # and <mask> behind the file


@pytest.fixture
def placement():
    """Three new words: one in the filler's row 5, two in rows 7 and 8; `<mask>` moves from 7 to 9."""
    vocabulary = Vocabulary(SYMBOLS, np.array([1, 1, 1, 1, 5, 0, 5]))
    return place_words(vocabulary, 1, ["x", "y", "z"])


class Model(nn.Module):
    """A tied table with an output bias, a table of its own, and something that is not over the dictionary."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, D)
        self.middle = nn.Linear(D, D)
        self.out = nn.Linear(D, rows)
        self.out.weight = self.table.weight
        self.other = nn.Embedding(rows, 2)

    def forward(self, tokens):
        return self.out(self.middle(self.table(tokens))).logsumexp(-1).sum() + self.other(tokens).pow(2).sum()


TABLES = [
    DictionaryTable(("table.weight", "out.weight"), ("table.weight", "out.weight"), True, True),
    DictionaryTable(("out.bias",), ("out.bias",), False, True),
    DictionaryTable(("other.weight",), ("other.weight",), True, False),
]
TOKENS = torch.tensor([4, 6, 7, 4, 0])


def test_rows_are_put_in_and_moved(placement):
    old = torch.arange(N * D).view(N, D).half()
    new = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [0.1, 0.2, 0.3]])
    found = with_rows(old, placement, new)
    assert found.dtype == torch.float16
    expected = [*old[:5], torch.tensor(new[0]), old[6], torch.tensor(new[1]), torch.tensor(new[2]).half(), old[7]]
    torch.testing.assert_close(found, torch.stack([row.half() for row in expected]), rtol=0, atol=0)
    bias = with_rows(torch.arange(8.0), placement)
    assert bias.tolist() == [0, 1, 2, 3, 4, 0, 6, 0, 0, 7]


def trained(make_optimizer, steps=3, frozen=()):
    torch.manual_seed(0)
    model = Model(N)
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    optimizer = make_optimizer([p for p in model.parameters() if p.requires_grad])
    for _ in range(steps):
        step(model, optimizer, TOKENS)
    return model, optimizer


def step(model, optimizer, tokens):
    optimizer.zero_grad()
    model(tokens).backward()
    optimizer.step()


def larger(model, placement, frozen=()):
    """The expanded model, with rows of zeros."""
    zeros = {table.name: np.zeros((3, *model.state_dict()[table.name].shape[1:])) for table in TABLES}
    result = Model(placement.new_size)
    result.load_state_dict(expand_weights(model.state_dict(), TABLES, placement, zeros))
    for name in frozen:
        result.get_parameter(name).requires_grad_(False)
    return result


OPTIMIZERS = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    "adafactor": lambda parameters: Adafactor(parameters, lr=None, beta1=0.9),
}


@pytest.mark.parametrize("frozen", [(), ("other.weight",)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_with_the_expanded_state(placement, name, frozen):
    model, optimizer = trained(OPTIMIZERS[name], frozen=frozen)
    state = expand_optimizer("c.pt", optimizer.state_dict(), Model(N), TABLES, placement)
    expanded = larger(model, placement, frozen)
    after = OPTIMIZERS[name]([p for p in expanded.parameters() if p.requires_grad])
    after.load_state_dict(state)
    for parameter, held in after.state.items():
        for key, value in held.items():
            factored = {"exp_avg_sq_row": parameter.shape[:-1], "exp_avg_sq_col": parameter.shape[1:]}
            if torch.is_tensor(value) and value.dim():
                assert value.shape == factored.get(key, parameter.shape)
    rows = torch.from_numpy(placement.moved[placement.kept])
    kept = torch.from_numpy(placement.kept)
    before = optimizer.state[model.table.weight]
    for key, value in after.state[expanded.table.weight].items():
        if torch.is_tensor(value) and value.dim() and value.shape[0] == placement.new_size:
            torch.testing.assert_close(value[rows], before[key][kept], rtol=0, atol=0)
            new = value[torch.from_numpy(placement.rows)]
            expected = before[key].mean() if key == "exp_avg_sq_row" else torch.tensor(0.0)
            torch.testing.assert_close(new, expected.expand_as(new))
        elif torch.is_tensor(value):
            torch.testing.assert_close(value, before[key], rtol=0, atol=0)
    step(expanded, after, rows[TOKENS - (TOKENS > 5).long()])
    assert all(torch.isfinite(value).all() for value in expanded.state_dict().values())


def test_adam_moves_old_rows_as_before(placement):
    """Without a softmax over it, the gradient of a table is the same before and after: so must be its next step."""
    model, optimizer = trained(OPTIMIZERS["adam"])
    expanded = larger(model, placement)
    after = OPTIMIZERS["adam"](expanded.parameters())
    state = copy.deepcopy(optimizer.state_dict())  # as in a file: counters of steps are tensors
    after.load_state_dict(expand_optimizer("c.pt", state, Model(N), TABLES, placement))
    step(model, optimizer, TOKENS)
    moved = torch.from_numpy(placement.moved)
    step(expanded, after, moved[TOKENS])
    kept = torch.from_numpy(placement.kept)
    torch.testing.assert_close(expanded.other.weight[moved[kept]], model.other.weight[kept], rtol=0, atol=0)


def test_a_frozen_table_that_is_not_expanded(placement):
    """Translation: the dictionary of one side grows, the table of the other one was frozen and has no moments."""
    _, optimizer = trained(OPTIMIZERS["adam"], frozen=("other.weight",))
    found = expand_optimizer("c.pt", optimizer.state_dict(), Model(N), TABLES[:2], placement)
    expected = expand_optimizer("c.pt", optimizer.state_dict(), Model(N), TABLES, placement)
    assert found["state"].keys() == expected["state"].keys() == {0, 1, 2, 3}
    for number, held in expected["state"].items():
        for key, value in held.items():
            torch.testing.assert_close(found["state"][number][key], value, rtol=0, atol=0)
    assert found["state"][0]["exp_avg"].shape == (placement.new_size, D)
    assert found["state"][3]["exp_avg"].shape == (placement.new_size,)


class Twins(nn.Module):
    """Two tables of one shape, of which the first is expanded, and nothing between them that tells them apart."""

    def __init__(self) -> None:
        super().__init__()
        self.mine, self.other, self.out = nn.Embedding(N, D), nn.Embedding(N, D), nn.Linear(D, 2)


def test_frozen_tables_that_cannot_be_told_apart_are_refused(placement):
    model = Twins()
    model.mine.weight.requires_grad_(False)
    optimizer = OPTIMIZERS["adam"]([p for p in model.parameters() if p.requires_grad])
    (model.other.weight.sum() + model.out.weight.sum() + model.out.bias.sum()).backward()
    optimizer.step()
    tables = [DictionaryTable(("mine.weight",), ("mine.weight",), True, False)]
    with pytest.raises(CheckpointError, match=r"not that of the model's parameters; add --reset-optimizer"):
        expand_optimizer("c.pt", optimizer.state_dict(), Twins(), tables, placement)


@pytest.mark.parametrize("more", [0, 5])  # numbers of a criterion's parameters, which follow
def test_one_flat_vector(placement, more):
    """fairseq's FP16Optimizer keeps the moments of all parameters one behind the other."""
    _, optimizer = trained(OPTIMIZERS["adam"])
    state = optimizer.state_dict()

    def flat(states, key):
        return torch.cat([*(states[number][key].reshape(-1) for number in range(len(states))), torch.ones(more)])

    held = {"step": 3, **{key: flat(state["state"], key) for key in ("exp_avg", "exp_avg_sq")}}
    group = {**state["param_groups"][0], "params": [0]}
    given = {"state": {0: held}, "param_groups": [group], "loss_scale": 4.0}
    found = expand_optimizer("c.pt", given, Model(N), TABLES, placement)
    assert (found["loss_scale"], found["state"][0]["step"]) == (4.0, 3)
    expected = expand_optimizer("c.pt", state, Model(N), TABLES, placement)
    for key in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(found["state"][0][key], flat(expected["state"], key), rtol=0, atol=0)
    held["exp_avg"] = held["exp_avg"][: -more - 1]
    with pytest.raises(CheckpointError, match=r"c\.pt: its optimiser keeps exp_avg .*--reset-optimizer"):
        expand_optimizer("c.pt", given, Model(N), TABLES, placement)


def test_states_that_are_not_understood_are_refused(placement):
    _, optimizer = trained(OPTIMIZERS["adam"])
    state = optimizer.state_dict()
    for given in ({"fast": state, "slow": state}, {"state": [], "param_groups": None}):
        with pytest.raises(CheckpointError, match=r"several or unknown ones; add --reset-optimizer"):
            expand_optimizer("c.pt", given, Model(N), TABLES, placement)
    other = torch.optim.Adam(nn.Linear(7, 7).parameters())
    state["state"][0]["exp_avg"] = torch.zeros(5, 5)
    for given in (state, other.state_dict() | {"state": {0: {"exp_avg": torch.zeros(7, 7)}}}):
        with pytest.raises(CheckpointError, match=r"not that of the model's parameters; add --reset-optimizer"):
            expand_optimizer("c.pt", given, Model(N), TABLES, placement)


def test_what_was_one_tensor_stays_one_and_averages_are_found(placement):
    weights = Model(N).state_dict()
    new = {table.name: np.full((3, *weights[table.name].shape[1:]), 0.5) for table in TABLES}
    expanded = expand_weights(weights, TABLES, placement, new)
    assert expanded["table.weight"] is expanded["out.weight"]
    assert expanded["middle.weight"] is weights["middle.weight"]
    assert expanded["out.bias"][placement.rows].tolist() == [0.5] * 3
    extra = {"ema": weights, "ema_fp32_params": weights, "epoch": 3}
    assert list(averages_in({"extra_state": extra})) == ["ema", "ema_fp32_params"]
    assert averages_in({"extra_state": None}) == averages_in({}) == {}


# --- what else a checkpoint says about its dictionary


def test_languages_are_named_where_they_were_not(placement):
    state = {"cfg": {"task": {"source_lang": None, "target_lang": "fr"}, "model": {}}, "args": None}
    found = expand_settings(state, placement, (SYMBOLS, SYMBOLS), ("de", "en"))
    assert found["cfg"]["task"] == {"source_lang": "de", "target_lang": "fr"}
    assert state["cfg"]["task"]["source_lang"] is None
    assert expand_settings({"cfg": {"task": {}}}, placement, (SYMBOLS, SYMBOLS), ("de", "en"))["cfg"] == {"task": {}}


def test_the_record_of_embed_init_knows_the_new_dictionary(placement):
    """`--embed-init-freeze encoder:known` asks it on resuming which rows to hold."""
    old = [*SYMBOLS, "<mask>"]
    new = [*SYMBOLS[:5], "x", "b", "y", "z", "<mask>"]
    known = np.array([0, 0, 0, 0, 1, 1, 0, 1], dtype=bool)
    mine = {"dictionary": symbols_digest(old), "rows": N, "known_rows": pack_rows(known)}
    other = {**mine, "dictionary": "of the other side"}
    record = json.dumps({"slots": {"encoder": mine, "decoder": other}})
    state = {"cfg": {"embed_init_options": {"embed_init_record": record}}}
    found = expand_settings(state, placement, (old, new), None)
    slots = json.loads(found["cfg"]["embed_init_options"]["embed_init_record"])["slots"]
    assert slots["decoder"] == other
    assert (slots["encoder"]["dictionary"], slots["encoder"]["rows"]) == (symbols_digest(new), 10)
    assert unpack_rows(slots["encoder"]["known_rows"], 10).tolist() == [False] * 4 + [True] + [False] * 4 + [True]
    for text in ("no json", "[]", "{}"):
        state = {"cfg": {"embed_init_options": {"embed_init_record": text}}}
        assert expand_settings(state, placement, (old, new), None) == {**state, "args": None}
