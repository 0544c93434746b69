"""From the decoder's streams to logits. Li et al. 2020, section 3.3 and the last row of Table 5.

    fusion         f = [y^S, y^P] W_F,  logits = f O^T,  O = [E_S, E_P] W_O: W_O is learned, the tables are the inputs'
    no fusion      logits = y^S (M_S E_S)^T + y^P (M_P E_P)^T: each stream against the table that it started from

E_s (V, D_s): a stream's table; M_s: the map from D_s to the width d, the identity where they are equal. Without tied
tables the logits are one linear map of f, or of [y^S, y^P].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Fusion(nn.Module):
    """[y^S, y^P] W_F: n streams of width d become one."""

    def __init__(self, num_streams: int, embed_dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(num_streams * embed_dim, embed_dim, bias=False)
        nn.init.xavier_uniform_(self.proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., n d) -> (..., d)."""
        return self.proj(x)


class FusedTables(nn.Module):
    """O = [E_S, E_P] W_O for tables of dimensions `dims`.

    With tables of the law N(0, 1/D_s) the rows of O have the law of a table of width d, N(0, 1/d).
    """

    def __init__(self, dims: list[int], embed_dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(sum(dims), embed_dim, bias=False)
        self.dims = dims
        self.register_buffer("kept", None, persistent=False)
        nn.init.normal_(self.proj.weight, std=(len(dims) * embed_dim) ** -0.5)

    def forward(self, tables: list[Tensor]) -> Tensor:
        """tables (V, D_s) -> O (V, d)."""
        if self.kept is not None:
            return self.kept
        parts = self.proj.weight.split(self.dims, dim=1)
        return sum_of_products(tables, [part.transpose(0, 1) for part in parts])

    @torch.no_grad()
    def keep_(self, tables: list[Tensor]) -> None:
        """Make O now, once and for all: for a model whose parameters will not change any more."""
        self.kept = self(tables)

    def is_cheaper_factored(self, rows: int, tables: list[Tensor]) -> bool:
        """Does f O^T for so many rows of f take fewer multiplications without O? With V >> d below about 2 d rows."""
        words, dim, embed_dim = len(tables[0]), sum(self.dims), self.proj.out_features
        making = 0 if self.kept is not None else words * dim * embed_dim
        return rows * dim * (embed_dim + words) < making + rows * embed_dim * words

    def factored(self, f: Tensor, tables: list[Tensor]) -> Tensor:
        """f (..., d) -> f O^T without O."""
        parts = F.linear(f, self.proj.weight.transpose(0, 1)).split(self.dims, dim=-1)
        return logits_of_streams(parts, tables)


def logits_of_streams(streams: list[Tensor], tables: list[Tensor]) -> Tensor:
    """streams (..., D_s), tables (V, D_s) -> the sum of their products, (..., V)."""
    flat = [stream.reshape(-1, stream.shape[-1]) for stream in streams]
    return sum_of_products(flat, [table.transpose(0, 1) for table in tables]).view(*streams[0].shape[:-1], -1)


def sum_of_products(left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Sum over s of left_s @ right_s, without a second array of the size of the result."""
    total = left[0] @ right[0]
    for one, other in zip(left[1:], right[1:]):
        total = torch.addmm(total, one, other)
    return total
