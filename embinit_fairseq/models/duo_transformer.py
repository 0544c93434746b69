"""`--arch duo_transformer_*`: translation with two embeddings of every word. Li et al. 2020, section 3.2 (Duo).

    x^s = dropout(embed_scale * map_s(E_s[token]) + position)      for each stream s; then layers and logits of duo.py

Each stream has an embedding matrix E_s (`embed_tokens`: S, `embed_tokens_p`: P). A matrix whose dimension differs from
the layers' has a learned linear map (section 4.2.1: 300 to 512). Positions are added to each stream.

Duo's code is not public and the paper leaves choices open; this plugin's choices are in docs/duo.md. The options
--duo-streams, --duo-share-weights, --duo-norm and --duo-fusion are the rows of the paper's Table 5.

n: streams, B: batch, T: tgt_len, S: src_len, C: embed_dim, V: symbols.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
from dataclasses import dataclass
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum
from fairseq.models import register_model
from fairseq.modules import PositionalEmbedding
from torch import Tensor, nn

from embinit_fairseq.errors import OptionError
from embinit_fairseq.models._options import (
    SIDES,
    TranslationConfig,
    check_ranges,
    option,
    register_presets,
    side_option,
    size_options,
    tied_output,
)
from embinit_fairseq.models._translation import (
    EncoderOut,
    Side,
    TranslationDecoder,
    TranslationEncoder,
    TranslationModel,
    check_joined,
    side_of,
)
from embinit_fairseq.modules.duo import (
    SHARING,
    DuoDecoderLayer,
    DuoEncoderLayer,
    FusedTables,
    Fusion,
    StreamConfig,
    logits_of_streams,
)

#: endings of the names of the streams' matrices
SUFFIXES = ("", "_p")
#: older value of --duo-share-weights -> its value now
_OLD_SHARING = {"on": "stream"}
#: typical number of decoding steps of a batch, which decides whether O is computed
_STEPS = 16


@dataclass
class DuoTransformerConfig(TranslationConfig):
    """Hold the options of fairseq's `transformer` under the same names, and options of the two streams."""

    duo_streams: int = option(2, "2: two embeddings of every word; 1: fairseq's transformer, to compare with")
    duo_share_weights: ChoiceEnum([*SHARING, *_OLD_SHARING]) = option(
        "stream",
        "projections for queries, keys and values. "
        + "; ".join(f"{name}: {sharing.help}" for name, sharing in SHARING.items())
        + ". (on: the older name of stream)",
    )
    duo_norm: ChoiceEnum(["off", *SIDES, "all"]) = option(
        "decoder", "where residuals are those of the values' stream (equation 6)"
    )
    duo_fusion: ChoiceEnum(["on", "off"]) = option(
        "on", "fusion layer, and logits against a projection of both embedding matrices side by side"
    )
    encoder_dim_s: Optional[int] = option(
        None, "dimension of the encoder's first embedding matrix, mapped to --encoder-embed-dim (default: that)"
    )
    encoder_dim_p: Optional[int] = option(None, "of its second embedding matrix")
    decoder_dim_s: Optional[int] = option(
        None, "of the decoder's first (default: --decoder-embed-dim; the encoder's if they are shared)"
    )
    decoder_dim_p: Optional[int] = option(None, "of its second embedding matrix")
    encoder_learned_pos: bool = option(False, "learned positions instead of sinusoids")
    decoder_learned_pos: bool = option(False, "learned positions instead of sinusoids")
    no_token_positional_embeddings: bool = option(False, "no positions at all")


@register_model("duo_transformer", dataclass=DuoTransformerConfig)
class DuoTransformerModel(TranslationModel):
    """Encoder and decoder with one or two streams."""

    @classmethod
    def build_model(cls, cfg: DuoTransformerConfig, task: Any) -> "DuoTransformerModel":
        """Build for a task with two dictionaries.

        Raises OptionError for options that are out of range or contradict each other.
        """
        check_options(cfg)
        source, target = task.source_dictionary, task.target_dictionary
        tables, target_tables = (
            [nn.Embedding(len(dictionary), dim, dictionary.pad()) for dim in table_dims(cfg, name)]
            for name, dictionary in zip(SIDES, (source, target))
        )
        every_table = [*tables, *target_tables]
        if cfg.share_all_embeddings:
            check_joined(source, target)
            every_table = target_tables = tables
        encoder = DuoEncoder(cfg, source, tables)
        decoder = DuoDecoder(cfg, target, target_tables, encoder.side.layer.embed_dim)
        return cls.initialised(cfg, encoder, decoder, every_table)

    def embedding_slots(self) -> dict[str, tuple[nn.Embedding, Any, nn.Module]]:
        """Return encoder, encoder_p, decoder, decoder_p -> (matrix, dictionary, owner) for `--embed-init`."""
        return {
            f"{name}{suffix}": (table, side.dictionary, side.embedding)
            for name, side in (("encoder", self.encoder), ("decoder", self.decoder))
            for suffix, table in zip(SUFFIXES, side.embedding.tables())
        }


def check_options(cfg: Any) -> None:
    """Raise OptionError, with the flag, for numbers that no model can have and options that contradict each other."""
    check_ranges(cfg)
    if cfg.duo_streams not in (1, len(SUFFIXES)):
        raise OptionError(f"--duo-streams {cfg.duo_streams}: must be 1 or {len(SUFFIXES)}")
    for side in SIDES:
        if cfg.duo_streams == 1 and getattr(cfg, f"{side}_dim_p") is not None:
            raise OptionError(f"--{side}-dim-p is for a second stream: drop it or --duo-streams 1")
    for stream, ours, theirs in zip("sp", *(table_dims(cfg, side) for side in SIDES)):
        if cfg.share_all_embeddings and ours != theirs:
            raise OptionError(
                f"--share-all-embeddings: --decoder-dim-{stream} {theirs}, but the encoder's matrix, the same one, "
                f"has {ours} columns: drop it, or give --encoder-dim-{stream} {theirs}"
            )


def table_dims(cfg: Any, side: str) -> list[int]:
    """Return the dimensions of a side's matrices; the defaults are its embed_dim, or the encoder's if shared."""
    if side == "decoder" and cfg.share_all_embeddings:
        defaults = table_dims(cfg, "encoder")
    else:
        defaults = [side_option(cfg, side, "embed_dim")] * cfg.duo_streams
    return [getattr(cfg, f"{side}_dim_{stream}") or default for stream, default in zip("sp", defaults)]


def _stream_config(cfg: Any, side: str) -> StreamConfig:
    """Return the configuration of a side's streams. One stream has nothing to share."""
    sharing = _OLD_SHARING.get(str(cfg.duo_share_weights), str(cfg.duo_share_weights))
    return StreamConfig(
        cfg.duo_streams,
        share_weights=sharing if cfg.duo_streams > 1 else "off",
        duo_norm=str(cfg.duo_norm) in ("all", side),
    )


# ---- Encoder and decoder ----


class DuoEmbedding(nn.Module):
    """Compute x^s = dropout(embed_scale * map_s(E_s[token]) + position) for every stream s."""

    def __init__(self, cfg: DuoTransformerConfig, side: Side, tables: list[nn.Embedding]) -> None:
        super().__init__()
        width, padding_idx = side.layer.embed_dim, tables[0].padding_idx
        self.suffixes = SUFFIXES[: len(tables)]
        for suffix, table in zip(self.suffixes, tables):
            self.add_module(f"embed_tokens{suffix}", table)
            if table.embedding_dim != width:  # Xavier's: the output has about the scale of a matrix of this dimension
                linear = nn.Linear(table.embedding_dim, width)
                nn.init.xavier_uniform_(linear.weight)
                nn.init.zeros_(linear.bias)
                self.add_module(f"embed_map{suffix}", linear)
        self.embed_positions = None
        if not cfg.no_token_positional_embeddings:
            learned = side_option(cfg, side.name, "learned_pos")
            self.embed_positions = PositionalEmbedding(side.max_positions, width, padding_idx, learned)
        self.embed_scale, self.longest = side.embed_scale, side.max_positions
        self.dropout = nn.Dropout(side.layer.dropout)

    def forward(self, tokens: Tensor, seen: int = 0) -> Tensor:
        """Return the streams (n, B, T - seen, C) of tokens (B, T) after the first `seen`."""
        new = tokens[:, seen:]
        streams = [table(new) for table in self.tables()]
        streams = [x if linear is None else linear(x) for x, linear in zip(streams, self.maps())]
        x = self.embed_scale * torch.stack(streams)
        if self.embed_positions is not None:
            if seen and tokens.shape[1] == seen + 1:  # fairseq's way for one more token, which ignores the others
                positions = self.embed_positions(tokens, incremental_state={})
            else:
                positions = self.embed_positions(tokens)[:, seen:]
            x = x + positions.to(x.dtype)
        return self.dropout(x)

    def tables(self) -> list[nn.Embedding]:
        """Return the embedding matrices, V x D_s."""
        return [getattr(self, f"embed_tokens{suffix}") for suffix in self.suffixes]

    def maps(self) -> list[Optional[nn.Linear]]:
        """Return the maps from D_s to embed_dim; None where they are equal."""
        return [getattr(self, f"embed_map{suffix}", None) for suffix in self.suffixes]

    def max_positions(self) -> int:
        """Return the longest input in tokens."""
        return self.longest


class DuoEncoder(TranslationEncoder):
    """Streams of embeddings, layers, (layer norm of pre-LN). Nothing attends to padding."""

    def __init__(self, cfg: DuoTransformerConfig, dictionary: Any, tables: list[nn.Embedding]) -> None:
        side, streams = side_of(cfg, "encoder", num_streams=cfg.duo_streams), _stream_config(cfg, "encoder")
        super().__init__(side, dictionary)
        self.embedding = DuoEmbedding(cfg, side, tables)
        self.add_layers(lambda: DuoEncoderLayer(side.layer, streams))

    def embed(self, tokens: Tensor, padding_mask: Optional[Tensor]) -> Tensor:
        """Return the streams (n, B, S, C) of tokens (B, S)."""
        return self.embedding(tokens)


class DuoDecoder(TranslationDecoder):
    """Streams of embeddings, layers, (layer norm of pre-LN), fusion, logits."""

    shares_memory = True

    def __init__(self, cfg: DuoTransformerConfig, dictionary: Any, tables: list[nn.Embedding], kdim: int) -> None:
        side, streams = side_of(cfg, "decoder", num_streams=cfg.duo_streams), _stream_config(cfg, "decoder")
        super().__init__(side, dictionary)
        width, num_streams = side.layer.embed_dim, side.num_streams
        self.embedding = DuoEmbedding(cfg, side, tables)
        self.add_layers(lambda: DuoDecoderLayer(side.layer, streams, kdim))
        self.fusion = Fusion(num_streams, width) if str(cfg.duo_fusion) == "on" and num_streams > 1 else None
        self.fused_tables: Optional[FusedTables] = None
        self.output_projection: Optional[nn.Linear] = None
        if not tied_output(cfg):
            self.output_projection = nn.Linear(width * (1 if self.fusion else num_streams), len(dictionary), bias=False)
        elif self.fusion:
            self.fused_tables = FusedTables([table.embedding_dim for table in tables], width)

    def embed(self, tokens: Tensor, seen: int) -> Tensor:
        """Return the streams (n, B, T - seen, C) of tokens (B, T) after the first `seen`."""
        return self.embedding(tokens, seen)

    def streams(self, encoder_out: EncoderOut) -> Tensor:
        """Return the encoder's streams (n, B, S, kdim)."""
        joined = super().streams(encoder_out)
        return joined.unflatten(-1, (self.side.num_streams, -1)).permute(2, 0, 1, 3).contiguous()

    def extract_features(self, *args: Any) -> tuple[Tensor, dict[str, Any]]:
        """Return f (B, T, d), or the streams side by side (B, T, n d) without fusion."""
        x, extra = super().extract_features(*args)
        return x if self.fusion is None else self.fusion(x), extra

    def output_layer(self, features: Tensor, incremental_state: Optional[dict[str, Any]] = None) -> Tensor:
        """Return logits (B, T, V) of features (B, T, d), or (B, T, n d) without fusion."""
        if self.output_projection is not None:
            return self.output_projection(features)
        tables = [table.weight for table in self.embedding.tables()]
        if self.fused_tables is None:
            streams = zip(features.chunk(len(tables), dim=-1), self.embedding.maps())
            return logits_of_streams([x if linear is None else x @ linear.weight for x, linear in streams], tables)
        steps = features.shape[1] if incremental_state is None else _STEPS
        if self.fused_tables.is_cheaper_factored(len(features) * steps, tables):
            return self.fused_tables.factored(features, tables)
        if incremental_state is None or self.fused_tables.final is not None:
            return F.linear(features, self.fused_tables(tables))
        fused = self.get_incremental_state(incremental_state, "table")  # made once per batch
        if fused is None:
            fused = self.fused_tables(tables)
            self.set_incremental_state(incremental_state, "table", fused)
        return F.linear(features, fused)

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """Compute O once: fairseq-generate, fairseq-interactive and from_pretrained call this, weights are final."""
        if self.fused_tables is not None:
            self.fused_tables.finalise_([table.weight for table in self.embedding.tables()])


# ---- Presets ----


def _sizes(*sizes: int) -> dict[str, int]:
    return {**size_options("encoder", *sizes), **size_options("decoder", *sizes)}


#: The text's 8 + 8 layers; big is the size that fits the 213M and 220M parameters of its Tables 4 and 5.
_PRESETS: dict[str, dict[str, Any]] = {
    "duo_transformer_wmt_en_de": _sizes(8, 512, 2048, 8),
    "duo_transformer_wmt_en_fr": _sizes(8, 512, 2048, 8),
    "duo_transformer_big": {**_sizes(6, 1024, 4096, 16), "dropout": 0.3},
    "duo_transformer_iwslt_de_en": _sizes(6, 512, 1024, 4),
    "duo_transformer_tiny": _sizes(2, 64, 64, 2),
}

register_presets("duo_transformer", _PRESETS)
