"""The streams of embeddings of one side of `--arch duo_transformer_*`, and what both sides are told.

Each stream has a table of its own (`embed_tokens`: S, `embed_tokens_p`: P). A table whose dimension is not the width
gets a learned linear map (Li et al. 2020, section 4.2.1: 300 to 512). Positions are added to each stream.
n: streams, B: batch, T: tgt_len, C: width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from fairseq.modules import PositionalEmbedding
from torch import Tensor, nn

from embinit_fairseq.modules.attention_kernels import AttentionBias, choose_kernel, prepare, situation
from embinit_fairseq.modules.duo_layers import StreamConfig
from embinit_fairseq.modules.encoder_layer import LayerConfig

#: behind `embed_tokens`, `encoder` and `decoder`: the names of the streams
SUFFIXES = ("", "_p")


@dataclass(frozen=True)
class DuoSideConfig:
    """What encoder and decoder have in common. `fusion` concerns the decoder."""

    layer: LayerConfig
    streams: StreamConfig
    num_layers: int
    max_positions: int
    scale_embedding: bool = True
    positions: bool = True
    learned_pos: bool = False
    fusion: bool = True
    attention_kernel: str = "auto"

    @property
    def embed_scale(self) -> float:
        return math.sqrt(self.layer.embed_dim) if self.scale_embedding else 1.0

    def prepare(
        self, x: Tensor, training: bool, bias: Tensor | None, padding_mask: Tensor | None, step: bool = False
    ) -> AttentionBias:
        """The bias of one forward pass from x (..., C); padding_mask (B, S) is repeated for the streams.

        flex is not for translation: it compiles anew for every shape. For a step of one query fusing saves nothing on a
        CPU, and plain products are faster.
        """
        if step and self.attention_kernel == "auto" and x.device.type == "cpu":
            kernel = "eager"
        else:
            dropout = self.layer.attention_dropout if training else 0.0
            here = situation(x, self.layer.embed_dim // self.layer.num_heads, dropout)
            kernel, _ = choose_kernel(self.attention_kernel, here)
        if padding_mask is not None:
            padding_mask = padding_mask.repeat(self.streams.num_streams, 1)
        return prepare(kernel, bias, padding_mask)


class DuoEmbedding(nn.Module):
    """x^s = dropout(embed_scale * map_s(E_s[token]) + position) for every stream s."""

    def __init__(self, cfg: DuoSideConfig, tables: list[nn.Embedding]) -> None:
        super().__init__()
        width, padding_idx = cfg.layer.embed_dim, tables[0].padding_idx
        self.suffixes = SUFFIXES[: len(tables)]
        for suffix, table in zip(self.suffixes, tables):
            self.add_module(f"embed_tokens{suffix}", table)
            if table.embedding_dim != width:
                self.add_module(f"embed_map{suffix}", _map(table.embedding_dim, width))
        self.embed_positions = (
            PositionalEmbedding(cfg.max_positions, width, padding_idx, cfg.learned_pos) if cfg.positions else None
        )
        self.embed_scale, self.longest = cfg.embed_scale, cfg.max_positions
        self.dropout = nn.Dropout(cfg.layer.dropout)

    def forward(self, tokens: Tensor, seen: int = 0) -> Tensor:
        """tokens (B, T) -> (n, B, T - seen, C): those after the first `seen`."""
        new = tokens[:, seen:]
        streams = [table(new) for table in self.tables()]
        streams = [x if change is None else change(x) for x, change in zip(streams, self.maps())]
        x = self.embed_scale * torch.stack(streams)
        if self.embed_positions is not None:
            x = x + self._positions(tokens, seen).to(x.dtype)
        return self.dropout(x)

    def tables(self) -> list[nn.Embedding]:
        """V x D_s each."""
        return [getattr(self, f"embed_tokens{suffix}") for suffix in self.suffixes]

    def maps(self) -> list[nn.Linear | None]:
        """From D_s to the width; None where they are equal."""
        return [getattr(self, f"embed_map{suffix}", None) for suffix in self.suffixes]

    def max_positions(self) -> int:
        """Longest input in tokens."""
        return self.longest

    def _positions(self, tokens: Tensor, seen: int) -> Tensor:
        if seen and tokens.shape[1] == seen + 1:  # fairseq's way for one more token: it need not look at the others
            return self.embed_positions(tokens, incremental_state={})
        return self.embed_positions(tokens)[:, seen:]


def _map(dim: int, width: int) -> nn.Linear:
    """Xavier's law: what comes out has about the scale of a table of this width."""
    linear = nn.Linear(dim, width)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def side_by_side(x: Tensor) -> Tensor:
    """(n, B, T, C) -> (B, T, n C)."""
    return x.permute(1, 2, 0, 3).flatten(2)


def one_below_the_other(x: Tensor, num_streams: int) -> Tensor:
    """(B, T, n C) -> (n, B, T, C)."""
    return x.unflatten(-1, (num_streams, -1)).permute(2, 0, 1, 3).contiguous()
