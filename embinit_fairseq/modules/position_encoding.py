"""How positions enter an encoder: the comparison set of Ke et al. 2021, Table 1.

Each encoding may act in three places: on the embeddings (`embed`), on queries and keys (`projections`) and on the
attention's logits (`bias`). The logits are scaled by 1 / sqrt(num_terms * head_dim): `num_terms` correlation terms of
about equal size are summed.
"""

from __future__ import annotations

from torch import Tensor, nn

from embinit_fairseq.modules.position_bias import AbsoluteTerm, BiasTerm, RelativeTerm, check_length, reset_cls


class PositionEncoding(nn.Module):
    """Does nothing in all three places; the encodings below say what they do."""

    num_terms = 1
    #: column 0 is treated as `<s>`, whatever stands there
    untie_cls = False

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
        self.embed_positions = nn.Embedding(max_positions, embed_dim)

    def embed(self, x: Tensor) -> Tensor:
        """x (batch, tgt_len, C) plus the vectors of its columns; raises OptionError if there are too few."""
        check_length(x.shape[1], self.embed_positions.num_embeddings)
        return x + self.embed_positions.weight[: x.shape[1]]


class RelativePositions(PositionEncoding):
    """BERT-R, equation (6): the relative scalars of T5 and nothing else."""

    def __init__(self, num_heads: int, num_buckets: int, max_distance: int) -> None:
        super().__init__()
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
        self.untie_cls = reset is not None

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
