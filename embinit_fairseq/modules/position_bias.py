"""Positional terms of the attention's logits: tensors (num_heads, tgt_len, tgt_len) added before the softmax.

Ke et al. 2021 (TUPE), equations as numbered in the ICLR version:

    (7)   (1 / sqrt(2 d)) (p_i U^Q) (p_j U^K)^T                        untied absolute positions
    (8)   (7) + b_{j-i}                                                with a relative term
    (9)   reset(v, i, j) = theta_1 if i = 1, theta_2 if j = 1, v_ij otherwise

i: query, j: key, d: head_dim, p: position vectors (after a layer norm), theta_1: `<s>` to all, theta_2: all to
`<s>`. All layers and all sentences share one bias; it is computed once per forward pass.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from embinit_fairseq.errors import OptionError

# ---- Buckets of relative positions (T5, as used by Ke et al. 2021, section 2.1 and the authors' code) ---------------
# r = j - i is the position of the key minus that of the query. Near distances have a bucket each, far ones share
# buckets that grow with the logarithm of the distance; everything beyond `max_distance` falls into the last one.


def relative_position_buckets(
    relative_position: Tensor, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
) -> Tensor:
    """Integer tensor of r = key - query, any shape -> bucket of each, same shape, in [0, num_buckets).

    bidirectional: r <= 0 uses the lower half of the buckets, r > 0 the upper half. Otherwise (decoders, which never
    see r > 0) all buckets serve the past. Float32 with truncation, as everywhere T5's buckets are used.
    """
    offset = torch.zeros_like(relative_position)
    if bidirectional:
        num_buckets //= 2
        offset = (relative_position > 0).to(relative_position.dtype) * num_buckets
        distance = relative_position.abs()
    else:
        distance = (-relative_position).clamp(min=0)
    num_exact = num_buckets // 2
    growth = torch.log(distance.clamp(min=1).float() / num_exact) / math.log(max_distance / num_exact)
    far = (num_exact + (growth * (num_buckets - num_exact)).to(distance.dtype)).clamp(max=num_buckets - 1)
    return offset + torch.where(distance < num_exact, distance, far)


# ----------------------------------------------------------------------------------------------------------------------


class BiasTerm(NamedTuple):
    """scores (num_heads, tgt_len, tgt_len); from_cls and to_cls (num_heads,): what (9) puts in their place."""

    scores: Tensor
    from_cls: Tensor | None = None
    to_cls: Tensor | None = None


def reset_cls(term: BiasTerm) -> Tensor:
    """Equation (9): column 0 becomes `to_cls`, then row 0 (with the corner) `from_cls`; (heads, tgt_len, tgt_len)."""
    scores, from_cls, to_cls = term
    assert from_cls is not None
    assert to_cls is not None
    num_heads, length, _ = scores.shape
    column = to_cls.view(num_heads, 1, 1).expand(-1, length - 1, 1)
    row = from_cls.view(num_heads, 1, 1).expand(-1, 1, length)
    return torch.cat([row, torch.cat([column, scores[:, 1:, 1:]], dim=2)], dim=1)


class AbsoluteTerm(nn.Module):
    """Equation (7), with the layer norm and the biases of the authors' code.

    With `untie_cls` the table has one row more: row 0 is the vector of theta_1, row 1 that of theta_2 (the position of
    `<s>` itself needs none), and column i uses row i + 1, as in the authors' code. Otherwise column i uses row i.
    """

    def __init__(self, embed_dim: int, num_heads: int, max_positions: int, untie_cls: bool) -> None:
        super().__init__()
        self.num_heads, self.untie_cls, self.max_positions = num_heads, untie_cls, max_positions
        self.scale = (2 * (embed_dim // num_heads)) ** -0.5
        self.embed_positions = nn.Embedding(max_positions + int(untie_cls), embed_dim)
        self.layer_norm = nn.LayerNorm(embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, tgt_len: int) -> BiasTerm:
        """Scores of `tgt_len` columns and the two thetas."""
        check_length(tgt_len, self.max_positions)
        positions = self.layer_norm(self.embed_positions.weight[: tgt_len + int(self.untie_cls)])
        q = self._heads(self.q_proj(positions)) * self.scale
        k = self._heads(self.k_proj(positions))
        if not self.untie_cls:
            return BiasTerm(q @ k.transpose(1, 2))
        scores = q[:, 1:] @ k[:, 1:].transpose(1, 2)
        return BiasTerm(scores, from_cls=(q[:, 0] * k[:, 0]).sum(-1), to_cls=scores[:, 0, 0])

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], self.num_heads, -1).transpose(0, 1)  # (num_heads, rows, head_dim)


class RelativeTerm(nn.Module):
    """b_{j-i} of (8) and of T5: one scalar per bucket and head, not scaled.

    With `untie_cls` the authors' two constants: bucket `num_buckets // 2`, which no distance has, for theta_1 and one
    more row for theta_2.
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        untie_cls: bool = False,
        bidirectional: bool = True,
    ) -> None:
        super().__init__()
        check_buckets(num_buckets, max_distance, bidirectional)
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.untie_cls, self.bidirectional = untie_cls, bidirectional
        self.embed_buckets = nn.Embedding(num_buckets + int(untie_cls), num_heads)

    def forward(self, tgt_len: int) -> BiasTerm:
        """Scores of `tgt_len` columns and, with `untie_cls`, the two constants."""
        table = self.embed_buckets.weight
        distances = torch.arange(1 - tgt_len, tgt_len)  # on the CPU: another device's logarithm could be an ulp off
        buckets = relative_position_buckets(distances, self.num_buckets, self.max_distance, self.bidirectional)
        by_distance = table[buckets.to(table.device)].t()  # (num_heads, 2 tgt_len - 1)
        scores = by_distance.unfold(1, tgt_len, 1).flip(1)  # row i is the window that starts at distance -i
        if not self.untie_cls:
            return BiasTerm(scores)
        return BiasTerm(scores, from_cls=table[self.num_buckets // 2], to_cls=table[self.num_buckets])


def check_buckets(num_buckets: int, max_distance: int, bidirectional: bool = True) -> None:
    """Raises OptionError for sizes that leave no near buckets (half of those of a direction) or no far ones."""
    of_a_direction = num_buckets // 2 if bidirectional else num_buckets
    if num_buckets % 2 or of_a_direction < 2 or max_distance <= of_a_direction // 2:
        raise OptionError(
            f"--rel-pos-bins {num_buckets} --max-rel-pos {max_distance}: the buckets must be an even number, at least "
            f"4, and the distance more than {of_a_direction // 2}; BERT-R and TUPE-R have 32 and 128"
        )


def check_length(tgt_len: int, max_positions: int) -> None:
    """Raises OptionError for an input that is longer than the table of positions."""
    if tgt_len > max_positions:
        raise OptionError(
            f"an input has {tgt_len} tokens, the model has {max_positions} positions: shorten the input "
            "(--shorten-method truncate, --tokens-per-sample, --max-source-positions) or train with a larger "
            "--max-positions"
        )
