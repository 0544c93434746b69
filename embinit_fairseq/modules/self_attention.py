"""Multi-head self-attention that adds whatever positional bias it is given.

softmax((x W^Q) (x W^K)^T / sqrt(num_terms d) + B) (x W^V) W^O           Ke et al. 2021, equations (4) to (11)
"""

from __future__ import annotations

from torch import Tensor, nn

from embinit_fairseq.errors import OptionError
from embinit_fairseq.modules.attention_kernels import AttentionBias, attend
from embinit_fairseq.modules.packing import Packing


class SelfAttention(nn.Module):
    """C: embed_dim. Queries, keys and values come from one matrix product (rows q, k, v)."""

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, num_terms: int = 1) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise OptionError(
                f"{num_heads} attention heads do not divide the width {embed_dim}; numbers that do: "
                f"{', '.join(str(n) for n in range(1, 33) if embed_dim % n == 0)}"
            )
        self.num_heads, self.dropout = num_heads, dropout
        self.scale = (num_terms * (embed_dim // num_heads)) ** -0.5
        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(
        self,
        x: Tensor,
        attn_bias: AttentionBias,
        projections: tuple[Tensor, Tensor] | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """x (batch, tgt_len, C), or (N, C) with a packing -> the same shape.

        projections: (tgt_len, C) to add to queries and keys, or None.
        """
        qkv = self.qkv_proj(x)
        q, k, v = (qkv if packing is None else packing.spread(qkv)).chunk(3, dim=-1)
        if projections is not None:
            q, k = q + projections[0], k + projections[1]
        dropout = self.dropout if self.training else 0.0
        y = attend(self._heads(q), self._heads(k), self._heads(v), attn_bias, self.scale, dropout)
        y = y.transpose(1, 2).flatten(2)
        return self.out_proj(y if packing is None else packing.pack(y))

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)  # (batch, num_heads, len, head_dim)
