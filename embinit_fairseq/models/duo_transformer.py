"""`--arch duo_transformer_*`: translation with two embeddings of every word. Li et al. 2020, section 3.2 (Duo).

No code of the authors is public and the text leaves choices open; ours are in docs/duo.md. The options --duo-streams,
--duo-share-weights, --duo-norm and --duo-fusion are the rows of the paper's Table 5.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import FairseqEncoderDecoderModel, register_model, register_model_architecture
from omegaconf import II
from torch import Tensor, nn

from embinit_fairseq.errors import OptionError
from embinit_fairseq.models.duo_decoder import DuoDecoder
from embinit_fairseq.models.duo_embedding import SUFFIXES, DuoSideConfig
from embinit_fairseq.models.duo_encoder import DuoEncoder
from embinit_fairseq.modules.attention_kernels import KERNELS
from embinit_fairseq.modules.duo_init import init_duo_params
from embinit_fairseq.modules.duo_layers import StreamConfig
from embinit_fairseq.modules.encoder_layer import ACTIVATIONS, LayerConfig
from embinit_fairseq.modules.transformer_init import init_table

ON_OFF = ChoiceEnum(["on", "off"])


@dataclass
class DuoTransformerConfig(FairseqDataclass):
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
        default=None, metadata={"help": "dimension of the decoder's first table (default: its width)"}
    )
    decoder_dim_p: Optional[int] = field(default=None, metadata={"help": "of its second table"})
    encoder_embed_dim: int = field(default=512, metadata={"help": "width of the encoder's streams"})
    encoder_ffn_embed_dim: int = field(default=2048, metadata={"help": "width inside its feed-forward networks"})
    encoder_layers: int = field(default=6, metadata={"help": "number of encoder layers"})
    encoder_attention_heads: int = field(default=8, metadata={"help": "attention heads of the encoder"})
    encoder_normalize_before: bool = field(
        default=False, metadata={"help": "layer norm before each block of the encoder (pre-LN)"}
    )
    encoder_learned_pos: bool = field(default=False, metadata={"help": "learned positions instead of sinusoids"})
    decoder_embed_dim: Optional[int] = field(
        default=None, metadata={"help": "width of the decoder's streams (default: the encoder's)"}
    )
    decoder_ffn_embed_dim: Optional[int] = field(
        default=None, metadata={"help": "width inside its feed-forward networks (default: the encoder's)"}
    )
    decoder_layers: int = field(default=6, metadata={"help": "number of decoder layers"})
    decoder_attention_heads: int = field(default=8, metadata={"help": "attention heads of the decoder"})
    decoder_normalize_before: bool = field(
        default=False, metadata={"help": "layer norm before each block of the decoder (pre-LN)"}
    )
    decoder_learned_pos: bool = field(default=False, metadata={"help": "learned positions instead of sinusoids"})
    no_token_positional_embeddings: bool = field(default=False, metadata={"help": "no positions at all"})
    share_decoder_input_output_embed: bool = field(
        default=False, metadata={"help": "logits against the decoder's input tables"}
    )
    share_all_embeddings: bool = field(
        default=False, metadata={"help": "the same tables in encoder, decoder and output (needs a joined dictionary)"}
    )
    no_scale_embedding: bool = field(default=False, metadata={"help": "do not multiply embeddings with sqrt(width)"})
    dropout: float = field(default=0.1, metadata={"help": "dropout of embeddings, attention and FFN outputs"})
    attention_dropout: float = field(default=0.0, metadata={"help": "dropout of attention weights"})
    activation_dropout: float = field(default=0.0, metadata={"help": "dropout inside the feed-forward networks"})
    activation_fn: ChoiceEnum(list(ACTIVATIONS)) = field(
        default="relu", metadata={"help": "inside the feed-forward networks"}
    )
    attention_kernel: ChoiceEnum([kernel for kernel in KERNELS if kernel != "flex"]) = field(
        default="auto", metadata={"help": "how attention is computed; auto takes the fastest"}
    )
    max_source_positions: int = II("task.max_source_positions")
    max_target_positions: int = II("task.max_target_positions")


@register_model("duo_transformer", dataclass=DuoTransformerConfig)
class DuoTransformerModel(FairseqEncoderDecoderModel):
    """Encoder and decoder with one or two streams."""

    #: tells fairseq that forward takes alignment_layer and alignment_heads
    supports_align_args = True

    @classmethod
    def build_model(cls, cfg: DuoTransformerConfig, task: Any) -> "DuoTransformerModel":
        """Build for a task with two dictionaries; raises OptionError for options that contradict each other."""
        _check(cfg)
        source, target = task.source_dictionary, task.target_dictionary
        sides = _side(cfg, "encoder", cfg.max_source_positions), _side(cfg, "decoder", cfg.max_target_positions)
        tables = _tables(cfg, "encoder", source, sides[0]), _tables(cfg, "decoder", target, sides[1])
        if cfg.share_all_embeddings:
            _check_shared(source, target, tables)
            tables = tables[0], tables[0]
        tied_output = cfg.share_all_embeddings or cfg.share_decoder_input_output_embed
        encoder = DuoEncoder(sides[0], source, tables[0])
        decoder = DuoDecoder(sides[1], target, tables[1], sides[0].layer.embed_dim, tied_output)
        model = cls(encoder, decoder)
        model.apply(init_duo_params)
        if decoder.output_projection is not None:
            init_table(decoder.output_projection.weight, sides[1].layer.embed_dim)
        for table in {id(table): table for side in tables for table in side}.values():
            init_table(table.weight, table.embedding_dim)
            nn.init.zeros_(table.weight[table.padding_idx])
        return model

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor],
        prev_output_tokens: Tensor,
        return_all_hiddens: bool = False,
        features_only: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """src_tokens (B, S), prev_output_tokens (B, T) -> as the decoder's forward."""
        encoder_out = self.encoder(src_tokens, src_lengths, return_all_hiddens)
        return self.decoder(prev_output_tokens, encoder_out, None, features_only, alignment_layer, alignment_heads)

    def embedding_slots(self) -> dict[str, tuple[nn.Embedding, Any, nn.Module]]:
        """For `--embed-init`: encoder, encoder_p, decoder, decoder_p -> (table, dictionary, where it is used)."""
        return {
            f"{name}{suffix}": (table, side.dictionary, side.embedding)
            for name, side in (("encoder", self.encoder), ("decoder", self.decoder))
            for suffix, table in zip(SUFFIXES, side.embedding.tables())
        }


def _check(cfg: DuoTransformerConfig) -> None:
    if cfg.duo_streams not in (1, len(SUFFIXES)):
        raise OptionError(f"--duo-streams {cfg.duo_streams}: must be 1 or {len(SUFFIXES)}")
    if cfg.duo_streams == 1:
        given = [f"--{side}-dim-p" for side in ("encoder", "decoder") if getattr(cfg, f"{side}_dim_p") is not None]
        if given:
            raise OptionError(f"{given[0]} is for a second stream: drop it or --duo-streams 1")


def _side(cfg: DuoTransformerConfig, side: str, max_positions: int) -> DuoSideConfig:
    def option(name: str) -> Any:
        value = getattr(cfg, f"{side}_{name}")
        return getattr(cfg, f"encoder_{name}") if value is None else value

    width, heads = option("embed_dim"), option("attention_heads")
    if width % heads:
        raise OptionError(
            f"--{side}-attention-heads {heads} does not divide --{side}-embed-dim {width}; heads that do: "
            f"{', '.join(str(n) for n in range(1, 33) if width % n == 0)}"
        )
    layer = LayerConfig(
        embed_dim=width,
        ffn_embed_dim=option("ffn_embed_dim"),
        num_heads=heads,
        dropout=cfg.dropout,
        attention_dropout=cfg.attention_dropout,
        activation_dropout=cfg.activation_dropout,
        activation=str(cfg.activation_fn),
        normalize_before=option("normalize_before"),
    )
    duo_norm = str(cfg.duo_norm)
    return DuoSideConfig(
        layer=layer,
        streams=StreamConfig(
            cfg.duo_streams,
            # one stream has no sharing: its keys and values are those of an ordinary transformer
            share_weights=str(cfg.duo_share_weights) == "on" and cfg.duo_streams > 1,
            duo_norm=duo_norm == "all" or duo_norm == side,
        ),
        num_layers=option("layers"),
        max_positions=max_positions,
        scale_embedding=not cfg.no_scale_embedding,
        positions=not cfg.no_token_positional_embeddings,
        learned_pos=option("learned_pos"),
        fusion=str(cfg.duo_fusion) == "on",
        attention_kernel=str(cfg.attention_kernel),
    )


def _tables(cfg: DuoTransformerConfig, side: str, dictionary: Any, side_cfg: DuoSideConfig) -> list[nn.Embedding]:
    dims = [getattr(cfg, f"{side}_dim_{stream}") or side_cfg.layer.embed_dim for stream in "sp"[: cfg.duo_streams]]
    return [nn.Embedding(len(dictionary), dim, dictionary.pad()) for dim in dims]


def _check_shared(source: Any, target: Any, tables: tuple[list[nn.Embedding], list[nn.Embedding]]) -> None:
    if source != target:
        raise OptionError(
            f"--share-all-embeddings needs one dictionary for both languages, here they have {len(source)} and "
            f"{len(target)} symbols: binarise with --joined-dictionary, or use --share-decoder-input-output-embed"
        )
    dims = [[table.embedding_dim for table in side] for side in tables]
    if dims[0] != dims[1]:
        raise OptionError(
            f"--share-all-embeddings: the tables of the encoder have dimensions {dims[0]}, of the decoder {dims[1]}; "
            "give both sides the same --encoder/decoder-embed-dim, -dim-s and -dim-p"
        )


def _sizes(layers: int, width: int, ffn: int, heads: int) -> dict[str, int]:
    values = {"layers": layers, "embed_dim": width, "ffn_embed_dim": ffn, "attention_heads": heads}
    return {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in values.items()}


#: The text's 8 + 8 layers; big is the size that fits the 213M and 220M parameters of its Tables 4 and 5.
_PRESETS = {
    "duo_transformer_wmt_en_de": _sizes(8, 512, 2048, 8),
    "duo_transformer_wmt_en_fr": _sizes(8, 512, 2048, 8),
    "duo_transformer_big": {**_sizes(6, 1024, 4096, 16), "dropout": 0.3},
    "duo_transformer_iwslt_de_en": _sizes(6, 512, 1024, 4),
    "duo_transformer_tiny": _sizes(2, 64, 64, 2),
}


def _register(arch: str, preset: dict[str, Any]) -> None:
    @register_model_architecture("duo_transformer", arch)
    def architecture(args: Any) -> None:
        for name, value in preset.items():
            setattr(args, name, getattr(args, name, value))


for _arch, _preset in _PRESETS.items():
    _register(_arch, _preset)
