"""T5's buckets in integers, rotations and slopes by hand, and inputs longer than a table (the equations:
test_sentence_encoder)."""

import cmath

import pytest
import torch
from tupe_reference import bucket, slopes

from embinit_fairseq.errors import OptionError
from embinit_fairseq.modules.fixed_positions import AlibiTerm, RotaryTerm, alibi_slopes
from embinit_fairseq.modules.position_encoding import (
    AddedPositions,
    FourTermPositions,
    PositionSizes,
    UntiedPositions,
    relative_position_buckets,
)

C, HEADS = 6, 3


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


@pytest.mark.parametrize("bidirectional", [True, False], ids=["encoder", "decoder"])
@pytest.mark.parametrize("sizes", [(32, 128), (16, 128), (8, 20), (4, 3), (40, 500)], ids=str)
def test_every_distance_of_a_long_input_in_whole_numbers(sizes, bidirectional):
    """No distance has the bucket of theta_1, the middle one."""
    distances = range(-1023, 1024)
    found = relative_position_buckets(torch.tensor(distances), *sizes, bidirectional).tolist()
    assert found == [bucket(r, *sizes, bidirectional) for r in distances]
    assert set(found) == set(range(sizes[0])) - ({sizes[0] // 2} if bidirectional else set())


@pytest.mark.parametrize("dim", [2, 6, 16])
def test_rotary_logits_are_the_papers_complex_products(dim):
    """Su et al., equation (12): the real part of q_m k_n^* e^{i (m - n) theta}, summed over the pairs of columns; also
    of columns that begin later."""
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(2, 3, 7, dim, dtype=torch.float64, generator=generator).requires_grad_() for _ in "qk")
    turns = [[cmath.exp(1j * r * 10000 ** (-2 * n / dim)) for n in range(dim // 2)] for r in range(-6, 7)]
    turns = torch.tensor(turns, dtype=torch.complex128)
    one, other = (torch.complex(x[..., 0::2], x[..., 1::2]) for x in (q, k))
    expected = [[one[..., m, :] * other[..., n, :].conj() for n in range(7)] for m in range(7)]
    rows = [[(expected[m][n] * turns[m - n + 6]).real.sum(-1) for n in range(7)] for m in range(7)]
    expected = torch.stack([torch.stack(row, -1) for row in rows], -2)
    weights = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view_as(expected)
    gradients = torch.autograd.grad((expected * weights).sum(), (q, k))
    for columns in ((7,), (1007, 1000)):
        turned_q, turned_k = RotaryTerm(3 * dim, 3).double()(*columns)(q, k)
        logits = turned_q @ turned_k.transpose(2, 3)
        torch.testing.assert_close(logits, expected, rtol=1e-11, atol=1e-11)
        found = torch.autograd.grad((logits * weights).sum(), (q, k))
        torch.testing.assert_close(found, gradients, rtol=1e-11, atol=1e-11)


def test_slopes_of_alibi():
    """Press et al., section 3: 8 heads have 1/2 to 1/256; 12 have those of 8 and four between, as in their code."""
    eight = [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(8) == eight
    assert alibi_slopes(1) == [2.0**-8]
    assert alibi_slopes(12) == pytest.approx([*eight, *(2 ** (0.5 - n) for n in (1, 2, 3, 4))], rel=1e-15)
    for num_heads in range(1, 41):
        assert alibi_slopes(num_heads) == pytest.approx(slopes(num_heads), rel=1e-12)
    bias = AlibiTerm(HEADS).double()(4)
    assert bias[2].tolist() == [[-abs(i - j) * alibi_slopes(3)[2] for j in range(4)] for i in range(4)]


def test_distances_are_exact_in_half_precision():
    """bfloat16 has no 511: the product with the slope is rounded, not the distance."""
    distances = (torch.arange(600.0) - torch.arange(600.0)[:, None]).abs().double()
    slopes = torch.tensor([2.0 ** -(n + 1) for n in range(8)]).double()
    for dtype in (torch.float16, torch.bfloat16):
        expected = (-slopes[:, None, None] * distances).to(dtype)
        torch.testing.assert_close(AlibiTerm(8).to(dtype)(600), expected, rtol=0, atol=0)
