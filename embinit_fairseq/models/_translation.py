"""Put fairseq's interface around batch-first layers: the common part of this plugin's translation models.

An encoder or decoder of a family defines how it embeds tokens (`embed`) and which bias its self-attention adds
(`bias`); layers, padding, attention weights, incremental decoding and beam search are here. Parts of fairseq's own
base classes are not used: their layers are time-first, and add a buffer to the checkpoint.

B: batch, T: tgt_len, S: src_len, C: embed_dim of a side, V: symbols. Layers of n streams (Duo) have x (n, B, T, C), and
n B rows of attention, stream by stream; the others (B, T, C) and n = 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, FairseqIncrementalDecoder
from torch import Tensor, nn

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.models._hub import TranslationHub, load_hub
from embinit_fairseq.models._options import layer_config, side_option
from embinit_fairseq.modules.attention_kernels import AttentionContext, choose_kernel, prepare
from embinit_fairseq.modules.decoder_layer import DecoderCache, beam_of, causal, distinct_rows
from embinit_fairseq.modules.encoder_layer import LayerConfig
from embinit_fairseq.modules.fixed_positions import Rotation
from embinit_fairseq.modules.initialisation import init_table, init_transformer_params

#: encoder's output in fairseq's form: an empty list is None
EncoderOut = dict[str, list[Tensor]]


@dataclass(frozen=True)
class Side:
    """Hold the sizes of encoder or decoder."""

    name: str
    layer: LayerConfig
    num_layers: int
    max_positions: int
    embed_scale: float
    attention_kernel: str
    num_streams: int

    def attention_context(
        self,
        x: Tensor,
        bias: Tensor | None,
        padding_mask: Tensor | None,
        step: bool = False,
        rotation: Rotation | None = None,
    ) -> AttentionContext:
        """Return the context of attention on x (..., C); padding_mask (B, S) is repeated for the streams.

        For a step of one query fusing saves nothing on a CPU, and plain products are faster.
        """
        kernel = self.attention_kernel
        if step and kernel == "auto" and x.device.type == "cpu":
            kernel = "eager"
        else:
            kernel, _ = choose_kernel(kernel, x.device.type, torch.is_grad_enabled())
        if padding_mask is not None and self.num_streams > 1:
            padding_mask = padding_mask.repeat(self.num_streams, 1)
        return prepare(kernel, bias, padding_mask, rotation)


def side_of(cfg: Any, name: str, num_terms: int = 1, num_streams: int = 1) -> Side:
    """Return the sizes of the side `encoder` or `decoder`. num_terms: terms of the logits of self-attention."""
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


def leading_padding(padding_mask: Tensor) -> Tensor:
    """Return the number of columns of padding, (B,), at the beginning of each row of padding_mask (B, len)."""
    return padding_mask.long().cumprod(dim=1).sum(dim=1)


def rotate_left(x: Tensor, shift: Tensor) -> Tensor:
    """Move row b of x (B, len, ...) by `shift[b]` columns to the left; a negative shift moves to the right."""
    batch, length = x.shape[:2]
    columns = (torch.arange(length, device=x.device) + shift.unsqueeze(1)) % length
    return x[torch.arange(batch, device=x.device).unsqueeze(1), columns]


class Layers:
    """Hold the layers of an encoder or decoder, and the layer norm of pre-LN."""

    def __init__(self, side: Side, dictionary: Any) -> None:
        super().__init__(dictionary)  # type: ignore[call-arg]  # of fairseq's encoder or decoder
        self.side, self.padding_idx = side, dictionary.pad()

    def add_layers(self, new_layer: Callable[[], nn.Module]) -> None:
        """Make the layers: the last modules of an encoder, in a decoder followed by the output layer."""
        layer = self.side.layer
        self.layers = nn.ModuleList(new_layer() for _ in range(self.side.num_layers))
        self.layer_norm = nn.LayerNorm(layer.embed_dim) if layer.normalize_before else None

    def rotation(self, length: int, first: int = 0) -> Rotation | None:
        """Return the rotation of queries and keys of the tokens `first` to `length` - 1, or None."""
        return None

    def max_positions(self) -> int:
        """Return the longest sentence in tokens, `</s>` included."""
        return self.side.max_positions


class TranslationEncoder(Layers, FairseqEncoder):
    """Embeddings, layers, (layer norm of pre-LN)."""

    def embed(self, tokens: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Return the input of the first layer for tokens and padding_mask (B, S)."""
        raise NotImplementedError

    def bias(self, src_len: int) -> Tensor | None:
        """Return the bias that self-attention adds to its logits, (H, S, S)."""
        return None

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor | None = None, return_all_hiddens: bool = False
    ) -> EncoderOut:
        """Return fairseq's dictionary of lists for src_tokens (B, S), with padding on either side.

        encoder_out (S, B, n C), streams side by side, and encoder_padding_mask (B, S) have the columns of src_tokens.
        encoder_states, if return_all_hiddens, have the shape of encoder_out; src_lengths is (B, 1). sentence (B,) is
        the number of a row's sentence, which beam search moves with the row.

        Raises:
            DataError: a sentence is too long.
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
        bias, rotation = self.bias(tokens.shape[1]), self.rotation(tokens.shape[1])
        context = self.side.attention_context(x, bias, padding_mask, rotation=rotation)
        hiddens = []
        for layer in self.layers:
            if all_hiddens:
                hiddens.append(x)
            x = layer(x, context)
        return [*hiddens, x if self.layer_norm is None else self.layer_norm(x)]

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """Make row n the old row `new_order[n]`. Nothing is copied if rows of one sentence are exchanged."""
        sentence = encoder_out["sentence"][0].index_select(0, new_order)
        if torch.equal(sentence, encoder_out["sentence"][0]):
            return encoder_out
        rows_second = ("encoder_out", "encoder_states")
        return {
            name: [value.index_select(int(name in rows_second), new_order) for value in values]
            for name, values in encoder_out.items()
        }


class TranslationDecoder(Layers, FairseqIncrementalDecoder):
    """Embeddings, layers, (layer norm of pre-LN), output layer; all tokens at once or step by step.

    Positions are columns: a sentence after padding is rotated until it begins in column 0, and rotated back at the end.
    """

    #: True if rows of a beam share keys and values of the encoder's output
    shares_memory = False

    def embed(self, tokens: Tensor, seen: int) -> Tensor:
        """Return the input of the first layer for tokens (B, T) after the first `seen`."""
        raise NotImplementedError

    def bias(self, x: Tensor, tgt_len: int, cache: DecoderCache | None) -> Tensor | None:
        """Return the causal mask of the queries x, which a single new token does not need.

        Padding after a sentence needs no mask: no query sees a later key.
        """
        seen = 0 if cache is None else cache.length
        if cache is not None and tgt_len == seen + 1:
            return None
        return causal(x.new_zeros(1, tgt_len, tgt_len))[:, seen:]

    def streams(self, encoder_out: EncoderOut) -> Tensor:
        """Return the encoder's output with rows first, (B, S, kdim) or (n, B, S, kdim)."""
        return encoder_out["encoder_out"][0].transpose(0, 1)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: dict[str, Any] | None = None,
        features_only: bool = False,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return logits (B, T, V) for prev_output_tokens (B, T), or with features_only the input of `output_layer`.

        The second result holds `attn`, the weights of the last cross-attention (B, T, S), mean over streams and heads,
        and `inner_states`, (T, B, n C). With an incremental_state prev_output_tokens is the whole prefix, and results
        are of the new tokens.

        Raises:
            DataError: a target is too long, or a prefix has no new token.
        """
        x, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state)
        return (x if features_only else self.output_layer(x, incremental_state)), extra

    def extract_features(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOut, incremental_state: dict[str, Any] | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute `forward` with features_only."""
        check_length(prev_output_tokens, self.side.max_positions, "target")
        padding_mask = prev_output_tokens.eq(self.padding_idx)
        if incremental_state is not None or not padding_mask[:, 0].any():
            x, attn, states = self._decode(prev_output_tokens, encoder_out, incremental_state)
        else:
            shift = leading_padding(padding_mask)
            x, attn, states = self._decode(rotate_left(prev_output_tokens, shift), encoder_out, None)
            x, attn, *states = (rotate_left(rows, -shift) for rows in (x, attn, *states))
        return x, {"attn": [attn], "inner_states": [state.transpose(0, 1) for state in states]}

    def _decode(
        self, tokens: Tensor, encoder_out: EncoderOut, incremental_state: dict[str, Any] | None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return features (B, T, n C), attention (B, T, S) and hidden states (B, T, n C) of the new tokens."""
        cache = None if incremental_state is None else self.cache(incremental_state, encoder_out)
        seen = 0 if cache is None else cache.length
        if tokens.shape[1] <= seen:
            raise DataError(
                f"incremental decoding was given {tokens.shape[1]} tokens after {seen}: prev_output_tokens must be the "
                "whole prefix, with at least one token more than before"
            )
        x, is_step = self.embed(tokens, seen), cache is not None
        bias = self.bias(x, tokens.shape[1], cache)
        rotation = self.rotation(tokens.shape[1], seen)
        self_context = self.side.attention_context(x, bias, None, is_step, rotation)
        src_padding = next(iter(encoder_out["encoder_padding_mask"]), None)
        if cache is not None and src_padding is not None:
            src_padding = src_padding[:: cache.beam]
        cross_context = self.side.attention_context(x, None, src_padding, is_step)
        streams = None if cache is not None else self.streams(encoder_out)
        weights, states = None, [x]
        for number, layer in enumerate(cast(Any, self.layers)):
            memory = layer.encoder_attn.memory(streams) if cache is None else cache.memory[number]
            extend = None if cache is None else functools.partial(cache.extend, number)
            x, weights = layer(x, self_context, memory, cross_context, layer is self.layers[-1], extend)
            states.append(x)
        if cache is not None:
            cache.advance(x.shape[-2])
        attn = cast(Tensor, weights)  # (B, H, T, S) or (n, B, H, T, S)
        x = x if self.layer_norm is None else self.layer_norm(x)
        return side_by_side(x), attn.mean(dim=(0, 2) if attn.dim() == 5 else 1), [side_by_side(x) for x in states]

    def cache(self, incremental_state: dict[str, Any], encoder_out: EncoderOut) -> DecoderCache:
        """Return the state of the batch. Keys and values of encoder outputs are computed in the first step."""
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
        """Make row n the old row `new_order[n]`."""
        cache = self.get_incremental_state(incremental_state, "cache")
        if cache is not None:
            cache.reorder(self._rows(new_order, len(cache.sentence) // self.side.num_streams))

    def _rows(self, rows: Tensor, batch: int) -> Tensor:
        """Return the rows (B,) out of `batch` for every stream, (n B,), out of n `batch`."""
        first = torch.arange(self.side.num_streams, device=rows.device) * batch
        return (first.unsqueeze(1) + rows).flatten()


class TranslationModel(FairseqEncoderDecoderModel):
    """Encoder and decoder; retains dropout as fairseq's models do."""

    hub = TranslationHub

    @classmethod
    def initialised(cls, cfg: Any, encoder: Any, decoder: Any, tables: list[nn.Embedding]) -> TranslationModel:
        """Return the model with initial values. tables: the embedding matrices, drawn in this order."""
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
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the results of the decoder's forward for src_tokens (B, S) and prev_output_tokens (B, T)."""
        encoder_out = self.encoder(src_tokens, src_lengths, return_all_hiddens)
        return self.decoder(prev_output_tokens, encoder_out, None, features_only)

    def make_generation_fast_(
        self, retain_dropout: bool = False, retain_dropout_modules: str | list[str] | None = None, **kwargs: Any
    ) -> None:
        """Prepare for generation, as fairseq does. retain_dropout_modules: names of classes, a list or with commas."""
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

    Args:
        classes: names of the classes whose own dropouts are retained (default: all).

    Raises:
        OptionError: no module with dropout has a class of this name.
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
