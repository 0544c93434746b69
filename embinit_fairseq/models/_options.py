"""Define options that this plugin's models share: fields, presets, ranges, and options of translation models.

Translation models have the options of fairseq's `transformer` under the same names.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import register_model_architecture
from omegaconf import II, OmegaConf

from embinit_fairseq.errors import OptionError, check_heads
from embinit_fairseq.modules.attention_kernels import KERNELS
from embinit_fairseq.modules.encoder_layer import ACTIVATIONS, LayerConfig


def option(default: Any, help: str) -> Any:
    """Return a field of an options dataclass."""
    return field(default=default, metadata={"help": help})


def register_presets(model: str, presets: dict[str, dict[str, Any]]) -> None:
    """Register architectures of `model`; presets: `--arch NAME` -> the options that differ from the defaults."""
    for arch, preset in presets.items():

        @register_model_architecture(model, arch)
        def fill_in(args: Any, preset: dict[str, Any] = preset) -> None:
            for name, value in preset.items():
                setattr(args, name, getattr(args, name, value))


def size_options(side: str, layers: int, embed_dim: int, ffn_embed_dim: int, attention_heads: int) -> dict[str, int]:
    """Return the options for the size of a side (`encoder`, ...) in a preset."""
    values = {"layers": layers, "embed_dim": embed_dim, "ffn_embed_dim": ffn_embed_dim}
    return {f"{side}_{name}": value for name, value in {**values, "attention_heads": attention_heads}.items()}


#: end of an option's name -> smallest and largest value
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("_layers", "_attention_heads"), (1, float("inf"))),
    **dict.fromkeys(("_embed_dim", "_ffn_dim", "_dim_s", "_dim_p"), (1, float("inf"))),
    "_positions": (3, float("inf")),  # <s>, a word, </s>
    "dropout": (0, 1),
}


def check_ranges(cfg: Any) -> None:
    """Raise OptionError, with the flag, for numbers out of range and heads that do not divide a dimension."""
    is_node = OmegaConf.is_config(cfg)  # a node of fairseq's configuration, else a dataclass or a namespace
    options: Any = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True) if is_node else vars(cfg)
    for name, value in options.items():
        for end, (smallest, largest) in RANGES.items():
            if name.endswith(end) and isinstance(value, (int, float)) and not smallest <= value <= largest:
                expected = f"at least {smallest}" if largest == float("inf") else f"from {smallest} to {largest}"
                raise OptionError(f"{flag(name)} {value}: must be {expected}")
    for side in ("encoder", "decoder", "generator"):
        heads, dim = f"{side}_attention_heads", f"{side}_embed_dim"
        if options.get(heads) is not None:
            inherited: Any = options.get("encoder_embed_dim")  # of a decoder without its own
            check_heads(options[heads], options.get(dim) or inherited, flag(heads), flag(dim))


def check_effects(cfg: Any, defaults: Any, needs: dict[str, tuple[bool, str]]) -> None:
    """Raise OptionError for an option that is not the default and changes nothing.

    needs: option -> (True if it has an effect, its condition as the rest of the sentence "it ...").
    """
    for name, (has_effect, need) in needs.items():
        value = getattr(cfg, name)
        if not has_effect and str(value) != str(getattr(defaults, name)):
            shown = flag(name) if value is True else f"{flag(name)} {value}"
            raise OptionError(f"{shown} has no effect here: it {need}")


def flag(name: str) -> str:
    """Return the flag of an option: `--max-positions` for `max_positions`."""
    return "--" + name.replace("_", "-")


# ---- Translation ----

SIDES = ("encoder", "decoder")


@dataclass
class TranslationConfig(FairseqDataclass):
    """Hold the options of fairseq's `transformer` under the same names."""

    encoder_embed_dim: int = option(512, "dimension of the encoder's embeddings and layers")
    encoder_ffn_embed_dim: int = option(2048, "dimension inside its feed-forward networks")
    encoder_layers: int = option(6, "number of encoder layers")
    encoder_attention_heads: int = option(8, "attention heads of the encoder")
    encoder_normalize_before: bool = option(False, "layer norm before each block of the encoder (pre-LN)")
    decoder_embed_dim: Optional[int] = option(
        None, "dimension of the decoder's embeddings and layers (default: the encoder's)"
    )
    decoder_ffn_embed_dim: Optional[int] = option(
        None, "dimension inside its feed-forward networks (default: the encoder's)"
    )
    decoder_layers: int = option(6, "number of decoder layers")
    decoder_attention_heads: int = option(8, "attention heads of the decoder")
    decoder_normalize_before: bool = option(False, "layer norm before each block of the decoder (pre-LN)")
    share_decoder_input_output_embed: bool = option(False, "one embedding matrix for the decoder's input and output")
    share_all_embeddings: bool = option(
        False, "one embedding matrix for encoder, decoder and output (needs a joined dictionary)"
    )
    no_scale_embedding: bool = option(False, "do not multiply embeddings with sqrt(dimension)")
    dropout: float = option(0.1, "dropout of embeddings, attention and FFN outputs")
    attention_dropout: float = option(0.0, "dropout of attention weights")
    activation_dropout: float = option(0.0, "dropout inside the feed-forward networks")
    activation_fn: ChoiceEnum(list(ACTIVATIONS)) = option("relu", "inside the feed-forward networks")
    attention_kernel: ChoiceEnum(list(KERNELS)) = option("auto", "how attention is computed; auto takes the fastest")
    max_source_positions: int = II("task.max_source_positions")
    max_target_positions: int = II("task.max_target_positions")


def side_option(cfg: Any, side: str, name: str) -> Any:
    """Return an option of a side; a decoder without its own has the encoder's."""
    value = getattr(cfg, f"{side}_{name}")
    return getattr(cfg, f"encoder_{name}") if value is None else value


def layer_config(cfg: Any, side: str = "encoder", num_terms: int = 1) -> LayerConfig:
    """Return the configuration of the layers of a side. num_terms: see position_encoding.py."""
    return LayerConfig(
        embed_dim=side_option(cfg, side, "embed_dim"),
        ffn_embed_dim=side_option(cfg, side, "ffn_embed_dim"),
        num_heads=side_option(cfg, side, "attention_heads"),
        num_terms=num_terms,
        dropout=cfg.dropout,
        attention_dropout=cfg.attention_dropout,
        activation_dropout=cfg.activation_dropout,
        activation=str(cfg.activation_fn),
        normalize_before=side_option(cfg, side, "normalize_before"),
    )


def tied_output(cfg: Any) -> bool:
    """Return True if the logits are taken against the decoder's input embeddings."""
    return cfg.share_all_embeddings or cfg.share_decoder_input_output_embed
