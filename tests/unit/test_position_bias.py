"""Positional terms against loops over the entries of equations (7) to (11) of Ke et al. 2021, with gradients; T5's
buckets in whole numbers."""

import pytest
import torch
from tupe_reference import assert_same_values_and_gradients, bucket, randomise, relative_bias, untied_bias

from embinit_fairseq.errors import OptionError
from embinit_fairseq.modules.position_bias import RelativeTerm, relative_position_buckets
from embinit_fairseq.modules.position_encoding import (
    AddedPositions,
    FourTermPositions,
    RelativePositions,
    untied_positions,
)

C, HEADS, LONGEST = 6, 3, 40
each_reset = pytest.mark.parametrize("reset", ["official", "paper", None])
each_kind = pytest.mark.parametrize("relative", [False, True], ids=["TUPE-A", "TUPE-R"])


@each_reset
@each_kind
@pytest.mark.parametrize("length", [1, 2, 12])
def test_untied_bias_equals_the_loops(reset, relative, length):
    module = randomise(untied_positions(C, HEADS, LONGEST, reset=reset, num_buckets=32 * relative))
    expected = untied_bias(dict(module.named_parameters()), HEADS, length, reset, relative)
    assert_same_values_and_gradients(module, module.bias(length), expected)


def test_relative_bias_equals_plain_indexing():
    module = randomise(RelativePositions(HEADS, 32, 128))
    assert_same_values_and_gradients(module, module.bias(20), relative_bias(dict(module.named_parameters()), HEADS, 20))
    table = module.relative.embed_buckets.weight
    index = torch.tensor([[bucket(j - i) for j in range(150)] for i in range(150)])
    assert torch.equal(module.bias(150), table[index].permute(2, 0, 1))


def test_relative_bias_of_a_decoder_knows_no_future():
    module = randomise(RelativeTerm(HEADS, bidirectional=False))
    index = torch.tensor([[bucket(min(j - i, 0), bidirectional=False) for j in range(50)] for i in range(50)])
    assert torch.equal(module(50).scores, module.embed_buckets.weight[index].permute(2, 0, 1))


@each_reset
@each_kind
@pytest.mark.parametrize("length", [LONGEST + 1, 2 * LONGEST + 1, 4 * LONGEST + 3])
def test_longer_than_the_table_is_refused(reset, relative, length):
    """The authors' code reshapes 2 (L + 1) rows without an error: see point 16 of its description."""
    module = untied_positions(C, HEADS, LONGEST, reset=reset, num_buckets=32 * relative)
    assert module.bias(LONGEST).shape == (HEADS, LONGEST, LONGEST)
    with pytest.raises(OptionError, match=f"{length} tokens, the model has {LONGEST} positions.*--max-positions"):
        module.bias(length)


@pytest.mark.parametrize("module", [AddedPositions(C, 4), FourTermPositions(C, 4)], ids=["BERT-A", "BERT-A^d"])
def test_longer_than_the_table_is_refused_by_the_comparison_set(module):
    def use(length):
        return module.embed(torch.zeros(1, length, C)), module.projections(length)

    use(4)
    with pytest.raises(OptionError, match="5 tokens, the model has 4 positions"):
        use(5)


def test_buckets_by_hand():
    """32 buckets, 128: 8 near distances each way, 8 far buckets that grow by 16^(1/8) = 1.414, the last from 91 on."""
    for distances, expected in (
        ([0, -1, -2, -3, -4, -5, -6, -7], [0, 1, 2, 3, 4, 5, 6, 7]),
        ([1, 2, 3, 4, 5, 6, 7], [17, 18, 19, 20, 21, 22, 23]),
        ([-8, -11, -12, -15, -16, -22, -23, -31, -32], [8, 8, 9, 9, 10, 10, 11, 11, 12]),
        ([-45, -46, -63, -64, -90, -91, -127, -128, -1000], [12, 13, 13, 14, 14, 15, 15, 15, 15]),
        ([8, 11, 12, 64, 90, 91, 127, 128, 1000], [24, 24, 25, 30, 30, 31, 31, 31, 31]),
    ):
        assert relative_position_buckets(torch.tensor(distances)).tolist() == expected


@pytest.mark.parametrize("bidirectional", [True, False], ids=["encoder", "decoder"])
@pytest.mark.parametrize("sizes", [(32, 128), (16, 128), (8, 20), (4, 3), (40, 500)], ids=str)
def test_every_distance_of_a_long_input_in_whole_numbers(sizes, bidirectional):
    """No distance has the bucket of theta_1, the middle one."""
    distances = range(-1023, 1024)
    found = relative_position_buckets(torch.tensor(distances), *sizes, bidirectional).tolist()
    assert found == [bucket(r, *sizes, bidirectional) for r in distances]
    assert set(found) == set(range(sizes[0])) - ({sizes[0] // 2} if bidirectional else set())
