"""`--arch tupe_transformer`: translation with untied positions in the self-attention of encoder and decoder.

Sizes and options are those of fairseq's `transformer`; nothing is added to the word embeddings, self-attention has its
positions as a bias (TUPE, Ke et al. 2021). With `--embed-init` the model shows whether untying removes the absorption
of positions that Kim et al. (2024) describe. `--positions` takes rotary positions or ALiBi instead, for comparison.

A position is a column, so a sentence after padding would be read as if it began later, by an amount that depends on its
neighbours in the batch. Its row is rotated until the sentence begins in column 0, and rotated back at the end. The
decoder of every translation model does so, and this encoder, too.

B: batch, T: tgt_len, S: src_len, C: embed_dim of a side, V: symbols.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
from dataclasses import dataclass
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.models import register_model
from torch import Tensor, nn

from embinit_fairseq.errors import OptionError
from embinit_fairseq.models._options import (
    SIDES,
    TranslationConfig,
    check_effects,
    check_ranges,
    option,
    register_presets,
    tied_output,
)
from embinit_fairseq.models._translation import (
    Side,
    TranslationDecoder,
    TranslationEncoder,
    TranslationModel,
    check_joined,
    leading_padding,
    rotate_left,
    side_of,
)
from embinit_fairseq.modules.decoder_layer import CrossAttention, DecoderCache, DecoderLayer, causal, next_power_of_two
from embinit_fairseq.modules.encoder_layer import EncoderLayer, SelfAttention
from embinit_fairseq.modules.fixed_positions import Rotation
from embinit_fairseq.modules.position_encoding import POSITION_ENCODINGS, PositionEncoding, PositionSizes

_ENCODINGS = {name: kind for name, kind in POSITION_ENCODINGS.items() if kind.translates}


@dataclass
class TupeTransformerConfig(TranslationConfig):
    """Hold the options of fairseq's `transformer` under the same names, and options of the positions."""

    positions: ChoiceEnum(list(_ENCODINGS)) = option(
        "untied",
        "positions of self-attention; "
        + "; ".join(f"{name}: {kind.name} ({kind.help})" for name, kind in _ENCODINGS.items()),
    )
    rel_pos: bool = option(False, "relative positions in addition to the untied ones (TUPE-R); the decoder's look back")
    rel_pos_bins: int = option(32, "buckets of relative positions")
    max_rel_pos: int = option(128, "distance from which on all share one bucket")


@register_model("tupe_transformer", dataclass=TupeTransformerConfig)
class TupeTransformerModel(TranslationModel):
    """Encoder and decoder with positions in their self-attention; every part learns, also in several processes."""

    @classmethod
    def build_model(cls, cfg: TupeTransformerConfig, task: Any) -> "TupeTransformerModel":
        """Build for a task with two dictionaries.

        Raises OptionError for options that are out of range or contradict each other.
        """
        check_ranges(cfg)
        source, target = task.source_dictionary, task.target_dictionary
        num_terms = 2 if str(cfg.positions) == "untied" else 1
        sides = [side_of(cfg, name, num_terms) for name in SIDES]
        dims = [side.layer.embed_dim for side in sides]
        tables = [nn.Embedding(len(source), dims[0], source.pad()), nn.Embedding(len(target), dims[1], target.pad())]
        if cfg.share_all_embeddings:
            check_joined(source, target)
            if dims[0] != dims[1]:
                raise OptionError(
                    f"--share-all-embeddings: --encoder-embed-dim {dims[0]} and --decoder-embed-dim {dims[1]} must be "
                    "the same"
                )
            tables[1] = tables[0]
        encoder = TupeTransformerEncoder(cfg, sides[0], source, tables[0])
        decoder = TupeTransformerDecoder(cfg, sides[1], target, tables[1], dims[0])
        return cls.initialised(cfg, encoder, decoder, tables)

    def check_training(self, checkpoint: Any, request: Any) -> None:
        """Raise OptionError, before a training, for options that have no effect."""
        is_untied, of_buckets = str(self.cfg.positions) == "untied", (self.cfg.rel_pos, "needs --rel-pos")
        needs = {"rel_pos": (is_untied, "needs --positions untied"), "rel_pos_bins": of_buckets}
        check_effects(self.cfg, TupeTransformerConfig(), {**needs, "max_rel_pos": of_buckets})


class TupeTransformerEncoder(TranslationEncoder):
    """Embeddings times embed_scale, dropout, padding to zero, layers, (layer norm of pre-LN)."""

    def __init__(self, cfg: TupeTransformerConfig, side: Side, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(side, dictionary)
        self.embed_scale = side.embed_scale
        self.embed_tokens = embed_tokens
        self.positions = _positions(cfg, side)
        self.dropout = nn.Dropout(side.layer.dropout)
        self.add_layers(lambda: EncoderLayer(side.layer))

    def embed(self, tokens: Tensor, padding_mask: Optional[Tensor]) -> Tensor:
        """Return the scaled embeddings (B, S, C) of tokens (B, S), zero at padding."""
        x = self.dropout(self.embed_scale * self.embed_tokens(tokens))
        return x if padding_mask is None else x.masked_fill(padding_mask.unsqueeze(-1), 0.0)

    def bias(self, src_len: int) -> Optional[Tensor]:
        """Return the bias of the positions."""
        return self.positions.bias(src_len)

    def rotation(self, length: int, first: int = 0) -> Optional[Rotation]:
        """Return the rotation of the positions."""
        return self.positions.rotation(length, first)

    def encode(self, tokens: Tensor, padding_mask: Optional[Tensor], all_hiddens: bool) -> list[Tensor]:
        """Encode sentences after moving each to column 0."""
        if padding_mask is None or not padding_mask[:, 0].any():
            return super().encode(tokens, padding_mask, all_hiddens)
        shift = leading_padding(padding_mask)
        states = super().encode(rotate_left(tokens, shift), rotate_left(padding_mask, shift), all_hiddens)
        return [rotate_left(state, -shift) for state in states]


class TupeTransformerDecoder(TranslationDecoder):
    """Embeddings times embed_scale, dropout, layers, (layer norm of pre-LN), projection onto the dictionary."""

    def __init__(
        self, cfg: TupeTransformerConfig, side: Side, dictionary: Any, embed_tokens: nn.Embedding, kdim: int
    ) -> None:
        super().__init__(side, dictionary)
        layer, self.embed_scale = side.layer, side.embed_scale
        self.embed_tokens = embed_tokens
        self.positions = _positions(cfg, side)
        self.dropout = nn.Dropout(layer.dropout)
        self.add_layers(lambda: DecoderLayer(layer, SelfAttention(layer), CrossAttention(layer, kdim)))
        self.output_projection = nn.Linear(layer.embed_dim, len(dictionary), bias=False)
        if tied_output(cfg):
            self.output_projection.weight = embed_tokens.weight

    def embed(self, tokens: Tensor, seen: int) -> Tensor:
        """Return the scaled embeddings (B, T - seen, C) of tokens (B, T) after the first `seen`."""
        return self.dropout(self.embed_scale * self.embed_tokens(tokens[:, seen:]))

    def bias(self, x: Tensor, tgt_len: int, cache: Optional[DecoderCache]) -> Optional[Tensor]:
        """Return the bias of the positions with the causal mask; a cache keeps it for the next power of two."""
        if cache is not None and cache.bias is not None and cache.bias.shape[-1] >= tgt_len:
            return cache.bias[:, cache.length : tgt_len, :tgt_len]
        longest = tgt_len if cache is None else min(next_power_of_two(tgt_len), self.side.max_positions)
        bias = self.positions.bias(longest)
        if bias is None:
            return super().bias(x, tgt_len, cache)
        bias = causal(bias)
        if cache is None:
            return bias
        cache.bias = bias
        return bias[:, cache.length : tgt_len, :tgt_len]

    def rotation(self, length: int, first: int = 0) -> Optional[Rotation]:
        """Return the rotation of the positions; the cache has rotated keys."""
        return self.positions.rotation(length, first)

    def output_layer(self, features: Tensor, incremental_state: Optional[dict[str, Any]] = None) -> Tensor:
        """Return logits (B, T, V) of features (B, T, C)."""
        return self.output_projection(features)


def _positions(cfg: TupeTransformerConfig, side: Side) -> PositionEncoding:
    """Return the positions of a side, without reset: in translation the first column is a word, not `[CLS]`."""
    sizes = PositionSizes(
        side.layer.embed_dim,
        side.layer.num_heads,
        side.max_positions,
        num_buckets=cfg.rel_pos_bins if cfg.rel_pos else 0,
        max_distance=cfg.max_rel_pos,
        bidirectional=side.name == "encoder",
    )
    return _ENCODINGS[str(cfg.positions)].build(sizes)


#: as in fairseq's preset of the same name
_IWSLT = {
    f"{side}_{name}": value for side in SIDES for name, value in (("ffn_embed_dim", 1024), ("attention_heads", 4))
}

register_presets("tupe_transformer", {"tupe_transformer_iwslt_de_en": _IWSLT, "tupe_transformer_wmt_en_de": {}})
