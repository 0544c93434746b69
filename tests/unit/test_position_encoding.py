"""T5's buckets in integers, and inputs longer than a table (the equations: test_sentence_encoder)."""

import pytest
import torch
from tupe_reference import bucket

from embinit_fairseq.errors import OptionError
from embinit_fairseq.modules.position_encoding import (
    AddedPositions,
    FourTermPositions,
    PositionSizes,
    UntiedPositions,
    relative_position_buckets,
    reset_cls,
)

C, HEADS = 6, 3


def test_reset_by_hand():
    """Equation (9): theta_2 in column 0, theta_1 in row 0 and the corner. No output depends on theta_1."""
    scores, from_cls, to_cls = torch.arange(18.0).view(2, 3, 3), torch.tensor([20.0, 21.0]), torch.tensor([30.0, 31.0])
    expected = [[[20, 20, 20], [30, 4, 5], [30, 7, 8]], [[21, 21, 21], [31, 13, 14], [31, 16, 17]]]
    assert reset_cls(scores, from_cls, to_cls).tolist() == expected


@pytest.mark.parametrize("kind", ["official", "paper", None, "added", "four_terms"])
def test_an_input_longer_than_the_matrix_is_refused(kind):
    """TUPE's code reshapes 2 (L + 1) rows without an error."""
    sizes = PositionSizes(C, HEADS, 4, num_buckets=32, reset=kind if kind in ("official", "paper") else None)
    use = {
        "added": lambda n: AddedPositions(sizes).embed(torch.zeros(1, n, C)),
        "four_terms": FourTermPositions(sizes).projections,
    }.get(kind, UntiedPositions(sizes).bias)
    use(4)
    for length in (5, 9):
        with pytest.raises(OptionError, match=f"{length} tokens, the model has 4 positions.*--max-positions"):
            use(length)


def test_buckets_by_hand():
    """32 buckets, 128: 8 near distances each way, 8 far buckets that grow by 16^(1/8) = 1.414, the last from 91 on."""
    distances = [0, -1, -7, 1, 7, -8, -11, -12, -15, -16, -90, -91, -1000, 8, 90, 91, 1000]
    expected = [0, 1, 7, 17, 23, 8, 8, 9, 9, 10, 14, 15, 15, 24, 30, 31, 31]
    assert relative_position_buckets(torch.tensor(distances)).tolist() == expected


@pytest.mark.parametrize("bidirectional", [True, False], ids=["encoder", "decoder"])
@pytest.mark.parametrize("sizes", [(32, 128), (16, 128), (8, 20), (4, 3), (40, 500)], ids=str)
def test_every_distance_of_a_long_input_in_whole_numbers(sizes, bidirectional):
    """No distance has the bucket of theta_1, the middle one."""
    distances = range(-1023, 1024)
    found = relative_position_buckets(torch.tensor(distances), *sizes, bidirectional).tolist()
    assert found == [bucket(r, *sizes, bidirectional) for r in distances]
    assert set(found) == set(range(sizes[0])) - ({sizes[0] // 2} if bidirectional else set())
