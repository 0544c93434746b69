"""How positions enter an encoder: the comparison set of Ke et al. 2021, Table 1, and `POSITION_ENCODINGS`, the table
from which options, architectures, checks, exports and maps of positions are fed.

Each encoding may act in three places: on the embeddings (`embed`), on queries and keys (`projections`) and on the
attention's logits (`bias`). The logits are scaled by 1 / sqrt(num_terms * head_dim): `num_terms` correlation terms of
about equal size are summed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from embinit_fairseq.modules.position_bias import AbsoluteTerm, BiasTerm, RelativeTerm, check_length, reset_cls


class PositionEncoding(nn.Module):
    """Does nothing in all three places; the encodings below say what they do."""

    num_terms = 1
    #: column 0 is treated as `<s>`, whatever stands there
    untie_cls = False
    #: longest input in tokens; None: any
    max_positions: int | None = None

    def embed(self, x: Tensor) -> Tensor:
        """x (batch, tgt_len, C): embeddings before layer norm and dropout."""
        return x

    def projections(self, tgt_len: int) -> tuple[Tensor, Tensor] | None:
        """(tgt_len, C) to be added to the queries and to the keys of every layer, or None."""
        return None

    def bias(self, tgt_len: int) -> Tensor | None:
        """(num_heads, tgt_len, tgt_len) to be added to the logits of every layer, or None."""
        return None


class AddedPositions(PositionEncoding):
    """BERT-A, equation (4): a learned vector per column is added to the embeddings."""

    def __init__(self, embed_dim: int, max_positions: int) -> None:
        super().__init__()
        self.max_positions = max_positions
        self.embed_positions = nn.Embedding(max_positions, embed_dim)

    def embed(self, x: Tensor) -> Tensor:
        """x (batch, tgt_len, C) plus the vectors of its columns; raises OptionError if there are too few."""
        check_length(x.shape[1], self.embed_positions.num_embeddings)
        return x + self.embed_positions.weight[: x.shape[1]]


class RelativePositions(PositionEncoding):
    """Equation (6): the relative scalars of T5 and nothing else."""

    def __init__(self, num_heads: int, num_buckets: int, max_distance: int) -> None:
        super().__init__()
        self.relative = RelativeTerm(num_heads, num_buckets, max_distance)

    def bias(self, tgt_len: int) -> Tensor:
        """b_{j-i}, (num_heads, tgt_len, tgt_len)."""
        return self.relative(tgt_len).scores


class AddedRelativePositions(AddedPositions):
    """BERT-R (Ke et al. 2021, section 4.1): positions added to the embeddings, and the relative scalars of (6)."""

    def __init__(self, embed_dim: int, num_heads: int, max_positions: int, num_buckets: int, max_distance: int) -> None:
        super().__init__(embed_dim, max_positions)
        self.relative = RelativeTerm(num_heads, num_buckets, max_distance)

    def bias(self, tgt_len: int) -> Tensor:
        """b_{j-i}, (num_heads, tgt_len, tgt_len)."""
        return self.relative(tgt_len).scores


class FourTermPositions(PositionEncoding):
    """BERT-A^d (Ke et al. 2021, section 4.3): all four correlations, with separate projections for positions.

    (x W^Q + p U^Q) (x W^K + p U^K)^T / sqrt(4 d) is the sum of the four terms. U has no bias: W's would be the same.
    """

    num_terms = 4

    def __init__(self, embed_dim: int, max_positions: int) -> None:
        super().__init__()
        self.max_positions = max_positions
        self.embed_positions = nn.Embedding(max_positions, embed_dim)
        self.layer_norm = nn.LayerNorm(embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)

    def projections(self, tgt_len: int) -> tuple[Tensor, Tensor]:
        """p U^Q and p U^K, (tgt_len, C) each; raises OptionError if there are too few positions."""
        check_length(tgt_len, self.embed_positions.num_embeddings)
        positions = self.layer_norm(self.embed_positions.weight[:tgt_len])
        return self.q_proj(positions), self.k_proj(positions)


class UntiedPositions(PositionEncoding):
    """TUPE-A, equation (10), and with a relative term TUPE-R, equation (11).

    reset: `official` resets the absolute and the relative term each with its own constants, as the authors' code does;
    `paper` replaces their sum by the absolute constants, as in (11); None (tie-cls) resets nothing.
    """

    num_terms = 2

    def __init__(self, absolute: AbsoluteTerm, relative: RelativeTerm | None = None, reset: str | None = None) -> None:
        super().__init__()
        self.absolute, self.relative, self.reset = absolute, relative, reset
        self.untie_cls, self.max_positions = reset is not None, absolute.max_positions

    def bias(self, tgt_len: int) -> Tensor:
        """Equation (10) or (11) without the token term, (num_heads, tgt_len, tgt_len)."""
        scores, from_cls, to_cls = self.absolute(tgt_len)
        if self.relative is not None:
            relative = self.relative(tgt_len)
            scores = scores + relative.scores
            if self.reset == "official":
                from_cls, to_cls = from_cls + relative.from_cls, to_cls + relative.to_cls
        return reset_cls(BiasTerm(scores, from_cls, to_cls)) if self.untie_cls else scores


def untied_positions(
    embed_dim: int,
    num_heads: int,
    max_positions: int,
    *,
    reset: str | None = "official",
    num_buckets: int = 0,
    max_distance: int = 128,
    bidirectional: bool = True,
) -> UntiedPositions:
    """TUPE-A, or TUPE-R if `num_buckets` is not 0. The extra relative row exists only where `official` needs it."""
    absolute = AbsoluteTerm(embed_dim, num_heads, max_positions, untie_cls=reset is not None)
    relative = None
    if num_buckets:
        relative = RelativeTerm(num_heads, num_buckets, max_distance, reset == "official", bidirectional)
    return UntiedPositions(absolute, relative, reset)


@dataclass(frozen=True)
class PositionSizes:
    """What an encoding is built from.

    num_buckets: of relative positions; 0: none. max_distance: from which on all share a bucket. reset: how `<s>` is
    treated, see `UntiedPositions`. bidirectional: False for a decoder, whose queries never see later keys.
    """

    embed_dim: int
    num_heads: int
    max_positions: int
    num_buckets: int = 0
    max_distance: int = 128
    reset: str | None = None
    bidirectional: bool = True


@dataclass(frozen=True)
class KnownEncoding:
    """An entry of `POSITION_ENCODINGS`.

    name: in the paper. family: what the names of its --arch begin with (`bert_a`: bert_a_base, ...). build: makes the
    module. relative: are there buckets of relative positions: "never", "always", or where they are asked for
    ("optional", --rel-pos). resets: may `<s>` be treated apart from other positions? limited: has it a vector for each
    of --max-positions positions?
    """

    name: str
    family: str
    help: str
    build: Callable[[PositionSizes], PositionEncoding]
    relative: str = "never"
    resets: bool = False
    limited: bool = False

    def has_buckets(self, asked: bool) -> bool:
        """Has the model buckets of relative positions? asked: by --rel-pos."""
        return self.relative == "always" or (self.relative == "optional" and asked)


#: value of --position-encoding, and of a checkpoint's option -> what it is; to add an encoding is to add a line here
POSITION_ENCODINGS = {
    "untied": KnownEncoding(
        "TUPE",
        "tupe",
        "TUPE-A, with --rel-pos TUPE-R",
        lambda sizes: untied_positions(
            sizes.embed_dim,
            sizes.num_heads,
            sizes.max_positions,
            reset=sizes.reset,
            num_buckets=sizes.num_buckets,
            max_distance=sizes.max_distance,
            bidirectional=sizes.bidirectional,
        ),
        relative="optional",
        resets=True,
        limited=True,
    ),
    "added": KnownEncoding(
        "BERT-A",
        "bert_a",
        "positions added to the embeddings",
        lambda sizes: AddedPositions(sizes.embed_dim, sizes.max_positions),
        limited=True,
    ),
    "added_relative": KnownEncoding(
        "BERT-R",
        "bert_r",
        "positions added to the embeddings, and relative ones",
        lambda sizes: AddedRelativePositions(
            sizes.embed_dim, sizes.num_heads, sizes.max_positions, sizes.num_buckets, sizes.max_distance
        ),
        relative="always",
        limited=True,
    ),
    "relative": KnownEncoding(
        "relative only",
        "bert_rel",
        "T5's relative positions only",
        lambda sizes: RelativePositions(sizes.num_heads, sizes.num_buckets, sizes.max_distance),
        relative="always",
    ),
    "four_terms": KnownEncoding(
        "BERT-A^d",
        "bert_ad",
        "all four correlations",
        lambda sizes: FourTermPositions(sizes.embed_dim, sizes.max_positions),
        limited=True,
    ),
}
#: for messages: the architectures that are encoders with one of these
ENCODERS = ", ".join(f"{known.family}_*" for known in POSITION_ENCODINGS.values())


def published_name(encoding: str, relative: bool = False, tied: bool = False) -> str:
    """The name of an encoding with its options, that of Ke et al. 2021 if it has one: `TUPE-R`, `relative only`."""
    known = POSITION_ENCODINGS[encoding]
    if known.relative != "optional":
        return known.name
    return f"{known.name}-{'R' if relative else 'A'}" + (", [CLS] tied" if tied else "")
