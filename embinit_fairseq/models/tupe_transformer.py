"""`--arch tupe_transformer`: translation with untied positions in the self-attention of encoder and decoder.

The sizes and options of fairseq's `transformer`; nothing is added to the word embeddings. With `--embed-init` it asks
whether untying removes the absorption of positions that Kim et al. (2024) describe.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
from dataclasses import dataclass, field
from typing import Any

from fairseq.models import register_model
from torch import nn

from embinit_fairseq.errors import OptionError
from embinit_fairseq.models._options import (
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
from embinit_fairseq.models._tupe_transformer import SideConfig, TupeTransformerDecoder, TupeTransformerEncoder
from embinit_fairseq.modules.initialisation import init_table, init_transformer_params
from embinit_fairseq.modules.position_bias import check_buckets


@dataclass
class TupeTransformerConfig(TranslationConfig):
    """Options of fairseq's `transformer` under the same names, and those of the positions."""

    rel_pos: bool = field(
        default=False, metadata={"help": "relative positions beside the untied ones (TUPE-R); the decoder's look back"}
    )
    rel_pos_bins: int = field(default=32, metadata={"help": "buckets of relative positions"})
    max_rel_pos: int = field(default=128, metadata={"help": "distance from which on all share one bucket"})


@register_model("tupe_transformer", dataclass=TupeTransformerConfig)
class TupeTransformerModel(TranslationModel):
    """Encoder and decoder with untied positions; every part learns, also in several processes."""

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
        encoder = TupeTransformerEncoder(sides[0], source, tables[0])
        decoder = TupeTransformerDecoder(sides[1], target, tables[1], dims[0], tied_output(cfg))
        model = cls(encoder, decoder)
        model.cfg = cfg
        model.apply(init_transformer_params)
        init_table(decoder.output_projection.weight, dims[1])
        for table in tables:  # after the output, which may be the same
            init_table(table.weight, table.embedding_dim)
            nn.init.zeros_(table.weight[table.padding_idx])
        return model

    def check_training(self, checkpoint: Any) -> None:
        """Raise OptionError, before a training, for options that have no effect."""
        if self.cfg.rel_pos:
            check_buckets(self.cfg.rel_pos_bins, self.cfg.max_rel_pos)
        for name in () if self.cfg.rel_pos else _RELATIVE:
            if getattr(self.cfg, name) != getattr(TupeTransformerConfig(), name):
                raise OptionError(f"{flag(name)} {getattr(self.cfg, name)} has no effect here: it needs --rel-pos")


#: options that only relative positions need
_RELATIVE = ("rel_pos_bins", "max_rel_pos")


def _side(cfg: TupeTransformerConfig, side: str, max_positions: int) -> SideConfig:
    return SideConfig(
        layer=layer_config(cfg, side, num_terms=2),
        num_layers=side_option(cfg, side, "layers"),
        max_positions=max_positions,
        scale_embedding=not cfg.no_scale_embedding,
        rel_pos_bins=cfg.rel_pos_bins if cfg.rel_pos else 0,
        max_rel_pos=cfg.max_rel_pos,
        attention_kernel=str(cfg.attention_kernel),
    )


def _check_shared(source: Any, target: Any, dims: list[int]) -> None:
    check_joined(source, target)
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
