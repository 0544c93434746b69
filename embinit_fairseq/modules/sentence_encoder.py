"""Define a BERT-type sentence encoder with exchangeable position encoding (Ke et al. 2021).

    x = drop(LN(positions.embed(E[tokens])));  x = layer(x) for each layer, all with one attention bias

C: dimension of the layers, N: tokens of a batch without its padding (`Packing`).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from embinit_fairseq.errors import DataError
from embinit_fairseq.modules.attention_kernels import choose_kernel, prepare
from embinit_fairseq.modules.encoder_layer import EncoderLayer, LayerConfig, Packing, packing_of
from embinit_fairseq.modules.position_encoding import PositionEncoding

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EncoderConfig:
    """Hold sizes and options of a sentence encoder.

    Args:
        layer: the configuration of every layer.
        embedding_normalize: True for a layer norm on the embeddings, before dropout.
    """

    layer: LayerConfig
    num_layers: int
    embedding_normalize: bool = False
    attention_kernel: str = "auto"
    checkpoint_activations: bool = False


class SentenceEncoder(nn.Module):
    """Embedding, (positions), (layer norm), dropout, (projection), padding to zero, layers, (layer norm of pre-LN).

    In a batch with much padding everything except attention takes (N, C), not (batch, src_len, C). Embeddings are
    projected if their dimension differs from the layers' (ELECTRA's generator).
    """

    def __init__(self, cfg: EncoderConfig, embed_tokens: nn.Embedding, positions: PositionEncoding, bos: int) -> None:
        super().__init__()
        self.cfg, self.bos = cfg, bos
        self.padding_idx = cast(int, embed_tokens.padding_idx)
        self.embed_tokens = embed_tokens
        self.positions = positions
        input_dim, embed_dim = embed_tokens.embedding_dim, cfg.layer.embed_dim
        self.emb_layer_norm = nn.LayerNorm(input_dim) if cfg.embedding_normalize else None
        self.dropout = nn.Dropout(cfg.layer.dropout)
        self.embed_proj = nn.Linear(input_dim, embed_dim) if input_dim != embed_dim else None
        self.layers = nn.ModuleList(EncoderLayer(cfg.layer) for _ in range(cfg.num_layers))
        self.layer_norm = nn.LayerNorm(embed_dim) if cfg.layer.normalize_before else None

    def forward(
        self, src_tokens: Tensor, masked_tokens: Tensor | None = None, return_all_hiddens: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Return features (batch, src_len, C), without meaning at padding, and hidden states of the same shape.

        Args:
            src_tokens: (batch, src_len).
            masked_tokens: (batch, src_len), True where a token may have been replaced, `<s>` too.
            return_all_hiddens: return the embeddings and the output of every layer, else an empty list.

        Raises:
            DataError: padding is on the left, or a first token is neither `<s>` nor masked.
        """
        padding_mask, packing = self._padding(src_tokens, masked_tokens)
        x = self.positions.embed(self.embed_tokens(src_tokens))
        if packing is not None:
            x = packing.pack(x)
        if self.emb_layer_norm is not None:
            x = self.emb_layer_norm(x)
        x = self.dropout(x)
        if self.embed_proj is not None:
            x = self.embed_proj(x)
        if packing is None and padding_mask is not None:
            x = x.masked_fill(padding_mask.unsqueeze(-1), 0.0)
        tgt_len = src_tokens.shape[1]
        bias, rotation = self.positions.bias(tgt_len), self.positions.rotation(tgt_len)
        context = prepare(self._kernel(x.device.type), bias, padding_mask, rotation)
        projections = self.positions.projections(tgt_len)
        hiddens = [x] if return_all_hiddens else []
        for layer in cast(Iterable[EncoderLayer], self.layers):
            if self.cfg.checkpoint_activations and self.training and torch.is_grad_enabled():
                x = checkpoint(layer, x, context, projections, packing, use_reentrant=False)
            else:
                x = layer(x, context, projections, packing)
            if return_all_hiddens:
                hiddens.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
            if return_all_hiddens:
                hiddens[-1] = x
        if packing is None:
            return x, hiddens
        hiddens = [packing.spread(hidden) for hidden in hiddens]
        return (hiddens[-1] if hiddens else packing.spread(x)), hiddens

    def _kernel(self, device: str) -> str:
        kernel, reason = choose_kernel(self.cfg.attention_kernel, device, torch.is_grad_enabled())
        mode = "training" if self.training else "evaluation"
        _log_once(f"attention in {mode} on {device}: {kernel} ({reason})")
        return kernel

    def _padding(self, src_tokens: Tensor, masked_tokens: Tensor | None) -> tuple[Tensor | None, Packing | None]:
        """Return the padding mask (batch, src_len) or None, and the packing or None. Checks the first column.

        All numbers come from the device in one transfer.
        """
        padding_mask = src_tokens.eq(self.padding_idx)
        first_is_other = src_tokens[:, 0].ne(self.bos)
        if masked_tokens is not None:
            first_is_other = first_is_other & ~masked_tokens[:, 0]
        facts = torch.stack([padding_mask.sum(), padding_mask[:, 0].sum(), first_is_other.sum()])
        padding, left_padding, no_bos = facts.tolist()
        if left_padding:
            raise DataError(
                "a sentence begins with padding: positions are counted from the first column, so pad on the right "
                "(as --task masked_lm and sentence_prediction do)"
            )
        if no_bos and self.positions.untie_cls:
            raise DataError(
                "a sentence does not begin with <s>, but untied positions treat the first column as such: add "
                "--init-token 0 (sentence_prediction), or use --tupe-tie-cls"
            )
        if not padding:
            return None, None
        return padding_mask, packing_of(padding_mask, padding)


@functools.cache
def _log_once(line: str) -> None:
    logger.info(line)
