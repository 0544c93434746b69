"""Positional terms against four loops (head, i, j, c) over equations (7) to (11) of Ke et al. 2021, with gradients;
T5's buckets in whole numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tupe_reference import assert_same_values_and_gradients, bucket, randomise, relative_bias, untied_bias

from embinit_fairseq.errors import OptionError
from embinit_fairseq.modules.position_bias import (
    AbsoluteTerm,
    BiasTerm,
    RelativeTerm,
    relative_position_buckets,
    reset_cls,
)
from embinit_fairseq.modules.position_encoding import (
    AddedPositions,
    FourTermPositions,
    RelativePositions,
    untied_positions,
)

C, HEADS, LONGEST = 6, 3, 40
VARIANTS = {
    "TUPE-A (10)": {"reset": "official"},
    "TUPE-A, reset of the paper": {"reset": "paper"},
    "TUPE-A tie-cls (7)": {"reset": None},
    "TUPE-R of the authors' code": {"reset": "official", "relative": True},
    "TUPE-R of the paper (11)": {"reset": "paper", "relative": True},
    "TUPE-R tie-cls (8)": {"reset": None, "relative": True},
}
each_variant = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())


def encoding(reset="official", relative=False, longest=LONGEST):
    module = untied_positions(C, HEADS, longest, reset=reset, num_buckets=32 if relative else 0)
    return randomise(module)


def weights(module):
    return dict(module.named_parameters())


@each_variant
@pytest.mark.parametrize("length", [1, 2, 7])
def test_bias_equals_the_four_loops(options, length):
    module = encoding(**options)
    expected = untied_bias(weights(module), HEADS, length, **options)
    assert_same_values_and_gradients(module, module.bias(length), expected)


def test_far_buckets_are_reached():
    module = encoding("official", relative=True)
    expected = untied_bias(weights(module), HEADS, 30, "official", relative=True)
    torch.testing.assert_close(module.bias(30), expected, rtol=1e-12, atol=1e-12)


def test_relative_bias_equals_plain_indexing():
    module = randomise(RelativePositions(HEADS, 32, 128))
    assert_same_values_and_gradients(module, module.bias(20), relative_bias(weights(module), HEADS, 20))
    table = module.relative.embed_buckets.weight
    distances = torch.arange(150)[None, :] - torch.arange(150)[:, None]
    index = torch.tensor([[bucket(int(r)) for r in row] for row in distances])
    assert torch.equal(module.bias(150), table[index].permute(2, 0, 1))


def test_relative_bias_of_a_decoder_knows_no_future():
    module = randomise(RelativeTerm(HEADS, bidirectional=False))
    scores = module(50).scores
    for i in range(50):
        assert torch.equal(scores[:, i, i:], module.embed_buckets.weight[0, :, None].expand(-1, 50 - i))
        for j in range(i):
            assert torch.equal(scores[:, i, j], module.embed_buckets.weight[bucket(j - i, bidirectional=False)])


@pytest.mark.parametrize("length", [1, 2, 5])
def test_reset_replaces_the_first_column_and_then_the_first_row(length):
    """Equation (9) with hand-made numbers: entry 100 h + 10 i + j, theta_1 = -1 - h, theta_2 = -11 - h."""
    scores = torch.tensor([[[100.0 * h + 10 * i + j for j in range(length)] for i in range(length)] for h in (0, 1)])
    result = reset_cls(BiasTerm(scores, torch.tensor([-1.0, -2.0]), torch.tensor([-11.0, -12.0])))
    for h in (0, 1):
        for i in range(length):
            for j in range(length):
                expected = -1 - h if i == 0 else -11 - h if j == 0 else 100 * h + 10 * i + j
                assert result[h, i, j] == expected


@pytest.mark.parametrize("relative", [False, True])
def test_column_i_uses_row_i_plus_1(relative):
    """Rows 0 and 1 belong to theta_1 and theta_2, row i + 1 to the row and the column i."""
    module = encoding("official", relative)
    before = module.bias(6)
    inner = torch.zeros(6, 6, dtype=torch.bool)
    inner[1:, 1:] = True
    for row in range(7):
        expected = torch.zeros(6, 6, dtype=torch.bool)
        if row == 0:
            expected[0] = True
        elif row == 1:
            expected[1:, 0] = True
        else:
            expected[row - 1, :] = expected[:, row - 1] = True
            expected &= inner
        with torch.no_grad():
            module.absolute.embed_positions.weight[row, 0] += 1.0
        after = module.bias(6)
        assert torch.equal((before != after).any(0), expected), row
        before = after


@pytest.mark.parametrize("options", [v for v in VARIANTS.values() if v["reset"]], ids=str)
def test_theta_1_has_no_effect_on_attention_and_theta_2_has(options):
    """Theta_1 is constant along a row of the softmax."""
    module = encoding(**options)
    generator = torch.Generator().manual_seed(3)
    logits, direction = torch.randn(2, HEADS, 7, 7, generator=generator, dtype=torch.float64)
    attention = (logits + module.bias(7)).softmax(-1)
    parameters = weights(module)
    (attention * direction).sum().backward()
    gradient = parameters["absolute.embed_positions.weight"].grad
    assert gradient[0].abs().max() < 1e-14
    assert gradient[1].abs().max() > 1e-4
    assert gradient[2:8].abs().amax(1).min() > 1e-4
    assert not gradient[8:].any()
    if options == VARIANTS["TUPE-R of the authors' code"]:
        gradient = parameters["relative.embed_buckets.weight"].grad
        assert gradient[16].abs().max() < 1e-14
        assert gradient[32].abs().max() > 1e-4
    with torch.no_grad():
        module.absolute.embed_positions.weight[0] *= -2
    torch.testing.assert_close((logits + module.bias(7)).softmax(-1), attention, rtol=0, atol=1e-15)


@each_variant
@pytest.mark.parametrize("length", [LONGEST + 1, 2 * LONGEST + 1, 4 * LONGEST + 3])
def test_longer_than_the_table_is_refused(options, length):
    """The authors' code reshapes 2 (L + 1) rows without an error: see point 16 of its description."""
    with pytest.raises(OptionError, match=f"{length} tokens, the model has {LONGEST} positions.*--max-positions"):
        encoding(**options).bias(length)


@pytest.mark.parametrize("module", [AddedPositions(C, 4), FourTermPositions(C, 4)], ids=["BERT-A", "BERT-A^d"])
def test_longer_than_the_table_is_refused_by_the_comparison_set(module):
    def use(length):
        return module.embed(torch.zeros(1, length, C)), module.projections(length)

    use(4)
    with pytest.raises(OptionError, match="5 tokens, the model has 4 positions"):
        use(5)


def test_the_absolute_term_is_scaled_with_two_terms():
    """The queries' biases are scaled like everything else."""
    module = randomise(AbsoluteTerm(8, 2, 5, untie_cls=False))
    with torch.no_grad():
        for projection in (module.q_proj, module.k_proj):
            projection.weight.zero_()
            projection.bias.fill_(1.0)
    torch.testing.assert_close(module(5).scores, torch.full((2, 5, 5), 4 / 8**0.5, dtype=torch.float64))


# ---- Buckets of relative positions ----------------------------------------------------------------------------------


def buckets(numbers, **options):
    return relative_position_buckets(torch.tensor(numbers), **options).tolist()


def test_buckets_by_hand():
    """32 buckets, 128: 8 near distances each way, 8 far buckets that grow by 16^(1/8) = 1.414, the last from 91 on."""
    assert buckets([0, -1, -2, -3, -4, -5, -6, -7]) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert buckets([1, 2, 3, 4, 5, 6, 7]) == [17, 18, 19, 20, 21, 22, 23]
    assert buckets([-8, -11, -12, -15, -16, -22, -23, -31, -32]) == [8, 8, 9, 9, 10, 10, 11, 11, 12]
    assert buckets([-45, -46, -63, -64, -90, -91, -127, -128, -1000]) == [12, 13, 13, 14, 14, 15, 15, 15, 15]
    assert buckets([8, 11, 12, 64, 90, 91, 127, 128, 1000]) == [24, 24, 25, 30, 30, 31, 31, 31, 31]


def test_every_distance_of_a_long_input_in_whole_numbers():
    """For one direction 16 near distances, then 16 buckets up to 128. No distance has the bucket of theta_1, 16."""
    distances = range(-1023, 1024)
    assert buckets(distances) == [bucket(r) for r in distances]
    assert set(buckets(distances)) == set(range(32)) - {16}
    found = buckets(distances, bidirectional=False)
    assert found == [bucket(r, bidirectional=False) for r in distances]
    assert [found[1023 - d] for d in (-5, 0, 1, 15, 16, 18, 19, 128, 1000)] == [0, 0, 1, 15, 16, 16, 17, 31, 31]


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.integers(2, 500), st.booleans())
def test_any_sizes_stay_in_range_grow_with_distance_and_are_alike_on_both_sides(half, further, bidirectional):
    sizes = {"num_buckets": 2 * half, "max_distance": half + further, "bidirectional": bidirectional}
    past = buckets(range(0, -700, -1), **sizes)
    assert past == sorted(past)
    assert min(past) == 0
    assert max(past) == (half if bidirectional else 2 * half) - 1
    exact = half // 2 if bidirectional else half
    assert past[: exact + 1] == list(range(exact + 1))
    future = buckets(range(1, 700), **sizes)
    assert future == [half + b for b in past[1:]] if bidirectional else set(future) == {0}
