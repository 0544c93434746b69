"""The encoder of the tupe_* and bert_* architectures, built from their options."""

from __future__ import annotations

from typing import Any

from fairseq.models import FairseqEncoder
from torch import Tensor, nn

from embinit_fairseq.errors import OptionError
from embinit_fairseq.modules.encoder_layer import LayerConfig
from embinit_fairseq.modules.heads import MaskedLMHead
from embinit_fairseq.modules.position_bias import check_buckets
from embinit_fairseq.modules.position_encoding import (
    AddedPositions,
    FourTermPositions,
    PositionEncoding,
    RelativePositions,
    untied_positions,
)
from embinit_fairseq.modules.sentence_encoder import EncoderConfig, SentenceEncoder


class TupeEncoder(FairseqEncoder):
    """The sentence encoder and its language-model head; with `shared`, on that encoder's embeddings."""

    def __init__(self, cfg: Any, dictionary: Any, shared: SentenceEncoder | None = None) -> None:
        super().__init__(dictionary)
        self.sentence_encoder = build_sentence_encoder(cfg, dictionary, shared)
        embed_tokens = self.sentence_encoder.embed_tokens
        self.lm_head = MaskedLMHead(embed_tokens, str(cfg.activation_fn), cfg.encoder_embed_dim)
        self.longest = cfg.max_positions

    def forward(
        self,
        src_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        masked_tokens: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """As `TupeModel.forward`, without classification heads."""
        x, hiddens = self.sentence_encoder(src_tokens, masked_tokens, return_all_hiddens)
        extra = {"inner_states": hiddens if return_all_hiddens else None}
        return (x if features_only else self.lm_head(x, masked_tokens)), extra

    def max_positions(self) -> int:
        """Longest input in tokens."""
        return self.longest


def build_sentence_encoder(cfg: Any, dictionary: Any, shared: SentenceEncoder | None = None) -> SentenceEncoder:
    """A SentenceEncoder for the options; raises OptionError for options that contradict each other.

    With `shared`, the embeddings (tokens, positions added to them, layer norm) are that encoder's.
    """
    added = shared is not None and str(cfg.position_encoding) == "added"
    positions = shared.positions if added else _build_positions(cfg)
    layer = LayerConfig(
        embed_dim=cfg.encoder_embed_dim,
        ffn_embed_dim=cfg.encoder_ffn_embed_dim,
        num_heads=cfg.encoder_attention_heads,
        num_terms=positions.num_terms,
        dropout=cfg.dropout,
        attention_dropout=cfg.attention_dropout,
        activation_dropout=cfg.activation_dropout,
        activation=str(cfg.activation_fn),
        normalize_before=cfg.encoder_normalize_before,
    )
    config = EncoderConfig(
        layer=layer,
        num_layers=cfg.encoder_layers,
        embedding_normalize=cfg.embedding_normalize,
        attention_kernel=str(cfg.attention_kernel),
        checkpoint_activations=cfg.checkpoint_activations,
    )
    if shared is None:
        embed_tokens = nn.Embedding(len(dictionary), cfg.encoder_embed_dim, dictionary.pad())
        return SentenceEncoder(config, embed_tokens, positions, dictionary.bos())
    encoder = SentenceEncoder(config, shared.embed_tokens, positions, dictionary.bos())
    encoder.emb_layer_norm = shared.emb_layer_norm
    return encoder


def _build_positions(cfg: Any) -> PositionEncoding:
    kind, dim, num_heads = str(cfg.position_encoding), cfg.encoder_embed_dim, cfg.encoder_attention_heads
    if kind != "untied":
        for flag, given in (("--rel-pos", cfg.rel_pos), ("--tupe-tie-cls", cfg.tupe_tie_cls)):
            if given:
                raise OptionError(f"{flag} belongs to the tupe_* architectures (--position-encoding is {kind})")
    if str(cfg.tupe_reset) == "paper" and (kind != "untied" or cfg.tupe_tie_cls):
        raise OptionError("--tupe-reset paper has nothing to reset: it goes with tupe_* without --tupe-tie-cls")
    check_buckets(cfg.rel_pos_bins, cfg.max_rel_pos)
    if kind == "added":
        return AddedPositions(dim, cfg.max_positions)
    if kind == "relative":
        return RelativePositions(num_heads, cfg.rel_pos_bins, cfg.max_rel_pos)
    if kind == "four_terms":
        return FourTermPositions(dim, cfg.max_positions)
    return untied_positions(
        dim,
        num_heads,
        cfg.max_positions,
        reset=None if cfg.tupe_tie_cls else str(cfg.tupe_reset),
        num_buckets=cfg.rel_pos_bins if cfg.rel_pos else 0,
        max_distance=cfg.max_rel_pos,
    )
