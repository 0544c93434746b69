"""Duo classifier: each embedding of a word decides how much the word counts in the other. Li et al. 2020, section 3.1.

    a^P = softmax(w^S S^T) P                                                                              equation (1)
    a^S = softmax(w^P P^T) S                                                                              equation (2)
    e = [a^P, a^S] W_O                                                                                    equation (3)

S, P: the two embeddings of a text, T x D_S and T x D_P. w^S, w^P: one learned query each. "linear" leaves the softmax
out, as in the paper's experiments: weights are then any numbers, and sums grow with the text. B: batch, T: src_len.

Padding is dropped first: the N words of a batch are concatenated, and an embedding bag computes their weighted sums.
Texts differ much in length (R8: 4 to 520 words); most of the time and memory would go into padding.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: choices of --duo-attention
ATTENTIONS = ("softmax", "linear")


class DuoSentenceEmbedding(nn.Module):
    """Make one vector of a text from two embeddings of every word, with dropout after both sub-layers."""

    def __init__(self, dim_s: int, dim_p: int, ffn_dim: int, attention: str = "softmax", dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = attention
        self.query_s, self.query_p = nn.Parameter(torch.empty(dim_s)), nn.Parameter(torch.empty(dim_p))
        self.out_proj = nn.Linear(dim_s + dim_p, ffn_dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        for query in (self.query_s, self.query_p):
            bound = math.sqrt(6 / (len(query) + 1))  # Xavier's distribution for D x 1
            nn.init.uniform_(query, -bound, bound)
        nn.init.xavier_uniform_(self.out_proj.weight)

    def forward(self, tokens: Tensor, padding_mask: Tensor, table_s: Tensor, table_p: Tensor) -> Tensor:
        """Return e (B, ffn_dim) for tokens and padding_mask (B, T), True at padding, and tables V x D_S, V x D_P."""
        present = ~padding_mask
        words = tokens[present]
        starts = F.pad(present.sum(dim=1).cumsum(dim=0)[:-1], (1, 0))
        weights_s, weights_p = self.weights(words, present, table_s, table_p)
        a_p, a_s = (
            F.embedding_bag(words, table, starts, mode="sum", per_sample_weights=weights.to(table.dtype))
            for table, weights in ((table_p, weights_s), (table_s, weights_p))
        )
        return self.dropout(self.out_proj(self.dropout(torch.cat([a_p, a_s], dim=-1))))

    def weights(self, words: Tensor, present: Tensor, table_s: Tensor, table_p: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights by S (of P's vectors) and by P of the words (N,) at the places `present` (B, T)."""
        scores_s, scores_p = F.embedding(words, table_s) @ self.query_s, F.embedding(words, table_p) @ self.query_p
        if self.attention == "linear":
            return scores_s, scores_p
        return softmax_of_texts(scores_s, present), softmax_of_texts(scores_p, present)


def softmax_of_texts(scores: Tensor, present: Tensor) -> Tensor:
    """Return the softmax over the words of each row, (N,), of scores (N,) at the places `present` (B, T)."""
    dtype = torch.promote_types(scores.dtype, torch.float32)  # single precision at least
    rows = torch.full(present.shape, torch.finfo(dtype).min, dtype=dtype, device=scores.device)
    return rows.masked_scatter(present, scores.to(dtype)).softmax(dim=-1)[present].to(scores.dtype)
