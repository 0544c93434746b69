"""The encoder of the tupe_* and bert_* architectures, built from their options."""

from __future__ import annotations

from typing import Any

from fairseq.models import FairseqEncoder
from torch import Tensor, nn

from embinit_fairseq.errors import OptionError
from embinit_fairseq.models._options import flag
from embinit_fairseq.modules.encoder_layer import LayerConfig
from embinit_fairseq.modules.heads import MaskedLMHead
from embinit_fairseq.modules.position_bias import check_buckets
from embinit_fairseq.modules.position_encoding import (
    POSITION_ENCODINGS,
    AddedPositions,
    PositionEncoding,
    PositionSizes,
)
from embinit_fairseq.modules.sentence_encoder import EncoderConfig, SentenceEncoder

#: options of positions -> what they need to have an effect
_POSITION_OPTIONS = {
    "rel_pos": "belongs to the tupe_* architectures",
    "tupe_tie_cls": "belongs to the tupe_* architectures",
    "tupe_reset": "has nothing to reset: it goes with tupe_* --rel-pos, without --tupe-tie-cls",
    "rel_pos_bins": "needs relative positions (--rel-pos, bert_r_* or bert_rel_*)",
    "max_rel_pos": "needs relative positions (--rel-pos, bert_r_* or bert_rel_*)",
}


class TupeEncoder(FairseqEncoder):
    """The sentence encoder and its language-model head.

    masking: is there a task that masks? Without, there is no head. shared: an encoder whose embeddings are used.
    """

    def __init__(self, cfg: Any, dictionary: Any, masking: bool, shared: SentenceEncoder | None = None) -> None:
        super().__init__(dictionary)
        self.sentence_encoder = build_sentence_encoder(cfg, dictionary, shared)
        embed_tokens = self.sentence_encoder.embed_tokens
        head = (embed_tokens, str(cfg.activation_fn), cfg.encoder_embed_dim)
        self.lm_head = MaskedLMHead(*head) if masking else None
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
        if not features_only and self.lm_head is None:
            raise OptionError(
                "this model has no language-model head, which a fine-tuned one leaves behind: fill masks and continue "
                "pre-training with the checkpoint of the pre-training (--task masked_lm)"
            )
        x, hiddens = self.sentence_encoder(src_tokens, masked_tokens, return_all_hiddens)
        extra = {"inner_states": hiddens if return_all_hiddens else None}
        return (x if features_only or self.lm_head is None else self.lm_head(x, masked_tokens)), extra

    def max_positions(self) -> int:
        """Longest input in tokens."""
        return self.longest


def build_sentence_encoder(cfg: Any, dictionary: Any, shared: SentenceEncoder | None = None) -> SentenceEncoder:
    """A SentenceEncoder for the options; raises OptionError for options that contradict each other.

    With `shared`, the embeddings (tokens, positions added to them, layer norm) are that encoder's.
    """
    positions = _build_positions(cfg)
    if shared is not None and isinstance(shared.positions, AddedPositions):
        assert isinstance(positions, AddedPositions)  # one option says what both are
        positions.embed_positions = shared.positions.embed_positions
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
    encoder.emb_layer_norm, encoder.logged = shared.emb_layer_norm, shared.logged
    return encoder


def _build_positions(cfg: Any) -> PositionEncoding:
    kind = str(cfg.position_encoding)
    known = POSITION_ENCODINGS[kind]
    for name, has_effect in (("rel_pos", known.relative == "optional"), ("tupe_tie_cls", known.resets)):
        if getattr(cfg, name) and not has_effect:
            raise OptionError(f"{flag(name)} {_POSITION_OPTIONS[name]} (--position-encoding is {kind})")
    buckets = known.has_buckets(cfg.rel_pos)
    if buckets:
        check_buckets(cfg.rel_pos_bins, cfg.max_rel_pos)
    sizes = PositionSizes(
        cfg.encoder_embed_dim,
        cfg.encoder_attention_heads,
        cfg.max_positions,
        num_buckets=cfg.rel_pos_bins if buckets else 0,
        max_distance=cfg.max_rel_pos,
        reset=str(cfg.tupe_reset) if known.resets and not cfg.tupe_tie_cls else None,
    )
    return known.build(sizes)


def function_options(cfg: Any) -> dict[str, Any]:
    """Options that decide what is computed with given weights, or which weights there are; not those of the generator.

    Those of positions are left out where they do not matter.
    """
    names = ["embed_dim", "ffn_embed_dim", "layers", "attention_heads", "normalize_before"]
    names = [*(f"encoder_{name}" for name in names), "embedding_normalize", "activation_fn", "position_encoding"]
    known = POSITION_ENCODINGS[str(cfg.position_encoding)]
    buckets = known.has_buckets(cfg.rel_pos)
    if known.limited:
        names.append("max_positions")
    if known.relative == "optional":
        names.append("rel_pos")
    if known.resets:
        names.append("tupe_tie_cls")
        if buckets and not cfg.tupe_tie_cls:
            names.append("tupe_reset")
    if buckets:
        names += ["rel_pos_bins", "max_rel_pos"]
    return {name: getattr(cfg, name) for name in names}


def check_effects(cfg: Any, defaults: Any) -> None:
    """Raises OptionError for an option of positions that is not the default and changes nothing."""
    effective = function_options(cfg)
    for name, need in _POSITION_OPTIONS.items():
        value = getattr(cfg, name)
        if name not in effective and str(value) != str(getattr(defaults, name)):
            raise OptionError(f"{flag(name)} {value} has no effect here: it {need}")
