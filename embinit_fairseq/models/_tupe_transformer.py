"""Encoder and decoder of `--arch tupe_transformer`: fairseq's interfaces around layers that are batch first.

Nothing positional is added to the embeddings; self-attention gets its positions as a bias (TUPE, Ke et al. 2021).
B: batch, T: tgt_len, S: src_len, C: dimension of a side.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from fairseq.models import FairseqEncoder
from torch import Tensor, nn

from embinit_fairseq.models._translation import (
    Alignment,
    CachedDecoder,
    Features,
    check_length,
    encoder_output,
    reorder_rows,
)
from embinit_fairseq.modules.attention_kernels import choose_kernel, prepare, situation
from embinit_fairseq.modules.decoder_layer import (
    DecoderCache,
    DecoderLayer,
    causal,
    distinct_rows,
    leading_padding,
    next_power_of_two,
    rotate_left,
)
from embinit_fairseq.modules.encoder_layer import EncoderLayer, LayerConfig
from embinit_fairseq.modules.position_encoding import UntiedPositions, untied_positions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SideConfig:
    """What encoder and decoder have in common. rel_pos_bins: buckets of relative positions, 0 for none."""

    layer: LayerConfig
    num_layers: int
    max_positions: int
    scale_embedding: bool = True
    rel_pos_bins: int = 0
    max_rel_pos: int = 128
    attention_kernel: str = "auto"

    @property
    def embed_scale(self) -> float:
        return math.sqrt(self.layer.embed_dim) if self.scale_embedding else 1.0

    def positions(self, bidirectional: bool) -> UntiedPositions:
        """No reset: in translation the first column is a word like any other, not `<s>`."""
        return untied_positions(
            self.layer.embed_dim,
            self.layer.num_heads,
            self.max_positions,
            reset=None,
            num_buckets=self.rel_pos_bins,
            max_distance=self.max_rel_pos,
            bidirectional=bidirectional,
        )

    def kernel(self, x: Tensor, training: bool, step: bool = False) -> str:
        """For a step of one query fusing saves nothing on a CPU, and plain products are faster."""
        if step and self.attention_kernel == "auto" and x.device.type == "cpu":
            return "eager"
        dropout = self.layer.attention_dropout if training else 0.0
        kernel, _ = choose_kernel(
            self.attention_kernel, situation(x, self.layer.embed_dim // self.layer.num_heads, dropout)
        )
        return kernel


class TupeTransformerEncoder(FairseqEncoder):
    """Embeddings times embed_scale, dropout, padding to zero, layers, (layer norm of pre-LN)."""

    def __init__(self, cfg: SideConfig, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(dictionary)
        self.cfg, self.embed_scale, self.padding_idx = cfg, cfg.embed_scale, cast(int, embed_tokens.padding_idx)
        self.embed_tokens = embed_tokens
        self.positions = cfg.positions(bidirectional=True)
        self.dropout = nn.Dropout(cfg.layer.dropout)
        self.layers = nn.ModuleList(EncoderLayer(cfg.layer) for _ in range(cfg.num_layers))
        self.layer_norm = nn.LayerNorm(cfg.layer.embed_dim) if cfg.layer.normalize_before else None

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor | None = None, return_all_hiddens: bool = False
    ) -> dict[str, list[Tensor]]:
        """src_tokens (B, S), padded on either side -> fairseq's dictionary of lists; an empty list stands for None.

        encoder_out (S, B, C) and encoder_padding_mask (B, S) have the columns of src_tokens; encoder_states, each
        (S, B, C), if return_all_hiddens; src_lengths (B, 1); sentence (B,): the number of a row's sentence, which goes
        with the row wherever beam search puts it. Raises DataError for a sentence that is too long.
        """
        check_length(src_tokens, self.cfg.max_positions, "source")
        padding_mask, shift = self._padding(src_tokens)
        if shift is None or padding_mask is None:
            states = self._encode(src_tokens, padding_mask, return_all_hiddens)
        else:
            states = self._encode(rotate_left(src_tokens, shift), rotate_left(padding_mask, shift), return_all_hiddens)
            states = [rotate_left(state, -shift) for state in states]
        states = [state.transpose(0, 1) for state in states]
        hiddens = states if return_all_hiddens else []
        return encoder_output(src_tokens, self.padding_idx, states[-1], padding_mask, hiddens)

    def _encode(self, tokens: Tensor, padding_mask: Tensor | None, all_hiddens: bool) -> list[Tensor]:
        """tokens (B, S) without padding in front -> the output (B, S, C), behind the hidden states if wanted."""
        x = self.dropout(self.embed_scale * self.embed_tokens(tokens))
        if padding_mask is not None:
            x = x.masked_fill(padding_mask.unsqueeze(-1), 0.0)
        kernel = self.cfg.kernel(x, self.training)
        attn_bias = prepare(kernel, self.positions.bias(tokens.shape[1]), padding_mask)
        hiddens = []
        for layer in self.layers:
            if all_hiddens:
                hiddens.append(x)
            x = layer(x, attn_bias)
        return [*hiddens, x if self.layer_norm is None else self.layer_norm(x)]

    def _padding(self, src_tokens: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """(B, S), True at padding, and how many columns each row must move; None if there is none, or nothing to do."""
        padding_mask = src_tokens.eq(self.padding_idx)
        any_padding, in_front = torch.stack([padding_mask.any(), padding_mask[:, 0].any()]).tolist()
        return (padding_mask if any_padding else None), (leading_padding(padding_mask) if in_front else None)

    def reorder_encoder_out(self, encoder_out: dict[str, list[Tensor]], new_order: Tensor) -> dict[str, list[Tensor]]:
        """Row n becomes what row `new_order[n]` was. Nothing is copied where rows of one sentence are exchanged."""
        return reorder_rows(encoder_out, new_order)

    def max_positions(self) -> int:
        """Longest input in tokens, `</s>` included."""
        return self.cfg.max_positions


class TupeTransformerDecoder(CachedDecoder):
    """Embeddings times embed_scale, dropout, layers, (layer norm of pre-LN), projection onto the dictionary."""

    def __init__(
        self, cfg: SideConfig, dictionary: Any, embed_tokens: nn.Embedding, kdim: int, share_input_output_embed: bool
    ) -> None:
        super().__init__(dictionary)
        self.cfg, self.embed_scale, self.padding_idx = cfg, cfg.embed_scale, cast(int, embed_tokens.padding_idx)
        self.embed_tokens = embed_tokens
        self.positions = cfg.positions(bidirectional=False)
        self.dropout = nn.Dropout(cfg.layer.dropout)
        self.layers = nn.ModuleList(DecoderLayer(cfg.layer, kdim) for _ in range(cfg.num_layers))
        self.layer_norm = nn.LayerNorm(cfg.layer.embed_dim) if cfg.layer.normalize_before else None
        self.output_projection = nn.Linear(cfg.layer.embed_dim, len(dictionary), bias=False)
        if share_input_output_embed:
            self.output_projection.weight = embed_tokens.weight

    def at_once(
        self, prev_output_tokens: Tensor, encoder_out: dict[str, list[Tensor]], alignment: Alignment
    ) -> Features:
        """Rows with padding in front are rotated, and back at the end: positions are columns."""
        padding_mask, shift = prev_output_tokens.eq(self.padding_idx), None
        if padding_mask[:, 0].any():  # behind a sentence padding does no harm: nobody looks at the future
            shift = leading_padding(padding_mask)
            prev_output_tokens = rotate_left(prev_output_tokens, shift)
        x = self._embed(prev_output_tokens)
        memory = encoder_out["encoder_out"][0].transpose(0, 1)
        kernel = self.cfg.kernel(x, self.training)
        self_bias = prepare(kernel, causal(self.positions.bias(x.shape[1])), None)
        cross_bias = prepare(kernel, None, next(iter(encoder_out["encoder_padding_mask"]), None))

        def call(number: int, layer: DecoderLayer, x: Tensor, aligned: bool) -> tuple[Tensor, Tensor | None]:
            return layer(x, self_bias, memory, cross_bias, aligned)

        x, attn, states = self._features(x, call, alignment)
        if shift is not None:
            x, attn = rotate_left(x, -shift), None if attn is None else rotate_left(attn, -shift)
            states = [rotate_left(state, -shift) for state in states]
        return x, attn, states

    def steps(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]],
        cache: DecoderCache,
        alignment: Alignment,
    ) -> Features:
        """Positions and causal mask are kept in the cache, for the next power of two."""
        tgt_len = prev_output_tokens.shape[1]
        x = self._embed(prev_output_tokens[:, cache.length :])
        kernel = self.cfg.kernel(x, self.training, step=True)
        if cache.bias is None or cache.bias.shape[-1] < tgt_len:
            cache.bias = causal(self.positions.bias(min(next_power_of_two(tgt_len), self.cfg.max_positions)))
        self_bias = prepare(kernel, cache.bias[:, cache.length : tgt_len, :tgt_len], None)
        cross_bias = prepare(kernel, None, next(iter(encoder_out["encoder_padding_mask"]), None))

        def call(number: int, layer: DecoderLayer, x: Tensor, aligned: bool) -> tuple[Tensor, Tensor | None]:
            return layer.step(x, self_bias, cache, number, cross_bias, aligned)

        return self._features(x, call, alignment)

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.embed_scale * self.embed_tokens(tokens))

    def _features(self, x: Tensor, call: Any, alignment: Alignment) -> Features:
        aligned, heads = alignment
        x, weights, states = self.through_layers(x, call, aligned)
        attn = None if weights is None else weights[:, :heads].mean(dim=1)
        return x if self.layer_norm is None else self.layer_norm(x), attn, states

    def new_cache(self, encoder_out: dict[str, list[Tensor]]) -> DecoderCache:
        """Keys and values of cross-attention are computed once a sentence, whatever the beam."""
        sentence = encoder_out["sentence"][0]
        rows, place = distinct_rows(sentence)
        distinct = encoder_out["encoder_out"][0].transpose(0, 1).index_select(0, rows)
        memory = (layer.encoder_attn.memory(distinct) for layer in cast(Iterable[DecoderLayer], self.layers))
        return DecoderCache(sentence, [(k.index_select(0, place), v.index_select(0, place)) for k, v in memory])

    def output_layer(self, features: Tensor, incremental_state: dict[str, Any] | None = None) -> Tensor:
        """features (B, T, C) -> logits (B, T, V)."""
        return self.output_projection(features)
