"""`--arch duo_transformer_*`: translation with two embeddings of every word. Li et al. 2020, section 3.2 (Duo).

No code of the authors is public and the text leaves choices open; ours are in docs/duo.md. The options --duo-streams,
--duo-share-weights, --duo-norm and --duo-fusion are the rows of the paper's Table 5.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.models import register_model
from torch import nn

from embinit_fairseq.errors import OptionError
from embinit_fairseq.models._duo import SUFFIXES, DuoDecoder, DuoEncoder, DuoSideConfig
from embinit_fairseq.models._options import (
    SIDES,
    TranslationConfig,
    check_joined,
    check_ranges,
    flag,
    layer_config,
    register_presets,
    side_option,
    tied_output,
)
from embinit_fairseq.models._translation import TranslationModel
from embinit_fairseq.modules.duo import SHARING, StreamConfig
from embinit_fairseq.modules.initialisation import init_duo_params, init_table

# ---- Options of `--arch duo_transformer_*`: what they are, which go together, what they make of a side --------------

ON_OFF = ChoiceEnum(["on", "off"])
#: of --duo-share-weights, in every preset
DEFAULT_SHARING = "stream"
#: --duo-share-weights, as command lines and checkpoints had it before there was `pair`
_OLD_SHARING = {"on": "stream"}
#: sizes that a side has for itself
_SIZES = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before", "learned_pos")
#: options that only a second stream has
_DUO = ("duo_share_weights", "duo_norm", "duo_fusion")


@dataclass
class DuoTransformerConfig(TranslationConfig):
    """Options of fairseq's `transformer` under the same names, and those of the two streams."""

    duo_streams: int = field(
        default=2, metadata={"help": "2: two embeddings of every word; 1: fairseq's transformer, to compare with"}
    )
    duo_share_weights: ChoiceEnum([*SHARING, *_OLD_SHARING]) = field(
        default=DEFAULT_SHARING,
        metadata={
            "help": "projections for queries, keys and values. "
            + "; ".join(f"{name}: {sharing.help}" for name, sharing in SHARING.items())
            + ". "
            + ", ".join(f"({old}: the older name of {new})" for old, new in _OLD_SHARING.items())
        },
    )
    duo_norm: ChoiceEnum(["off", *SIDES, "all"]) = field(
        default="decoder", metadata={"help": "where residuals are those of the values' stream (equation 6)"}
    )
    duo_fusion: ON_OFF = field(
        default="on",
        metadata={"help": "fusion layer, and logits against a projection of both embedding matrices side by side"},
    )
    encoder_dim_s: Optional[int] = field(
        default=None,
        metadata={
            "help": "dimension of the encoder's first embedding matrix, mapped to --encoder-embed-dim (default: that)"
        },
    )
    encoder_dim_p: Optional[int] = field(default=None, metadata={"help": "of its second embedding matrix"})
    decoder_dim_s: Optional[int] = field(
        default=None,
        metadata={"help": "of the decoder's first (default: --decoder-embed-dim; the encoder's if they are shared)"},
    )
    decoder_dim_p: Optional[int] = field(default=None, metadata={"help": "of its second embedding matrix"})
    encoder_learned_pos: bool = field(default=False, metadata={"help": "learned positions instead of sinusoids"})
    decoder_learned_pos: bool = field(default=False, metadata={"help": "learned positions instead of sinusoids"})
    no_token_positional_embeddings: bool = field(default=False, metadata={"help": "no positions at all"})


def check_options(cfg: Any) -> None:
    """Raises OptionError, which names the flag, for numbers that no model can have."""
    check_ranges(cfg)
    if cfg.duo_streams not in (1, len(SUFFIXES)):
        raise OptionError(f"--duo-streams {cfg.duo_streams}: must be 1 or {len(SUFFIXES)}")
    for name in (f"{side}_dim_{stream}" for side in SIDES for stream in "sp"):
        dim = getattr(cfg, name)
        if dim is not None and dim < 1:
            raise OptionError(f"{flag(name)} {dim}: must be at least 1")
        if dim is not None and name.endswith("_p") and cfg.duo_streams == 1:
            raise OptionError(f"{flag(name)} is for a second stream: drop it or --duo-streams 1")
    for side in SIDES:
        width, learned = (side_option(cfg, side, name) for name in ("embed_dim", "learned_pos"))
        if width < 4 and not (learned or cfg.no_token_positional_embeddings):
            raise OptionError(f"--{side}-embed-dim {width}: sinusoidal positions need a dimension of 4 or more")


def check_shared(cfg: Any, source: Any, target: Any) -> None:
    """--share-all-embeddings: raises OptionError for dictionaries or embedding matrices that cannot be one."""
    check_joined(source, target)
    for stream, ours, theirs in zip("sp", *(table_dims(cfg, side) for side in SIDES)):
        if ours != theirs:
            raise OptionError(
                f"--share-all-embeddings: --decoder-dim-{stream} {theirs}, but the encoder's matrix, which is to "
                f"be the same, has {ours} columns: drop it, or give --encoder-dim-{stream} {theirs}"
            )


def table_dims(cfg: Any, side: str) -> list[int]:
    """Dimensions of a side's embedding matrices: as given, else its embed_dim; the encoder's if they are shared."""
    if side == "decoder" and cfg.share_all_embeddings:
        defaults = table_dims(cfg, "encoder")
    else:
        defaults = [side_option(cfg, side, "embed_dim")] * cfg.duo_streams
    return [getattr(cfg, f"{side}_dim_{stream}") or default for stream, default in zip("sp", defaults)]


def sharing(cfg: Any) -> str:
    """What --duo-share-weights says, in one of the names of SHARING."""
    given = str(cfg.duo_share_weights)
    return _OLD_SHARING.get(given, given)


def side_config(cfg: Any, side: str) -> DuoSideConfig:
    """What the options make of encoder or decoder."""
    streams = StreamConfig(
        cfg.duo_streams,
        # one stream has no sharing: its keys and values are those of an ordinary transformer
        share_weights=sharing(cfg) if cfg.duo_streams > 1 else "off",
        duo_norm=str(cfg.duo_norm) in ("all", side),
    )
    return DuoSideConfig(
        layer=layer_config(cfg, side),
        streams=streams,
        num_layers=side_option(cfg, side, "layers"),
        max_positions=cfg.max_source_positions if side == "encoder" else cfg.max_target_positions,
        scale_embedding=not cfg.no_scale_embedding,
        positions=not cfg.no_token_positional_embeddings,
        learned_pos=side_option(cfg, side, "learned_pos"),
        fusion=str(cfg.duo_fusion) == "on",
        attention_kernel=str(cfg.attention_kernel),
    )


# ----------------------------------------------------------------------------------------------------------------------


@register_model("duo_transformer", dataclass=DuoTransformerConfig)
class DuoTransformerModel(TranslationModel):
    """Encoder and decoder with one or two streams."""

    @classmethod
    def build_model(cls, cfg: DuoTransformerConfig, task: Any) -> "DuoTransformerModel":
        """Build for a task with two dictionaries.

        Raises OptionError for options out of range and for those that contradict each other.
        """
        check_options(cfg)
        source, target = task.source_dictionary, task.target_dictionary
        sides = [side_config(cfg, side) for side in SIDES]
        tables = [_tables(cfg, *of_side) for of_side in zip(SIDES, (source, target))]
        if cfg.share_all_embeddings:
            check_shared(cfg, source, target)
            tables[1] = tables[0]
        encoder = DuoEncoder(sides[0], source, tables[0])
        decoder = DuoDecoder(sides[1], target, tables[1], sides[0].layer.embed_dim, tied_output(cfg))
        model = cls(encoder, decoder)
        model.cfg = cfg
        model.apply(init_duo_params)
        if decoder.output_projection is not None:
            init_table(decoder.output_projection.weight, decoder.output_projection.in_features)
        for table in {id(table): table for side in tables for table in side}.values():
            init_table(table.weight, table.embedding_dim)
            nn.init.zeros_(table.weight[table.padding_idx])
        return model

    def embedding_slots(self) -> dict[str, tuple[nn.Embedding, Any, nn.Module]]:
        """For `--embed-init`: encoder, encoder_p, decoder, decoder_p -> (matrix, dictionary, where it is used)."""
        return {
            f"{name}{suffix}": (table, side.dictionary, side.embedding)
            for name, side in (("encoder", self.encoder), ("decoder", self.decoder))
            for suffix, table in zip(SUFFIXES, side.embedding.tables())
        }


def _tables(cfg: DuoTransformerConfig, side: str, dictionary: Any) -> list[nn.Embedding]:
    return [nn.Embedding(len(dictionary), dim, dictionary.pad()) for dim in table_dims(cfg, side)]


def _sizes(layers: int, width: int, ffn: int, heads: int) -> dict[str, int]:
    values = {"layers": layers, "embed_dim": width, "ffn_embed_dim": ffn, "attention_heads": heads}
    return {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in values.items()}


#: The text's 8 + 8 layers; big is the size that fits the 213M and 220M parameters of its Tables 4 and 5.
_PRESETS: dict[str, dict[str, Any]] = {
    "duo_transformer_wmt_en_de": _sizes(8, 512, 2048, 8),
    "duo_transformer_wmt_en_fr": _sizes(8, 512, 2048, 8),
    "duo_transformer_big": {**_sizes(6, 1024, 4096, 16), "dropout": 0.3},
    "duo_transformer_iwslt_de_en": _sizes(6, 512, 1024, 4),
    "duo_transformer_tiny": _sizes(2, 64, 64, 2),
}


register_presets("duo_transformer", _PRESETS)
