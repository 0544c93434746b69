"""Embeddings, encoder and decoder of `--arch duo_transformer_*`: fairseq's interface around layers of several streams.

n: streams, B: batch, T: tgt_len, S: src_len, C: embed_dim, V: symbols.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from fairseq.models import FairseqEncoder
from fairseq.modules import PositionalEmbedding
from torch import Tensor, nn

from embinit_fairseq.models._translation import (
    Alignment,
    CachedDecoder,
    Features,
    check_length,
    encoder_output,
    reorder_rows,
)
from embinit_fairseq.modules.attention_kernels import AttentionBias, choose_kernel, prepare, situation
from embinit_fairseq.modules.decoder_layer import DecoderCache, beam_of, causal, distinct_rows
from embinit_fairseq.modules.duo import (
    DuoDecoderLayer,
    DuoEncoderLayer,
    FusedTables,
    Fusion,
    StreamConfig,
    logits_of_streams,
)
from embinit_fairseq.modules.encoder_layer import LayerConfig

# ---- The streams of embeddings of one side of `--arch duo_transformer_*`, and what both sides are told --------------
# Each stream has a matrix of its own (`embed_tokens`: S, `embed_tokens_p`: P). One whose dimension is not the layers'
# gets a learned linear map (Li et al. 2020, section 4.2.1: 300 to 512). Positions are added to each stream.
# n: streams, B: batch, T: tgt_len, C: embed_dim.

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
        """From D_s to embed_dim; None where they are equal."""
        return [getattr(self, f"embed_map{suffix}", None) for suffix in self.suffixes]

    def max_positions(self) -> int:
        """Longest input in tokens."""
        return self.longest

    def _positions(self, tokens: Tensor, seen: int) -> Tensor:
        assert self.embed_positions is not None
        if seen and tokens.shape[1] == seen + 1:  # fairseq's way for one more token: it need not look at the others
            return self.embed_positions(tokens, incremental_state={})
        return self.embed_positions(tokens)[:, seen:]


def _map(dim: int, width: int) -> nn.Linear:
    """Xavier's distribution: what comes out has about the scale of an embedding matrix of this dimension."""
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


# ---- Encoder of `--arch duo_transformer_*`: fairseq's interface around layers that hold several streams -------------
# n: streams, B: batch, S: src_len, C: embed_dim.


class DuoEncoder(FairseqEncoder):
    """Streams of embeddings, layers, (layer norm of pre-LN). Nothing looks at padding."""

    def __init__(self, cfg: DuoSideConfig, dictionary: Any, tables: list[nn.Embedding]) -> None:
        super().__init__(dictionary)
        self.cfg, self.padding_idx = cfg, cast(int, tables[0].padding_idx)
        self.embedding = DuoEmbedding(cfg, tables)
        self.layers = nn.ModuleList(DuoEncoderLayer(cfg.layer, cfg.streams) for _ in range(cfg.num_layers))
        self.layer_norm = nn.LayerNorm(cfg.layer.embed_dim) if cfg.layer.normalize_before else None

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor | None = None, return_all_hiddens: bool = False
    ) -> dict[str, list[Tensor]]:
        """src_tokens (B, S), padding on any side -> `encoder_output`; encoder_out (S, B, n C): streams side by side.

        encoder_states, each of that shape, if return_all_hiddens. Raises DataError for a sentence that is too long.
        """
        check_length(src_tokens, self.cfg.max_positions, "source")
        is_padding = src_tokens.eq(self.padding_idx)
        padding_mask = is_padding if is_padding.any() else None
        x = self.embedding(src_tokens)
        attn_bias = self.cfg.prepare(x, self.training, None, padding_mask)
        states = []
        for layer in self.layers:
            if return_all_hiddens:
                states.append(side_by_side(x).transpose(0, 1))
            x = layer(x, attn_bias)
        x = side_by_side(x if self.layer_norm is None else self.layer_norm(x)).transpose(0, 1)
        return encoder_output(src_tokens, self.padding_idx, x, padding_mask, [*states, x] if return_all_hiddens else [])

    def reorder_encoder_out(self, encoder_out: dict[str, list[Tensor]], new_order: Tensor) -> dict[str, list[Tensor]]:
        """Row n becomes what row `new_order[n]` was."""
        return reorder_rows(encoder_out, new_order)

    def max_positions(self) -> int:
        """Longest input in tokens, `</s>` included."""
        return self.cfg.max_positions


# ----------------------------------------------------------------------------------------------------------------------

#: about as many steps as the sentences of a batch are decoded in: for so many the fused matrix is made, or not
_STEPS = 16


class DuoDecoder(CachedDecoder):
    """Streams of embeddings, layers, (layer norm of pre-LN), fusion, logits."""

    def __init__(
        self, cfg: DuoSideConfig, dictionary: Any, tables: list[nn.Embedding], kdim: int, tied_output: bool
    ) -> None:
        super().__init__(dictionary)
        width, num_streams = cfg.layer.embed_dim, cfg.streams.num_streams
        self.cfg, self.padding_idx = cfg, cast(int, tables[0].padding_idx)
        self.embedding = DuoEmbedding(cfg, tables)
        self.layers = nn.ModuleList(DuoDecoderLayer(cfg.layer, cfg.streams, kdim) for _ in range(cfg.num_layers))
        self.layer_norm = nn.LayerNorm(width) if cfg.layer.normalize_before else None
        self.fusion = Fusion(num_streams, width) if cfg.fusion and num_streams > 1 else None
        self.fused_tables: FusedTables | None = None
        self.output_projection: nn.Linear | None = None
        if not tied_output:
            self.output_projection = nn.Linear(width * (1 if self.fusion else num_streams), len(dictionary), bias=False)
        elif self.fusion:
            self.fused_tables = FusedTables([table.embedding_dim for table in tables], width)

    def at_once(
        self, prev_output_tokens: Tensor, encoder_out: dict[str, list[Tensor]], alignment: Alignment
    ) -> Features:
        """Padding behind a sentence needs no mask: nobody looks at the future."""
        x, memory, tgt_len = self.embedding(prev_output_tokens), self._memory(encoder_out), prev_output_tokens.shape[1]
        padding_mask = prev_output_tokens.eq(self.padding_idx)
        own_padding = padding_mask if padding_mask[:, 0].any() else None
        src_padding = next(iter(encoder_out["encoder_padding_mask"]), None)
        self_bias = self.cfg.prepare(x, self.training, causal(x.new_zeros(1, tgt_len, tgt_len)), own_padding)
        cross_bias = self.cfg.prepare(x, self.training, None, src_padding)

        def call(number: int, layer: DuoDecoderLayer, x: Tensor, aligned: bool) -> tuple[Tensor, Tensor | None]:
            return layer(x, self_bias, memory, cross_bias, aligned)

        return self._features(x, call, alignment)

    def steps(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]],
        cache: DecoderCache,
        alignment: Alignment,
    ) -> Features:
        """A single new token sees all before it: there is nothing to shut off."""
        x, tgt_len, bias = self.embedding(prev_output_tokens, cache.length), prev_output_tokens.shape[1], None
        if tgt_len > cache.length + 1:
            bias = causal(x.new_zeros(1, tgt_len, tgt_len))[:, cache.length :]
        src_padding = next(iter(encoder_out["encoder_padding_mask"]), None)
        if src_padding is not None:
            src_padding = src_padding[:: cache.beam]
        self_bias = self.cfg.prepare(x, self.training, bias, None, step=True)
        cross_bias = self.cfg.prepare(x, self.training, None, src_padding, step=True)

        def call(number: int, layer: DuoDecoderLayer, x: Tensor, aligned: bool) -> tuple[Tensor, Tensor | None]:
            return layer.step(x, self_bias, cache, number, cross_bias, aligned)

        return self._features(x, call, alignment)

    def _features(self, x: Tensor, call: Any, alignment: Alignment) -> Features:
        """Streams side by side, fused if the model does; weights: mean over streams and heads."""
        aligned, heads = alignment
        x, weights, states = self.through_layers(x, call, aligned)
        attn = None if weights is None else weights[:, :, :heads].mean(dim=(0, 2))
        x = side_by_side(x if self.layer_norm is None else self.layer_norm(x))
        return x if self.fusion is None else self.fusion(x), attn, [side_by_side(state) for state in states]

    def output_layer(self, features: Tensor, incremental_state: dict[str, Any] | None = None) -> Tensor:
        """features (B, T, d), or (B, T, n d) without fusion -> logits (B, T, V)."""
        if self.output_projection is not None:
            return self.output_projection(features)
        tables = [table.weight for table in self.embedding.tables()]
        if self.fused_tables is None:
            streams = features.chunk(len(tables), dim=-1)
            maps = self.embedding.maps()
            return logits_of_streams(
                [x if change is None else x @ change.weight for x, change in zip(streams, maps)], tables
            )
        steps = features.shape[1] if incremental_state is None else _STEPS
        if self.fused_tables.is_cheaper_factored(len(features) * steps, tables):
            return self.fused_tables.factored(features, tables)
        return F.linear(features, self._fused_table(tables, incremental_state))

    def rows_of(self, new_order: Tensor, cache: DecoderCache) -> Tensor:
        """The rows of a beam's hypotheses, of one stream; they are the same in the others."""
        return self._rows(new_order, len(cache.sentence) // self.cfg.streams.num_streams)

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """fairseq-generate, fairseq-interactive and from_pretrained call it: the weights are final."""
        if self.fused_tables is not None:
            self.fused_tables.keep_([table.weight for table in self.embedding.tables()])

    def _fused_table(self, tables: list[Tensor], incremental_state: dict[str, Any] | None) -> Tensor:
        """(V, d); in incremental decoding it is made once a batch, unless once for all."""
        assert self.fused_tables is not None
        if incremental_state is None or self.fused_tables.kept is not None:
            return self.fused_tables(tables)
        table = self.get_incremental_state(incremental_state, "table")
        if table is None:
            table = self.fused_tables(tables)
            self.set_incremental_state(incremental_state, "table", table)
        return table

    def _memory(self, encoder_out: dict[str, list[Tensor]]) -> Tensor:
        """The encoder's streams (n, B, S, kdim)."""
        return one_below_the_other(encoder_out["encoder_out"][0].transpose(0, 1), self.cfg.streams.num_streams)

    def _rows(self, rows: Tensor, batch: int) -> Tensor:
        """Numbers of rows among `batch` (B,) -> the same rows of each stream among n `batch`, (n B,)."""
        first = torch.arange(self.cfg.streams.num_streams, device=rows.device) * batch
        return (first.unsqueeze(1) + rows).flatten()

    def new_cache(self, encoder_out: dict[str, list[Tensor]]) -> DecoderCache:
        """Keys and values of cross-attention are computed once a sentence; the rows of a beam that stand together share
        them."""
        sentence = encoder_out["sentence"][0]
        rows, place = distinct_rows(sentence)
        distinct, beam = self._memory(encoder_out).index_select(1, rows), beam_of(place, len(rows))
        memory = [layer.encoder_attn.memory(distinct) for layer in cast(Iterable[DuoDecoderLayer], self.layers)]
        if beam == 1:
            place = self._rows(place, len(rows))
            memory = [(k.index_select(0, place), v.index_select(0, place)) for k, v in memory]
        return DecoderCache(self._rows(sentence, int(sentence.max()) + 1), memory, beam)
