"""Add positions to an encoder: TUPE and its comparison set (Ke et al. 2021, Table 1; equations of the ICLR version),
rotary positions (RoPE, Su et al. 2021, arXiv 2104.09864) and ALiBi (Press et al. 2022, arXiv 2108.12409).

    (4)   x_i + p_i                                                      BERT-A: added to the embeddings
    (6)   b_{j-i}                                                        T5: a scalar per distance
    (7)   (1 / sqrt(2 d)) (p_i U^Q) (p_j U^K)^T                          untied absolute positions
    (9)   reset(v, i, j) = theta_1 if i = 1, theta_2 if j = 1, else v_ij
    (10)  reset of (7)                                                   TUPE-A
    (11)  reset of (7) + b_{j-i}                                         TUPE-R
    RoPE  (R_i q_i)^T (R_j k_j)                                          fixed_positions.py
    ALiBi -m_h |i - j|                                                   fixed_positions.py

i: query, j: key, d: head_dim, p: position vectors (after a layer norm), theta_1: `[CLS]` to all, theta_2: all to
`[CLS]`. C: embed_dim, H: num_heads, T: tgt_len.

An encoding acts in up to four places: on the embeddings (`embed`), on queries and keys before (`projections`) and after
(`rotation`) they are split into heads, and on the attention's logits (`bias`, one tensor (H, T, T) for all layers and
sentences). The logits are divided by sqrt(num_terms * d), where `num_terms` terms of about equal size are summed.
To add an encoding, write a class with the methods that it needs, and an entry in `POSITION_ENCODINGS`, from which
options, architectures and exports are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from embinit_fairseq.errors import OptionError
from embinit_fairseq.modules.fixed_positions import AlibiTerm, RotaryTerm, Rotation


@dataclass(frozen=True)
class PositionSizes:
    """Hold the sizes from which an encoding is built.

    Args:
        num_buckets: number of buckets of relative positions; 0: none.
        max_distance: larger distances share one bucket.
        reset: treatment of `[CLS]`, see `UntiedPositions`.
        rotary: RoPE in addition to untied positions.
        bidirectional: False for a decoder, whose queries never see later keys.
    """

    embed_dim: int
    num_heads: int
    max_positions: int
    num_buckets: int = 0
    max_distance: int = 128
    reset: str | None = None
    rotary: bool = False
    bidirectional: bool = True


class PositionEncoding(nn.Module):
    """Do nothing in all four places: no positions. Encodings override methods."""

    num_terms = 1
    #: column 0 is treated as `[CLS]`, whatever its token
    untie_cls = False
    #: longest input in tokens; None: any
    max_positions: int | None = None

    def embed(self, x: Tensor) -> Tensor:
        """Return the embeddings x (batch, T, C), before layer norm and dropout, with positions."""
        return x

    def projections(self, tgt_len: int) -> tuple[Tensor, Tensor] | None:
        """Return (T, C) to be added to the queries and to the keys of every layer, or None."""
        return None

    def rotation(self, tgt_len: int, first: int = 0) -> Rotation | None:
        """Return the rotation of the queries and keys of columns `first` to T - 1 in every layer, or None."""
        return None

    def bias(self, tgt_len: int) -> Tensor | None:
        """Return (H, T, T) to be added to the logits of every layer, or None."""
        return None


# ---- Equation (6): relative positions in buckets, as in T5 ----


def relative_position_buckets(
    relative_position: Tensor, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
) -> Tensor:
    """Return the bucket, in [0, num_buckets), of each r = j - i in an integer tensor of any shape.

    Near distances have one bucket each, far distances share buckets that grow with their logarithm; all distances
    beyond `max_distance` are in the last bucket. bidirectional: r <= 0 uses the lower half of the buckets, r > 0 the
    upper half. Otherwise (decoders, which never see r > 0) all buckets are for the past. Float32, truncated as in T5.
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


def reset_cls(scores: Tensor, from_cls: Tensor, to_cls: Tensor) -> Tensor:
    """Return (H, T, T) with equation (9): column 0 becomes `to_cls` (H,), then row 0 (with the corner) `from_cls`."""
    num_heads, length, _ = scores.shape
    column = to_cls.view(num_heads, 1, 1).expand(-1, length - 1, 1)
    row = from_cls.view(num_heads, 1, 1).expand(-1, 1, length)
    return torch.cat([row, torch.cat([column, scores[:, 1:, 1:]], dim=2)], dim=1)


class RelativeTerm(nn.Module):
    """Compute b_{j-i}: one scalar per bucket and head, not scaled.

    reset "official": constants for `[CLS]` as in TUPE's code; bucket `num_buckets // 2`, which no distance has, is
    theta_1, and one more row is theta_2. "paper": both are zero. None: `[CLS]` is like any other position.
    """

    def __init__(self, sizes: PositionSizes) -> None:
        super().__init__()
        self.num_buckets, self.max_distance = sizes.num_buckets, sizes.max_distance
        self.reset, self.bidirectional = sizes.reset, sizes.bidirectional
        per_direction = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        if self.num_buckets % 2 or per_direction < 2 or self.max_distance <= per_direction // 2:
            raise OptionError(
                f"--rel-pos-bins {self.num_buckets} --max-rel-pos {self.max_distance}: the buckets must be an even "
                f"number, at least 4, and the distance more than {per_direction // 2}; BERT-R and TUPE-R have 32 and "
                "128"
            )
        self.embed_buckets = nn.Embedding(self.num_buckets + int(self.reset == "official"), sizes.num_heads)

    def forward(self, tgt_len: int) -> Tensor:
        """Return the scores (H, T, T) of T columns."""
        table = self.embed_buckets.weight
        distances = torch.arange(1 - tgt_len, tgt_len)  # on the CPU: another device's logarithm could be an ulp off
        buckets = relative_position_buckets(distances, self.num_buckets, self.max_distance, self.bidirectional)
        by_distance = table[buckets.to(table.device)].t()  # (H, 2 T - 1)
        scores = by_distance.unfold(1, tgt_len, 1).flip(1)  # row i is the window that starts at distance -i
        if self.reset == "official":
            return reset_cls(scores, from_cls=table[self.num_buckets // 2], to_cls=table[self.num_buckets])
        return scores if self.reset is None else reset_cls(scores, *table.new_zeros(2, table.shape[1]))


# ---- Equations (7) and (9) to (11): TUPE ----


class AbsoluteTerm(nn.Module):
    """Compute equation (7), with the layer norm and the biases of TUPE's code, and with a reset equation (10).

    With a reset the matrix has one row more, as in TUPE's code: row 0 is the vector of theta_1, row 1 the vector of
    theta_2 (`[CLS]` has no vector), and column i uses row i + 1. Otherwise column i uses row i.
    """

    def __init__(self, sizes: PositionSizes) -> None:
        super().__init__()
        embed_dim = sizes.embed_dim
        self.num_heads, self.thetas = sizes.num_heads, int(sizes.reset is not None)
        self.scale = (2 * (embed_dim // sizes.num_heads)) ** -0.5
        self.embed_positions = nn.Embedding(sizes.max_positions + self.thetas, embed_dim)
        self.layer_norm = nn.LayerNorm(embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, tgt_len: int) -> Tensor:
        """Return the scores (H, T, T) of T columns."""
        positions = self.layer_norm(_first_rows(self.embed_positions, tgt_len, self.thetas))
        q = self._split_heads(self.q_proj(positions)) * self.scale
        k = self._split_heads(self.k_proj(positions))
        if not self.thetas:
            return q @ k.transpose(1, 2)
        scores = q[:, 1:] @ k[:, 1:].transpose(1, 2)
        return reset_cls(scores, from_cls=(q[:, 0] * k[:, 0]).sum(-1), to_cls=scores[:, 0, 0])

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], self.num_heads, -1).transpose(0, 1)  # (H, rows, d)


class UntiedPositions(PositionEncoding):
    """Compute TUPE-A, equation (10), and with buckets TUPE-R, equation (11).

    sizes.reset is the treatment of `[CLS]`:
        official: the absolute and the relative term each have their own constants, as in TUPE's code;
        paper: the absolute constants replace the sum of both terms, as in (11);
        None (tie-cls): like any other position.

    sizes.rotary: queries and keys are rotated as well; with a reset, not for `[CLS]`.
    """

    num_terms = 2

    def __init__(self, sizes: PositionSizes) -> None:
        super().__init__()
        self.max_positions, self.untie_cls = sizes.max_positions, sizes.reset is not None
        self.absolute = AbsoluteTerm(sizes)
        self.relative = RelativeTerm(sizes) if sizes.num_buckets else None
        self.rotary = RotaryTerm(sizes.embed_dim, sizes.num_heads, self.untie_cls) if sizes.rotary else None

    def rotation(self, tgt_len: int, first: int = 0) -> Rotation | None:
        """Return R of columns `first` to T - 1, or None."""
        return None if self.rotary is None else self.rotary(tgt_len, first)

    def bias(self, tgt_len: int) -> Tensor:
        """Return equation (10) or (11) without the token term."""
        scores = self.absolute(tgt_len)
        return scores if self.relative is None else scores + self.relative(tgt_len)


# ---- The comparison set ----


class AddedPositions(PositionEncoding):
    """BERT-A, equation (4): a learned vector per column is added to the embeddings."""

    def __init__(self, sizes: PositionSizes) -> None:
        super().__init__()
        self.max_positions = sizes.max_positions
        self.embed_positions = nn.Embedding(sizes.max_positions, sizes.embed_dim)

    def embed(self, x: Tensor) -> Tensor:
        """Return x plus the vectors of its columns; raise OptionError if there are too few."""
        return x + _first_rows(self.embed_positions, x.shape[1])


class RelativePositions(PositionEncoding):
    """Equation (6): the relative scalars of T5 and nothing else."""

    relative: RelativeTerm

    def __init__(self, sizes: PositionSizes) -> None:
        super().__init__()
        self.relative = RelativeTerm(replace(sizes, reset=None))

    def bias(self, tgt_len: int) -> Tensor:
        """Return b_{j-i}."""
        return self.relative(tgt_len)


class AddedRelativePositions(AddedPositions):
    """BERT-R (section 4.1): positions added to the embeddings, and the relative scalars of (6)."""

    def __init__(self, sizes: PositionSizes) -> None:
        super().__init__(sizes)
        self.relative = RelativeTerm(replace(sizes, reset=None))

    bias = RelativePositions.bias


class FourTermPositions(PositionEncoding):
    """BERT-A^d (section 4.3): all four correlations, with separate projections for positions.

    (x W^Q + p U^Q) (x W^K + p U^K)^T / sqrt(4 d) is the sum of the four terms. U has no bias: W's would be the same.
    """

    num_terms = 4

    def __init__(self, sizes: PositionSizes) -> None:
        super().__init__()
        embed_dim, self.max_positions = sizes.embed_dim, sizes.max_positions
        self.embed_positions = nn.Embedding(sizes.max_positions, embed_dim)
        self.layer_norm = nn.LayerNorm(embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)

    def projections(self, tgt_len: int) -> tuple[Tensor, Tensor]:
        """Return p U^Q and p U^K; raise OptionError if there are too few positions."""
        positions = self.layer_norm(_first_rows(self.embed_positions, tgt_len))
        return self.q_proj(positions), self.k_proj(positions)


class RotaryPositions(PositionEncoding):
    """RoPE, and no other positions."""

    def __init__(self, sizes: PositionSizes) -> None:
        super().__init__()
        self.rotary = RotaryTerm(sizes.embed_dim, sizes.num_heads)

    def rotation(self, tgt_len: int, first: int = 0) -> Rotation:
        """Return R of columns `first` to T - 1."""
        return self.rotary(tgt_len, first)


class AlibiPositions(PositionEncoding):
    """ALiBi, and no other positions."""

    def __init__(self, sizes: PositionSizes) -> None:
        super().__init__()
        self.alibi = AlibiTerm(sizes.num_heads)

    def bias(self, tgt_len: int) -> Tensor:
        """Return -m_h |i - j|."""
        return self.alibi(tgt_len)


def _first_rows(embed_positions: nn.Embedding, tgt_len: int, thetas: int = 0) -> Tensor:
    """Return the vectors of the thetas and of T columns; raise OptionError for an input longer than the matrix."""
    max_positions = embed_positions.num_embeddings - thetas
    if tgt_len > max_positions:
        raise OptionError(
            f"an input has {tgt_len} tokens, the model has {max_positions} positions: shorten the input "
            "(--shorten-method truncate, --tokens-per-sample, --max-source-positions) or train with a larger "
            "--max-positions"
        )
    return embed_positions.weight[: tgt_len + thetas]


# ---- The registry ----


@dataclass(frozen=True)
class EncodingKind:
    """Describe an entry of `POSITION_ENCODINGS`.

    Args:
        name: name in the paper.
        family: beginning of the names of its --arch (`bert_a`: bert_a_base, ...).
        build: makes the module.
        relative: whether it has buckets of relative positions: "never", "always", or with --rel-pos ("optional").
        resets: whether `[CLS]` may be treated apart from other positions.
        rotates: whether --rotary may be given.
        translates: whether `tupe_transformer` has it; it then acts inside attention alone.
    """

    name: str
    family: str
    help: str
    build: Callable[[PositionSizes], PositionEncoding]
    relative: str = "never"
    resets: bool = False
    rotates: bool = False
    translates: bool = False

    def has_buckets(self, rel_pos: bool) -> bool:
        """Return True if the model has buckets of relative positions."""
        return self.relative == "always" or (self.relative == "optional" and rel_pos)


#: value of --position-encoding, and of a checkpoint's option -> the encoding
POSITION_ENCODINGS = {
    "untied": EncodingKind(
        *("TUPE", "tupe", "TUPE-A, with --rel-pos TUPE-R", UntiedPositions, "optional"),
        resets=True,
        rotates=True,
        translates=True,
    ),
    "added": EncodingKind("BERT-A", "bert_a", "positions added to the embeddings", AddedPositions),
    "added_relative": EncodingKind(
        "BERT-R", "bert_r", "positions added to the embeddings, and relative ones", AddedRelativePositions, "always"
    ),
    "relative": EncodingKind(
        "relative only", "bert_rel", "T5's relative positions only", RelativePositions, relative="always"
    ),
    "four_terms": EncodingKind("BERT-A^d", "bert_ad", "all four correlations", FourTermPositions),
    "rope": EncodingKind(
        "RoPE", "bert_rope", "queries and keys rotated by their positions", RotaryPositions, translates=True
    ),
    "alibi": EncodingKind(
        "ALiBi", "bert_alibi", "a penalty that grows with the distance", AlibiPositions, translates=True
    ),
    "none": EncodingKind("NoPE", "bert_nope", "no positions", lambda sizes: PositionEncoding()),
}
#: for messages: the architectures that are encoders with one of these
ENCODERS = ", ".join(f"{kind.family}_*" for kind in POSITION_ENCODINGS.values())


def published_name(encoding: str, relative: bool = False, tied: bool = False, rotary: bool = False) -> str:
    """Return the name of an encoding with its options, as in Ke et al. 2021: `TUPE-R + RoPE`, `relative only`."""
    kind = POSITION_ENCODINGS[encoding]
    if kind.relative != "optional":
        return kind.name
    name = f"{kind.name}-{'R' if relative else 'A'}"
    return name + (" + RoPE" if rotary else "") + (", [CLS] tied" if tied else "")
