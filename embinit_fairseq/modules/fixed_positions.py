"""Positions without parameters: rotary positions (RoPE, Su et al. 2021, arXiv 2104.09864) and ALiBi (Press et al. 2022,
arXiv 2108.12409).

    (R_m q_m)^T (R_n k_n) = q_m^T R_{n-m} k_n       Su et al., equations (15), (16) and (34)
    -m_h |i - j|                                    Press et al., section 3, here in both directions

R_m turns pair n of a head's columns (2n and 2n + 1, n from 0) by the angle m theta_n, theta_n = 10000^(-2n / d). m_h:
slope of head h. d: head_dim, H: num_heads, T: tgt_len.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from embinit_fairseq.errors import OptionError


class FixedTerm(nn.Module):
    """Define a module without parameters.

    The buffer `like` has the device and the type of the model. It is empty: values would be rounded with the model, and
    would be lost if transformers builds the model on the device meta.
    """

    like: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("like", torch.empty(0), persistent=False)


# ---- RoPE ----


@dataclass(frozen=True)
class Rotation:
    """Apply R of some columns to queries and keys (batch, H, columns, d). R has no gradient.

    Args:
        turns: (columns, d / 2), complex: e^{i m theta_n} of column m.
        skips_cls: row and column 0 of the logits are products of q and k without R; row 0 of `turns` is zero then.
    """

    turns: Tensor
    skips_cls: bool = False

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys whose products are the logits with R.

        skips_cls: any kernel computes q k^T, so that q and k get two more columns, whose products are row 0 of the
        logits, (1, 0, 0, ...) times q_0 k_j, and column 0, q_i k_0 times (1, 0, 0, ...). The rotated columns add
        nothing there, since `turns` is zero in row 0. Columns of zeros: fused kernels want multiples of 8.
        """
        if not self.skips_cls:
            return self._turn(q), self._turn(k)
        from_cls = k @ q[:, :, 0, :, None]  # (batch, H, T, 1)
        to_cls = q @ k[:, :, 0, :, None]
        is_cls = torch.zeros_like(to_cls)
        is_cls[:, :, 0] = 1
        zeros = is_cls.new_zeros(()).expand(*q.shape[:-1], -(q.shape[-1] + 2) % 8)
        return (
            torch.cat([self._turn(q), is_cls, to_cls * (1 - is_cls), zeros], dim=-1),
            torch.cat([self._turn(k), from_cls, is_cls, zeros], dim=-1),
        )

    def _turn(self, x: Tensor) -> Tensor:
        """Multiply each pair of columns, as a complex number, by its turn: three times as fast as real products."""
        pairs = x.to(self.turns.real.dtype).unflatten(-1, (-1, 2))
        return torch.view_as_real(torch.view_as_complex(pairs) * self.turns).flatten(-2).to(x.dtype)


class RotaryTerm(FixedTerm):
    """Compute R of RoPE. skips_cls: see `Rotation`."""

    def __init__(self, embed_dim: int, num_heads: int, skips_cls: bool = False) -> None:
        super().__init__()
        self.head_dim, self.skips_cls = embed_dim // num_heads, skips_cls
        if self.head_dim % 2:
            raise OptionError(
                f"rotary positions with heads of dimension {self.head_dim} ({embed_dim} / {num_heads}): it must be "
                "even, since pairs of columns are rotated; change the number of attention heads"
            )

    def forward(self, tgt_len: int, first: int = 0) -> Rotation:
        """Return R of columns `first` to T - 1."""
        frequencies = 10000.0 ** (-torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim)
        angles = torch.arange(first, tgt_len).unsqueeze(1) * frequencies
        turns = torch.polar(torch.ones_like(angles), angles)
        if self.skips_cls:
            turns[0] = 0
        dtype = torch.promote_types(self.like.dtype, torch.complex64)
        return Rotation(turns.to(self.like.device, dtype), self.skips_cls)


# ---- ALiBi ----


class AlibiTerm(FixedTerm):
    """Compute a penalty that grows with the distance, the same in both directions."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slopes = alibi_slopes(num_heads)

    def forward(self, tgt_len: int) -> Tensor:
        """Return the scores (H, T, T) of T columns."""
        exact = torch.promote_types(self.like.dtype, torch.float32)
        columns = torch.arange(tgt_len, device=self.like.device, dtype=exact)
        slopes = torch.tensor(self.slopes, dtype=exact).to(self.like.device).view(-1, 1, 1)
        return (-slopes * (columns - columns.unsqueeze(1)).abs()).to(self.like.dtype)


def alibi_slopes(num_heads: int) -> list[float]:
    """Return m_h of the heads: 2^(-8/H), 2^(-16/H), ..., 2^-8 if H is a power of two.

    Otherwise, as in ALiBi's code: the slopes of the largest power of two P below H, then every second one of 2 P.
    """
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (n + 1) / power) for n in range(power)]
    return slopes + [2.0 ** (-4 * (2 * n + 1) / power) for n in range(num_heads - power)]
