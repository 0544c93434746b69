"""Options of `--arch duo_transformer_*`: what they are, which go together, what they make of a side."""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum

from embinit_fairseq.errors import OptionError
from embinit_fairseq.models.duo_embedding import SUFFIXES, DuoSideConfig
from embinit_fairseq.models.ranges import check_ranges, flag
from embinit_fairseq.models.translation_options import (
    SIDES,
    TranslationConfig,
    check_joined,
    layer_config,
    side_option,
    tied_output,
)
from embinit_fairseq.modules.duo_layers import StreamConfig

ON_OFF = ChoiceEnum(["on", "off"])
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
    duo_share_weights: ON_OFF = field(
        default="on", metadata={"help": "keys and values of a stream have one projection (4 instead of 6 a block)"}
    )
    duo_norm: ChoiceEnum(["off", "decoder", "all"]) = field(
        default="decoder", metadata={"help": "where residuals are those of the values' stream (equation 6)"}
    )
    duo_fusion: ON_OFF = field(
        default="on", metadata={"help": "fusion layer, and logits against a projection of both tables side by side"}
    )
    encoder_dim_s: Optional[int] = field(
        default=None, metadata={"help": "dimension of the encoder's first table, mapped to its width (default: that)"}
    )
    encoder_dim_p: Optional[int] = field(default=None, metadata={"help": "of its second table"})
    decoder_dim_s: Optional[int] = field(
        default=None,
        metadata={"help": "of the decoder's first table (default: its width; the encoder's table if they are shared)"},
    )
    decoder_dim_p: Optional[int] = field(default=None, metadata={"help": "of its second table"})
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
            raise OptionError(f"--{side}-embed-dim {width}: sinusoidal positions need a width of 4 or more")


def check_shared(cfg: Any, source: Any, target: Any) -> None:
    """--share-all-embeddings: raises OptionError for dictionaries or tables that cannot be one."""
    check_joined(source, target)
    for stream, ours, theirs in zip("sp", *(table_dims(cfg, side) for side in SIDES)):
        if ours != theirs:
            raise OptionError(
                f"--share-all-embeddings: --decoder-dim-{stream} {theirs}, but the encoder's table, which is to be the "
                f"same, has {ours} columns: drop it, or give --encoder-dim-{stream} {theirs}"
            )


def table_dims(cfg: Any, side: str) -> list[int]:
    """Dimensions of a side's tables: as given, else its width, or what the encoder has if the tables are shared."""
    if side == "decoder" and cfg.share_all_embeddings:
        defaults = table_dims(cfg, "encoder")
    else:
        defaults = [side_option(cfg, side, "embed_dim")] * cfg.duo_streams
    return [getattr(cfg, f"{side}_dim_{stream}") or default for stream, default in zip("sp", defaults)]


def side_config(cfg: Any, side: str) -> DuoSideConfig:
    """What the options make of encoder or decoder."""
    streams = StreamConfig(
        cfg.duo_streams,
        # one stream has no sharing: its keys and values are those of an ordinary transformer
        share_weights=str(cfg.duo_share_weights) == "on" and cfg.duo_streams > 1,
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


def function_options(cfg: Any) -> dict[str, Any]:
    """Of cfg, what decides which weights there are and what is computed with them."""
    names = ["duo_streams", *(_DUO if cfg.duo_streams > 1 else ()), "activation_fn", "no_scale_embedding"]
    names += ["no_token_positional_embeddings", "share_all_embeddings"]
    if not cfg.no_token_positional_embeddings:  # learned ones have a row each
        learned = {"max_source_positions": cfg.encoder_learned_pos, "max_target_positions": cfg.decoder_learned_pos}
        names += [name for name, is_learned in learned.items() if is_learned]
    return {
        **{name: getattr(cfg, name) for name in names},
        **{f"{side}_{name}": side_option(cfg, side, name) for side in SIDES for name in _SIZES},
        **{f"{side}_dim_{stream}": dim for side in SIDES for stream, dim in zip("sp", table_dims(cfg, side))},
        "share_decoder_input_output_embed": tied_output(cfg),
    }
