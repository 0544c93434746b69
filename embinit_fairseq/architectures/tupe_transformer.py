"""Encoder and decoder of `--arch tupe_transformer`: fairseq's interfaces around layers that are batch first.

Nothing positional is added to the embeddings; self-attention gets its positions as a bias (TUPE, Ke et al. 2021).
B: batch, T: tgt_len, S: src_len, C: width of a side.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from fairseq.models import FairseqEncoder, FairseqIncrementalDecoder
from torch import Tensor, nn

from embinit_fairseq.architectures.translation import check_length, encoder_output, reorder_rows
from embinit_fairseq.errors import DataError
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


class TupeTransformerDecoder(FairseqIncrementalDecoder):
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

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]],
        incremental_state: dict[str, Any] | None = None,
        features_only: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """prev_output_tokens (B, T) -> logits (B, T, V), or features (B, T, C) with features_only.

        The second result holds `attn`, the weights of cross-attention (B, T, S) of one layer (default: the last), mean
        over heads (default: all), and `inner_states`, each (T, B, C). With an incremental_state prev_output_tokens is
        the whole prefix, and the results are those of the tokens that were not given before.
        """
        x, extra = self.extract_features(
            prev_output_tokens, encoder_out, incremental_state, alignment_layer, alignment_heads
        )
        return (x if features_only else self.output_layer(x)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]],
        incremental_state: dict[str, Any] | None = None,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """As forward with features_only. Raises DataError for a target that is too long."""
        check_length(prev_output_tokens, self.cfg.max_positions, "target")
        cache = None if incremental_state is None else self._cache(incremental_state, encoder_out)
        tokens, shift = self._tokens(prev_output_tokens, cache)
        x = self.dropout(self.embed_scale * self.embed_tokens(tokens))
        memory = encoder_out["encoder_out"][0].transpose(0, 1)
        kernel = self.cfg.kernel(x, self.training, step=cache is not None)
        self_bias = prepare(kernel, self._bias(prev_output_tokens.shape[1], cache), None)
        cross_bias = prepare(kernel, None, next(iter(encoder_out["encoder_padding_mask"]), None))
        aligned = len(self.layers) - 1 if alignment_layer is None else alignment_layer
        attn, states = None, [x]
        for at, layer in enumerate(cast(Iterable[DecoderLayer], self.layers)):
            if cache is None:
                x, weights = layer(x, self_bias, memory, cross_bias, at == aligned)
            else:
                x, weights = layer.step(x, self_bias, cache, at, cross_bias, at == aligned)
            attn = attn if weights is None else weights[:, :alignment_heads].mean(dim=1)
            states.append(x)
        if cache is not None:
            cache.advance(x.shape[1])
        x = x if self.layer_norm is None else self.layer_norm(x)
        if shift is not None:
            x, attn, *states = (rotate_left(each, -shift) for each in (x, attn, *states))
        return x, {"attn": [attn], "inner_states": [state.transpose(0, 1) for state in states]}

    def output_layer(self, features: Tensor) -> Tensor:
        """features (B, T, C) -> logits (B, T, V)."""
        return self.output_projection(features)

    def reorder_incremental_state(self, incremental_state: dict[str, Any], new_order: Tensor) -> None:
        """Row n becomes what row `new_order[n]` was."""
        cache = self.get_incremental_state(incremental_state, "cache")
        if cache is not None:
            cache.reorder(new_order)

    def max_positions(self) -> int:
        """Longest output in tokens, `</s>` included."""
        return self.cfg.max_positions

    def _cache(self, incremental_state: dict[str, Any], encoder_out: dict[str, list[Tensor]]) -> DecoderCache:
        """The cache of this batch; keys and values of cross-attention are computed at its start, once a sentence."""
        cache = self.get_incremental_state(incremental_state, "cache")
        if cache is None:
            sentence = encoder_out["sentence"][0]
            rows, place = distinct_rows(sentence)
            distinct = encoder_out["encoder_out"][0].transpose(0, 1).index_select(0, rows)
            memory = (layer.encoder_attn.memory(distinct) for layer in cast(Iterable[DecoderLayer], self.layers))
            cache = DecoderCache(sentence, [(k.index_select(0, place), v.index_select(0, place)) for k, v in memory])
            self.set_incremental_state(incremental_state, "cache", cache)
        return cache

    def _tokens(self, prev_output_tokens: Tensor, cache: DecoderCache | None) -> tuple[Tensor, Tensor | None]:
        """The tokens to be computed, and how far rows with padding in front had to move, if there are any."""
        if cache is not None:
            if prev_output_tokens.shape[1] <= cache.length:
                raise DataError(
                    f"incremental decoding was given {prev_output_tokens.shape[1]} tokens after {cache.length}: "
                    "prev_output_tokens must be the whole prefix, with at least one token more than before"
                )
            return prev_output_tokens[:, cache.length :], None
        padding_mask = prev_output_tokens.eq(self.padding_idx)
        if not padding_mask[:, 0].any():  # behind a sentence padding does no harm: nobody looks at the future
            return prev_output_tokens, None
        shift = leading_padding(padding_mask)
        return rotate_left(prev_output_tokens, shift), shift

    def _bias(self, tgt_len: int, cache: DecoderCache | None) -> Tensor:
        """(num_heads, new tokens, tgt_len): positions and causal mask. A cache holds them for the next power of two."""
        if cache is None:
            return causal(self.positions.bias(tgt_len))
        if cache.bias is None or cache.bias.shape[-1] < tgt_len:
            cache.bias = causal(self.positions.bias(min(next_power_of_two(tgt_len), self.cfg.max_positions)))
        return cache.bias[:, cache.length : tgt_len, :tgt_len]
