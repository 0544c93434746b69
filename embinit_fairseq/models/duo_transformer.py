"""`--arch duo_transformer_*`: translation with two embeddings of every word. Li et al. 2020, section 3.2 (Duo).

No code of the authors is public and the text leaves choices open; ours are in docs/duo.md. The options --duo-streams,
--duo-share-weights, --duo-norm and --duo-fusion are the rows of the paper's Table 5.
"""

from __future__ import annotations

from typing import Any

from fairseq.models import register_model
from torch import nn

from embinit_fairseq.models.duo_decoder import DuoDecoder
from embinit_fairseq.models.duo_embedding import SUFFIXES
from embinit_fairseq.models.duo_encoder import DuoEncoder
from embinit_fairseq.models.duo_options import (
    DuoTransformerConfig,
    check_options,
    check_shared,
    function_options,
    side_config,
    table_dims,
)
from embinit_fairseq.models.presets import register_presets
from embinit_fairseq.models.translation_model import TranslationModel
from embinit_fairseq.models.translation_options import SIDES, tied_output
from embinit_fairseq.modules.duo_init import init_duo_params
from embinit_fairseq.modules.transformer_init import init_table


@register_model("duo_transformer", dataclass=DuoTransformerConfig)
class DuoTransformerModel(TranslationModel):
    """Encoder and decoder with one or two streams."""

    @classmethod
    def build_model(cls, cfg: DuoTransformerConfig, task: Any) -> DuoTransformerModel:
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
        """For `--embed-init`: encoder, encoder_p, decoder, decoder_p -> (table, dictionary, where it is used)."""
        return {
            f"{name}{suffix}": (table, side.dictionary, side.embedding)
            for name, side in (("encoder", self.encoder), ("decoder", self.decoder))
            for suffix, table in zip(SUFFIXES, side.embedding.tables())
        }

    def function_options(self, cfg: Any) -> dict[str, Any]:
        """Of cfg, what must not differ from a checkpoint's (see `restoring.check_restored`)."""
        return function_options(cfg)


def _tables(cfg: DuoTransformerConfig, side: str, dictionary: Any) -> list[nn.Embedding]:
    return [nn.Embedding(len(dictionary), dim, dictionary.pad()) for dim in table_dims(cfg, side)]


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


register_presets("duo_transformer", _PRESETS)
