"""What the translation models of this plugin have in common: fairseq's interface around batch-first layers.

An encoder or decoder of a family says how it embeds tokens (`embed`) and which bias its self-attention adds (`bias`);
layers, padding, attention weights, incremental decoding and beam search are here. Parts of fairseq's own base classes
are not used: their layers are time-first, and add a buffer to the checkpoint.

B: batch, T: tgt_len, S: src_len, C: embed_dim of a side, V: symbols. Layers of n streams (Duo) have x (n, B, T, C), and
n B rows of attention, stream by stream; the others (B, T, C) and n = 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, FairseqIncrementalDecoder
from torch import Tensor, nn

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.models._hub import TranslationHub, load_hub
from embinit_fairseq.models._options import layer_config, side_option
from embinit_fairseq.modules.attention_kernels import AttentionBias, choose_kernel, prepare, situation
from embinit_fairseq.modules.decoder_layer import DecoderCache, beam_of, distinct_rows
from embinit_fairseq.modules.encoder_layer import LayerConfig
from embinit_fairseq.modules.initialisation import init_table, init_transformer_params

#: encoder's output in fairseq's form: an empty list is None
EncoderOut = dict[str, list[Tensor]]


@dataclass(frozen=True)
class Side:
    """Sizes of encoder or decoder."""

    name: str
    layer: LayerConfig
    num_layers: int
    max_positions: int
    embed_scale: float
    attention_kernel: str
    num_streams: int

    def attention_bias(
        self, x: Tensor, training: bool, bias: Tensor | None, padding_mask: Tensor | None, step: bool = False
    ) -> AttentionBias:
        """Return the bias of attention on x (..., C); padding_mask (B, S) is repeated for the streams.

        For a step of one query fusing saves nothing on a CPU, and plain products are faster.
        """
        kernel = self.attention_kernel
        if step and kernel == "auto" and x.device.type == "cpu":
            kernel = "eager"
        else:
            dropout = self.layer.attention_dropout if training else 0.0
            kernel, _ = choose_kernel(kernel, situation(x, self.layer.embed_dim // self.layer.num_heads, dropout))
        if padding_mask is not None and self.num_streams > 1:
            padding_mask = padding_mask.repeat(self.num_streams, 1)
        return prepare(kernel, bias, padding_mask)


def side_of(cfg: Any, name: str, num_terms: int = 1, num_streams: int = 1) -> Side:
    """Return the sizes of the side `encoder` or `decoder`. num_terms: of the logits of self-attention."""
    layer = layer_config(cfg, name, num_terms)
    return Side(
        name=name,
        layer=layer,
        num_layers=side_option(cfg, name, "layers"),
        max_positions=cfg.max_source_positions if name == "encoder" else cfg.max_target_positions,
        embed_scale=1.0 if cfg.no_scale_embedding else math.sqrt(layer.embed_dim),
        attention_kernel=str(cfg.attention_kernel),
        num_streams=num_streams,
    )


def check_length(tokens: Tensor, max_positions: int, side: str) -> None:
    """Raise DataError for a batch that is longer than the model's positions."""
    if tokens.shape[1] > max_positions:
        raise DataError(
            f"a {side} sentence has {tokens.shape[1]} tokens, the model {max_positions} positions: shorten it "
            f"(--max-{side}-positions {max_positions} with --skip-invalid-size-inputs-valid-test leaves it out), or "
            f"train with a larger --max-{side}-positions"
        )


def check_joined(source: Any, target: Any) -> None:
    """Raise OptionError unless both languages have one dictionary, which --share-all-embeddings needs."""
    if source != target:
        raise OptionError(
            f"--share-all-embeddings needs one dictionary for both languages, here they have {len(source)} and "
            f"{len(target)} symbols: binarise with --joined-dictionary, or use --share-decoder-input-output-embed"
        )


def side_by_side(x: Tensor) -> Tensor:
    """Join streams: (n, B, T, C) -> (B, T, n C). (B, T, C) is returned as it is."""
    return x.permute(1, 2, 0, 3).flatten(2) if x.dim() == 4 else x


class TranslationEncoder(FairseqEncoder):
    """Embeddings, layers, (layer norm of pre-LN)."""

    layers: nn.ModuleList
    layer_norm: nn.LayerNorm | None

    def __init__(self, side: Side, dictionary: Any) -> None:
        super().__init__(dictionary)
        self.side, self.padding_idx = side, dictionary.pad()

    def embed(self, tokens: Tensor, padding_mask: Tensor | None) -> Tensor:
        """tokens and padding_mask (B, S) -> the input of the first layer."""
        raise NotImplementedError

    def bias(self, src_len: int) -> Tensor | None:
        """Return what self-attention adds to its logits, (H, S, S)."""
        return None

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor | None = None, return_all_hiddens: bool = False
    ) -> EncoderOut:
        """src_tokens (B, S), padding on either side -> fairseq's dictionary of lists.

        encoder_out (S, B, n C), streams side by side, and encoder_padding_mask (B, S) have the columns of src_tokens;
        encoder_states, of the shape of encoder_out, if return_all_hiddens; src_lengths (B, 1); sentence (B,): the
        number of a row's sentence, which beam search moves with the row. Raises DataError for a sentence that is too
        long.
        """
        check_length(src_tokens, self.side.max_positions, "source")
        is_padding = src_tokens.eq(self.padding_idx)
        padding_mask = is_padding if is_padding.any() else None
        states = self.encode(src_tokens, padding_mask, return_all_hiddens)
        states = [side_by_side(state).transpose(0, 1) for state in states]
        return {
            "encoder_out": [states[-1]],
            "encoder_padding_mask": [] if padding_mask is None else [padding_mask],
            "encoder_embedding": [],
            "encoder_states": states if return_all_hiddens else [],
            "src_tokens": [],
            "src_lengths": [src_tokens.ne(self.padding_idx).sum(dim=1, keepdim=True, dtype=torch.int32)],
            "sentence": [torch.arange(len(src_tokens), device=src_tokens.device)],
        }

    def encode(self, tokens: Tensor, padding_mask: Tensor | None, all_hiddens: bool) -> list[Tensor]:
        """Return the output of the last layer, after the other hidden states if wanted."""
        x = self.embed(tokens, padding_mask)
        attn_bias = self.side.attention_bias(x, self.training, self.bias(tokens.shape[1]), padding_mask)
        hiddens = []
        for layer in self.layers:
            if all_hiddens:
                hiddens.append(x)
            x = layer(x, attn_bias)
        return [*hiddens, x if self.layer_norm is None else self.layer_norm(x)]

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """Row n becomes the old row `new_order[n]`. Nothing is copied if rows of one sentence are exchanged."""
        sentence = encoder_out["sentence"][0].index_select(0, new_order)
        if torch.equal(sentence, encoder_out["sentence"][0]):
            return encoder_out
        rows_second = ("encoder_out", "encoder_states")
        return {
            name: [value.index_select(int(name in rows_second), new_order) for value in values]
            for name, values in encoder_out.items()
        }

    def max_positions(self) -> int:
        """Return the longest input in tokens, `</s>` included."""
        return self.side.max_positions


class TranslationDecoder(FairseqIncrementalDecoder):
    """Embeddings, layers, (layer norm of pre-LN), output layer; all tokens at once or step by step."""

    layers: nn.ModuleList
    layer_norm: nn.LayerNorm | None
    #: rows of a beam share keys and values of the encoder's output
    shares_memory = False

    def __init__(self, side: Side, dictionary: Any) -> None:
        super().__init__(dictionary)
        self.side, self.padding_idx = side, dictionary.pad()

    def embed(self, tokens: Tensor, seen: int) -> Tensor:
        """tokens (B, T) -> the input of the first layer for the tokens after the first `seen`."""
        raise NotImplementedError

    def bias(self, x: Tensor, tokens: Tensor, cache: DecoderCache | None) -> tuple[Tensor | None, Tensor | None]:
        """Return what self-attention adds for the queries x, causal mask included, and its padding mask."""
        raise NotImplementedError

    def streams(self, encoder_out: EncoderOut) -> Tensor:
        """Return the encoder's output with rows first, (B, S, kdim) or (n, B, S, kdim)."""
        return encoder_out["encoder_out"][0].transpose(0, 1)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: dict[str, Any] | None = None,
        features_only: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """prev_output_tokens (B, T) -> logits (B, T, V), or with features_only the input of `output_layer`.

        The second result holds `attn`, the weights of cross-attention (B, T, S) of one layer (default: the last), mean
        over streams and heads (default: all), and `inner_states`, (T, B, n C). With an incremental_state
        prev_output_tokens is the whole prefix, and results are of the new tokens.
        """
        x, extra = self.extract_features(
            prev_output_tokens, encoder_out, incremental_state, alignment_layer, alignment_heads
        )
        return (x if features_only else self.output_layer(x, incremental_state)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: dict[str, Any] | None = None,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute `forward` with features_only. Raises DataError for a target that is too long."""
        check_length(prev_output_tokens, self.side.max_positions, "target")
        cache = None if incremental_state is None else self.cache(incremental_state, encoder_out)
        seen = 0 if cache is None else cache.length
        if prev_output_tokens.shape[1] <= seen:
            raise DataError(
                f"incremental decoding was given {prev_output_tokens.shape[1]} tokens after {seen}: "
                "prev_output_tokens must be the whole prefix, with at least one token more than before"
            )
        x = self.embed(prev_output_tokens, seen)
        bias, padding_mask = self.bias(x, prev_output_tokens, cache)
        is_step = cache is not None
        self_bias = self.side.attention_bias(x, self.training, bias, padding_mask, is_step)
        src_padding = next(iter(encoder_out["encoder_padding_mask"]), None)
        if cache is not None and src_padding is not None:
            src_padding = src_padding[:: cache.beam]
        cross_bias = self.side.attention_bias(x, self.training, None, src_padding, is_step)
        streams = None if cache is not None else self.streams(encoder_out)
        aligned = len(self.layers) - 1 if alignment_layer is None else alignment_layer
        attn, states = None, [x]
        for number, layer in enumerate(cast(Any, self.layers)):
            memory = layer.encoder_attn.memory(streams) if cache is None else cache.memory[number]
            extend = None if cache is None else functools.partial(cache.extend, number)
            x, weights = layer(x, self_bias, memory, cross_bias, number == aligned, extend)
            if weights is not None:  # (B, H, T, S) or (n, B, H, T, S)
                attn = weights[..., :alignment_heads, :, :].mean(dim=(0, 2) if weights.dim() == 5 else 1)
            states.append(x)
        if cache is not None:
            cache.advance(x.shape[-2])
        x = side_by_side(x if self.layer_norm is None else self.layer_norm(x))
        return x, {"attn": [attn], "inner_states": [side_by_side(state).transpose(0, 1) for state in states]}

    def cache(self, incremental_state: dict[str, Any], encoder_out: EncoderOut) -> DecoderCache:
        """Return the state of the batch in fairseq's incremental_state.

        It is made in the first step: keys and values of the encoder's output are computed once per sentence.
        """
        cache = self.get_incremental_state(incremental_state, "cache")
        if cache is None:
            sentence = encoder_out["sentence"][0]
            rows, place = distinct_rows(sentence)
            streams = self.streams(encoder_out).index_select(-3, rows)
            memory = [layer.encoder_attn.memory(streams) for layer in cast(Any, self.layers)]
            beam = beam_of(place, len(rows)) if self.shares_memory else 1
            if beam == 1:
                place = self._rows(place, len(rows))
                memory = [(k.index_select(0, place), v.index_select(0, place)) for k, v in memory]
            cache = DecoderCache(self._rows(sentence, int(sentence.max()) + 1), memory, beam)
            self.set_incremental_state(incremental_state, "cache", cache)
        return cache

    def reorder_incremental_state(self, incremental_state: dict[str, Any], new_order: Tensor) -> None:
        """Row n becomes the old row `new_order[n]`."""
        cache = self.get_incremental_state(incremental_state, "cache")
        if cache is not None:
            cache.reorder(self._rows(new_order, len(cache.sentence) // self.side.num_streams))

    def _rows(self, rows: Tensor, batch: int) -> Tensor:
        """Numbers of rows among `batch` (B,) -> the same rows of each stream among n `batch`, (n B,)."""
        first = torch.arange(self.side.num_streams, device=rows.device) * batch
        return (first.unsqueeze(1) + rows).flatten()

    def max_positions(self) -> int:
        """Return the longest output in tokens, `</s>` included."""
        return self.side.max_positions


class TranslationModel(FairseqEncoderDecoderModel):
    """Passes alignment options to the decoder; retains dropout as fairseq's models do."""

    #: tells fairseq that forward takes alignment_layer and alignment_heads
    supports_align_args = True

    @classmethod
    def initialised(cls, cfg: Any, encoder: Any, decoder: Any, tables: list[nn.Embedding]) -> TranslationModel:
        """Return the model with initial values. tables: the embedding matrices, in the order of their draws."""
        model = cls(encoder, decoder)
        model.cfg = cfg
        model.apply(init_transformer_params)
        if decoder.output_projection is not None:
            init_table(decoder.output_projection.weight, decoder.output_projection.in_features)
        for table in tables:  # after the output, which may be the same
            init_table(table.weight, table.embedding_dim)
            nn.init.zeros_(table.weight[table.padding_idx])
        return model

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None,
        prev_output_tokens: Tensor,
        return_all_hiddens: bool = False,
        features_only: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """src_tokens (B, S), prev_output_tokens (B, T) -> the results of the decoder's forward."""
        encoder_out = self.encoder(src_tokens, src_lengths, return_all_hiddens)
        return self.decoder(prev_output_tokens, encoder_out, None, features_only, alignment_layer, alignment_heads)

    def make_generation_fast_(
        self, retain_dropout: bool = False, retain_dropout_modules: str | list[str] | None = None, **kwargs: Any
    ) -> None:
        """Prepare for generation, as fairseq's. retain_dropout_modules: names of classes, a list or with commas."""
        super().make_generation_fast_(**kwargs)
        if isinstance(retain_dropout_modules, str):
            retain_dropout_modules = retain_dropout_modules.replace(",", " ").split()
        if retain_dropout:
            retain_dropout_(self, retain_dropout_modules)

    @classmethod
    def from_pretrained(
        cls, model_name_or_path: str, checkpoint_file: str = "model.pt", data_name_or_path: str = ".", **kwargs: Any
    ) -> TranslationHub:
        """Return a `TranslationHub` around a trained checkpoint, or an ensemble of several separated by `:`."""
        return load_hub(cls, model_name_or_path, checkpoint_file, data_name_or_path, **kwargs)


def retain_dropout_(model: nn.Module, classes: Sequence[str] | None = None) -> None:
    """Put the dropouts of `model` into training mode until `model.train` is called (Monte Carlo dropout).

    classes: names of the classes whose own dropouts are meant (default: all). Raises OptionError for an unknown name.
    """
    dropouts: dict[str, list[nn.Module]] = {}
    for module in model.modules():
        own: list[nn.Module] = [child for child in module.children() if isinstance(child, nn.Dropout)]
        if isinstance(getattr(module, "dropout", None), float):  # attention, which keeps a rate
            own.append(module)
        if own:
            dropouts.setdefault(type(module).__name__, []).extend(own)
    for name in dropouts if classes is None else classes:
        if name not in dropouts:
            raise OptionError(
                f"--retain-dropout-modules {name}: no module with dropout has this class; there are "
                f"{', '.join(sorted(dropouts))}"
            )
        for dropout in dropouts[name]:
            dropout.training = True
