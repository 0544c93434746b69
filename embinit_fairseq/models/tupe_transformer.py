"""`--arch tupe_transformer`: translation with untied positions in the self-attention of encoder and decoder.

The sizes and options of fairseq's `transformer`; nothing is added to the word embeddings. With `--embed-init` it asks
whether untying removes the absorption of positions that Kim et al. (2024) describe.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
import functools
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import FairseqEncoderDecoderModel, register_model
from omegaconf import II
from torch import Tensor, nn

from embinit_fairseq.errors import OptionError
from embinit_fairseq.models.presets import register_presets
from embinit_fairseq.models.ranges import check_ranges, flag
from embinit_fairseq.models.restoring import check_restored, refuse_overrides
from embinit_fairseq.models.tupe_transformer_sides import SideConfig, TupeTransformerDecoder, TupeTransformerEncoder
from embinit_fairseq.modules.attention_kernels import KERNELS
from embinit_fairseq.modules.encoder_layer import ACTIVATIONS, LayerConfig
from embinit_fairseq.modules.position_bias import check_buckets
from embinit_fairseq.modules.transformer_init import init_table, init_transformer_params


@dataclass
class TupeTransformerConfig(FairseqDataclass):
    """Options of fairseq's `transformer` under the same names, and those of the positions."""

    encoder_embed_dim: int = field(default=512, metadata={"help": "width of the encoder's embeddings and layers"})
    encoder_ffn_embed_dim: int = field(default=2048, metadata={"help": "width inside its feed-forward networks"})
    encoder_layers: int = field(default=6, metadata={"help": "number of encoder layers"})
    encoder_attention_heads: int = field(default=8, metadata={"help": "attention heads of the encoder"})
    encoder_normalize_before: bool = field(
        default=False, metadata={"help": "layer norm before each block of the encoder (pre-LN)"}
    )
    decoder_embed_dim: Optional[int] = field(
        default=None, metadata={"help": "width of the decoder's embeddings and layers (default: the encoder's)"}
    )
    decoder_ffn_embed_dim: Optional[int] = field(
        default=None, metadata={"help": "width inside its feed-forward networks (default: the encoder's)"}
    )
    decoder_layers: int = field(default=6, metadata={"help": "number of decoder layers"})
    decoder_attention_heads: int = field(default=8, metadata={"help": "attention heads of the decoder"})
    decoder_normalize_before: bool = field(
        default=False, metadata={"help": "layer norm before each block of the decoder (pre-LN)"}
    )
    share_decoder_input_output_embed: bool = field(
        default=False, metadata={"help": "one table for the decoder's input and output"}
    )
    share_all_embeddings: bool = field(
        default=False, metadata={"help": "one table for encoder, decoder and output (needs a joined dictionary)"}
    )
    no_scale_embedding: bool = field(default=False, metadata={"help": "do not multiply embeddings with sqrt(width)"})
    dropout: float = field(default=0.1, metadata={"help": "dropout of embeddings, attention and FFN outputs"})
    attention_dropout: float = field(default=0.0, metadata={"help": "dropout of attention weights"})
    activation_dropout: float = field(default=0.0, metadata={"help": "dropout inside the feed-forward networks"})
    activation_fn: ChoiceEnum(list(ACTIVATIONS)) = field(
        default="relu", metadata={"help": "inside the feed-forward networks"}
    )
    rel_pos: bool = field(
        default=False, metadata={"help": "relative positions beside the untied ones (TUPE-R); the decoder's look back"}
    )
    rel_pos_bins: int = field(default=32, metadata={"help": "buckets of relative positions"})
    max_rel_pos: int = field(default=128, metadata={"help": "distance from which on all share one bucket"})
    attention_kernel: ChoiceEnum([kernel for kernel in KERNELS if kernel != "flex"]) = field(
        default="auto", metadata={"help": "how attention is computed; auto takes the fastest"}
    )
    max_source_positions: int = II("task.max_source_positions")
    max_target_positions: int = II("task.max_target_positions")


@register_model("tupe_transformer", dataclass=TupeTransformerConfig)
class TupeTransformerModel(FairseqEncoderDecoderModel):
    """Encoder and decoder with untied positions; every part learns, also in several processes."""

    #: tells fairseq that forward takes alignment_layer and alignment_heads
    supports_align_args = True

    @classmethod
    def build_model(cls, cfg: TupeTransformerConfig, task: Any) -> "TupeTransformerModel":
        """Build for a task with two dictionaries.

        Raises OptionError for options out of range and for those that contradict each other.
        """
        check_ranges(cfg)
        source, target = task.source_dictionary, task.target_dictionary
        sides = _side(cfg, "encoder", cfg.max_source_positions), _side(cfg, "decoder", cfg.max_target_positions)
        dims = [side.layer.embed_dim for side in sides]
        tables = [nn.Embedding(len(source), dims[0], source.pad()), nn.Embedding(len(target), dims[1], target.pad())]
        if cfg.share_all_embeddings:
            _check_shared(source, target, dims)
            tables[1] = tables[0]
        tied_output = cfg.share_all_embeddings or cfg.share_decoder_input_output_embed
        encoder = TupeTransformerEncoder(sides[0], source, tables[0])
        decoder = TupeTransformerDecoder(sides[1], target, tables[1], dims[0], tied_output)
        model = cls(encoder, decoder)
        model.cfg = cfg
        model.apply(init_transformer_params)
        init_table(decoder.output_projection.weight, dims[1])
        for table in tables:  # after the output, which may be the same
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

    def function_options(self, cfg: Any) -> dict[str, Any]:
        """Of cfg, what must not differ from a checkpoint's (see `restoring.check_restored`)."""
        sizes = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before")
        names = ["activation_fn", "no_scale_embedding", "share_all_embeddings", "rel_pos"]
        names += ["max_source_positions", "max_target_positions", *(_RELATIVE if cfg.rel_pos else ())]
        return {
            **{f"{side}_{name}": _option(cfg, side, name) for side in ("encoder", "decoder") for name in sizes},
            **{name: getattr(cfg, name) for name in names},
            "share_decoder_input_output_embed": cfg.share_all_embeddings or cfg.share_decoder_input_output_embed,
        }

    def check_training(self, checkpoint: Optional[str], saved: Any) -> None:
        """Before a training: raises OptionError for options that have no effect or are not those of the checkpoint."""
        if self.cfg.rel_pos:
            check_buckets(self.cfg.rel_pos_bins, self.cfg.max_rel_pos)
        for name in () if self.cfg.rel_pos else _RELATIVE:
            if getattr(self.cfg, name) != getattr(TupeTransformerConfig(), name):
                raise OptionError(f"{flag(name)} {getattr(self.cfg, name)} has no effect here: it needs --rel-pos")
        if saved is not None:
            check_restored(self, checkpoint, saved)

    @classmethod
    def from_pretrained(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> Any:
        """fairseq's hub interface around a trained checkpoint: `translate`."""
        hub = super().from_pretrained(model_name_or_path, *args, **kwargs)
        refuse_overrides(hub.models[0], kwargs)
        return hub


#: options that only relative positions need
_RELATIVE = ("rel_pos_bins", "max_rel_pos")


def _option(cfg: Any, side: str, name: str) -> Any:
    """The option of a side; the decoder's are the encoder's unless given."""
    value = getattr(cfg, f"{side}_{name}")
    return getattr(cfg, f"encoder_{name}") if value is None else value


def _side(cfg: TupeTransformerConfig, side: str, max_positions: int) -> SideConfig:
    option = functools.partial(_option, cfg, side)
    layer = LayerConfig(
        embed_dim=option("embed_dim"),
        ffn_embed_dim=option("ffn_embed_dim"),
        num_heads=option("attention_heads"),
        num_terms=2,
        dropout=cfg.dropout,
        attention_dropout=cfg.attention_dropout,
        activation_dropout=cfg.activation_dropout,
        activation=str(cfg.activation_fn),
        normalize_before=option("normalize_before"),
    )
    return SideConfig(
        layer=layer,
        num_layers=option("layers"),
        max_positions=max_positions,
        scale_embedding=not cfg.no_scale_embedding,
        rel_pos_bins=cfg.rel_pos_bins if cfg.rel_pos else 0,
        max_rel_pos=cfg.max_rel_pos,
        attention_kernel=str(cfg.attention_kernel),
    )


def _check_shared(source: Any, target: Any, dims: list[int]) -> None:
    if source != target:
        raise OptionError(
            f"--share-all-embeddings needs one dictionary for both languages, here they have {len(source)} and "
            f"{len(target)} symbols: binarise with --joined-dictionary, or use --share-decoder-input-output-embed"
        )
    if dims[0] != dims[1]:
        raise OptionError(
            f"--share-all-embeddings: --encoder-embed-dim {dims[0]} and --decoder-embed-dim {dims[1]} must be the same"
        )


#: what differs from the defaults, as in fairseq's preset of the same name
_IWSLT = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("ffn_embed_dim", 1024), ("attention_heads", 4))
}


register_presets("tupe_transformer", {"tupe_transformer_iwslt_de_en": _IWSLT, "tupe_transformer_wmt_en_de": {}})
