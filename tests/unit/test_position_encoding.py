"""T5's buckets in integers, rotations and slopes by hand, and inputs longer than a table (the equations:
test_sentence_encoder)."""

import cmath

import pytest
import torch
from tupe_reference import bucket, slopes

from embinit_fairseq.errors import OptionError
from embinit_fairseq.modules.fixed_positions import AlibiTerm, RotaryTerm, alibi_slopes
from embinit_fairseq.modules.position_encoding import (
    POSITION_ENCODINGS,
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


def rotated(dim, tgt_len=7, skips_cls=False):
    """q, k (2, 3, T, dim) that want gradients, and the logits (2, 3, T, T) of the rotated ones."""
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(2, 3, tgt_len, dim, dtype=torch.float64, generator=generator).requires_grad_() for _ in "qk")
    term = RotaryTerm(3 * dim, 3, skips_cls).double()
    turned_q, turned_k = term(tgt_len)(q, k)
    return q, k, turned_q @ turned_k.transpose(2, 3)


def same(pairs, leaves):
    """Numbers, and gradients of their sum with weights, agree."""
    for one, other in pairs:
        weights = torch.linspace(-1, 1, one.numel(), dtype=torch.float64).view_as(one)
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
        for x, y in zip(*(torch.autograd.grad((z * weights).sum(), leaves, retain_graph=True) for z in (one, other))):
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dim", [2, 4, 6, 16])
def test_rotary_logits_are_the_papers_complex_products(dim):
    """Su et al., equation (12): the real part of q_m k_n^* e^{i (m - n) theta}, summed over the pairs of columns."""
    q, k, logits = rotated(dim)
    turns = [[cmath.exp(1j * r * 10000 ** (-2 * n / dim)) for n in range(dim // 2)] for r in range(-6, 7)]
    turns = torch.tensor(turns, dtype=torch.complex128)
    one, other = (torch.complex(x[..., 0::2], x[..., 1::2]) for x in (q, k))
    expected = [[one[..., m, :] * other[..., n, :].conj() for n in range(7)] for m in range(7)]
    rows = [[(expected[m][n] * turns[m - n + 6]).real.sum(-1) for n in range(7)] for m in range(7)]
    same([(logits, torch.stack([torch.stack(row, -1) for row in rows], -2))], (q, k))


def test_rotary_logits_depend_on_the_distance_only():
    """Columns that begin later have the same logits, and tokens step by step have those of all at once."""
    q, k, logits = rotated(4)
    term = RotaryTerm(12, 3).double()
    later_q, later_k = term(1007, 1000)(q, k)
    torch.testing.assert_close(later_q @ later_k.transpose(2, 3), logits, rtol=1e-11, atol=1e-11)
    last_q, _ = term(7, 5)(q[:, :, 5:], k[:, :, 5:])
    torch.testing.assert_close(last_q @ term(7)(q, k)[1].transpose(2, 3), logits[:, :, 5:], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dim", [4, 6, 8])
def test_an_untied_cls_is_not_rotated(dim):
    """Row and column 0 are those of q k^T, the rest is that of RoPE; the columns are a multiple of 8."""
    q, k, logits = rotated(dim, skips_cls=True)
    _, _, everywhere = rotated(dim)
    plain = q @ k.transpose(2, 3)
    same([(logits[:, :, 0], plain[:, :, 0]), (logits[..., 0], plain[..., 0])], (q, k))
    torch.testing.assert_close(logits[:, :, 1:, 1:], everywhere[:, :, 1:, 1:], rtol=1e-12, atol=1e-12)
    assert RotaryTerm(3 * dim, 3, skips_cls=True)(7)(q, k)[0].shape[-1] % 8 == 0


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


def test_no_positions_act_nowhere():
    positions = POSITION_ENCODINGS["none"].build(PositionSizes(C, HEADS, 4))
    x = torch.randn(1, 4, C)
    assert positions.embed(x) is x
    assert {positions.bias(4), positions.rotation(4), positions.projections(4)} == {None}
    assert not list(positions.parameters())
