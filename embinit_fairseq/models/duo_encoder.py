"""Encoder of `--arch duo_transformer_*`: fairseq's interface around layers that hold several streams.

n: streams, B: batch, S: src_len, C: width.
"""

from __future__ import annotations

from typing import Any

from fairseq.models import FairseqEncoder
from torch import Tensor, nn

from embinit_fairseq.models.duo_embedding import DuoEmbedding, DuoSideConfig, side_by_side
from embinit_fairseq.models.translation import check_length, encoder_output, reorder_rows
from embinit_fairseq.modules.duo_layers import DuoEncoderLayer


class DuoEncoder(FairseqEncoder):
    """Streams of embeddings, layers, (layer norm of pre-LN). Nothing looks at padding."""

    def __init__(self, cfg: DuoSideConfig, dictionary: Any, tables: list[nn.Embedding]) -> None:
        super().__init__(dictionary)
        self.cfg, self.padding_idx = cfg, tables[0].padding_idx
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
        padding_mask = src_tokens.eq(self.padding_idx)
        padding_mask = padding_mask if padding_mask.any() else None
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
