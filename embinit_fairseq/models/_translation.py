"""The frame of this plugin's translation models: what fairseq calls, around the encoder and decoder of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
from fairseq.models import FairseqEncoderDecoderModel, FairseqIncrementalDecoder
from torch import Tensor, nn

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.models._hub import TranslationHub, load_hub
from embinit_fairseq.modules.decoder_layer import DecoderCache, retain_dropout_

#: (layer, number of heads or None for all) whose weights of cross-attention are wanted
Alignment = tuple[int, Optional[int]]
#: what `output_layer` takes, weights (B, T, S) or None, hidden states
Features = tuple[Tensor, Optional[Tensor], list[Tensor]]

# ---- What encoders and decoders for translation share: the length of sentences, the rows of beam search -------------


def check_length(tokens: Tensor, max_positions: int, side: str) -> None:
    """Raises DataError for a batch that is longer than the model's positions."""
    if tokens.shape[1] > max_positions:
        raise DataError(
            f"a {side} sentence has {tokens.shape[1]} tokens, the model {max_positions} positions: shorten it "
            f"(--max-{side}-positions {max_positions} with --skip-invalid-size-inputs-valid-test leaves it out), or "
            f"train with a larger --max-{side}-positions"
        )


def encoder_output(
    src_tokens: Tensor, padding_idx: int, x: Tensor, padding_mask: Tensor | None, states: list[Tensor]
) -> dict[str, list[Tensor]]:
    """fairseq's dictionary of lists, in which an empty list stands for None.

    encoder_out and encoder_states (src_len, batch, ...); encoder_padding_mask (batch, src_len); src_lengths (batch, 1);
    sentence (batch,): the number of a row's sentence, which goes with the row wherever beam search puts it.
    """
    return {
        "encoder_out": [x],
        "encoder_padding_mask": [] if padding_mask is None else [padding_mask],
        "encoder_embedding": [],
        "encoder_states": states,
        "src_tokens": [],
        "src_lengths": [src_tokens.ne(padding_idx).sum(dim=1, keepdim=True, dtype=torch.int32)],
        "sentence": [torch.arange(len(src_tokens), device=src_tokens.device)],
    }


def reorder_rows(encoder_out: dict[str, list[Tensor]], new_order: Tensor) -> dict[str, list[Tensor]]:
    """Row n becomes what row `new_order[n]` was. Nothing is copied where rows of one sentence are exchanged."""
    sentence = encoder_out["sentence"][0].index_select(0, new_order)
    if torch.equal(sentence, encoder_out["sentence"][0]):
        return encoder_out
    rows_second = ("encoder_out", "encoder_states")
    return {
        name: [value.index_select(int(name in rows_second), new_order) for value in values]
        for name, values in encoder_out.items()
    }


class CachedDecoder(FairseqIncrementalDecoder):
    """fairseq's interface around layers that take all tokens at once, or those behind a cache.

    A decoder of this kind says what goes into its layers (`at_once`, `steps`) and how rows of a batch are numbered.
    """

    cfg: Any
    layers: nn.ModuleList

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]],
        incremental_state: dict[str, Any] | None = None,
        features_only: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """prev_output_tokens (B, T) -> logits (B, T, V), or with features_only what `output_layer` takes.

        The second result holds `attn`, the weights of cross-attention (B, T, S) of one layer (default: the last), mean
        over heads (default: all), and `inner_states`, each (T, B, ...). With an incremental_state prev_output_tokens is
        the whole prefix, and the results are those of the tokens that were not given before.
        """
        x, extra = self.extract_features(
            prev_output_tokens, encoder_out, incremental_state, alignment_layer, alignment_heads
        )
        return (x if features_only else self.output_layer(x, incremental_state)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]],
        incremental_state: dict[str, Any] | None = None,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """As forward with features_only. Raises DataError for a target that is too long."""
        check_length(prev_output_tokens, self.cfg.max_positions, "target")
        alignment = len(self.layers) - 1 if alignment_layer is None else alignment_layer, alignment_heads
        if incremental_state is None:
            x, attn, states = self.at_once(prev_output_tokens, encoder_out, alignment)
        else:
            cache = self.get_incremental_state(incremental_state, "cache")
            if cache is None:
                cache = self.new_cache(encoder_out)
                self.set_incremental_state(incremental_state, "cache", cache)
            if prev_output_tokens.shape[1] <= cache.length:
                raise DataError(
                    f"incremental decoding was given {prev_output_tokens.shape[1]} tokens after {cache.length}: "
                    "prev_output_tokens must be the whole prefix, with at least one token more than before"
                )
            x, attn, states = self.steps(prev_output_tokens, encoder_out, cache, alignment)
            cache.advance(prev_output_tokens.shape[1] - cache.length)
        return x, {"attn": [attn], "inner_states": [state.transpose(0, 1) for state in states]}

    def at_once(
        self, prev_output_tokens: Tensor, encoder_out: dict[str, list[Tensor]], alignment: Alignment
    ) -> Features:
        """All tokens -> what `output_layer` takes (B, T, ...), weights of cross-attention, hidden states."""
        raise NotImplementedError

    def steps(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]],
        cache: DecoderCache,
        alignment: Alignment,
    ) -> Features:
        """The same for the tokens after those of the cache."""
        raise NotImplementedError

    def new_cache(self, encoder_out: dict[str, list[Tensor]]) -> DecoderCache:
        """For this batch; keys and values of cross-attention are computed here, once a sentence."""
        raise NotImplementedError

    def through_layers(
        self, x: Tensor, call: Callable[[int, Any, Tensor, bool], tuple[Tensor, Tensor | None]], aligned: int
    ) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """call(number, layer, x, need_weights). Returns x behind all, the weights of the aligned layer, all states."""
        weights, states = None, [x]
        for number, layer in enumerate(self.layers):
            x, of_layer = call(number, layer, x, number == aligned)
            weights = weights if of_layer is None else of_layer
            states.append(x)
        return x, weights, states

    def rows_of(self, new_order: Tensor, cache: DecoderCache) -> Tensor:
        """Rows of the cache for rows of the batch."""
        return new_order

    def reorder_incremental_state(self, incremental_state: dict[str, Any], new_order: Tensor) -> None:
        """Row n becomes what row `new_order[n]` was."""
        cache = self.get_incremental_state(incremental_state, "cache")
        if cache is not None:
            cache.reorder(self.rows_of(new_order, cache))

    def max_positions(self) -> int:
        """Longest output in tokens, `</s>` included."""
        return self.cfg.max_positions


# ----------------------------------------------------------------------------------------------------------------------

_MODULES_ALONE = "--retain-dropout-modules means nothing without --retain-dropout: give both, or neither"


class TranslationModel(FairseqEncoderDecoderModel):
    """Passes alignment options on to the decoder; holds the options of a checkpoint against those of a training."""

    #: tells fairseq that forward takes alignment_layer and alignment_heads
    supports_align_args = True

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
        """src_tokens (B, S), prev_output_tokens (B, T) -> as the decoder's forward."""
        encoder_out = self.encoder(src_tokens, src_lengths, return_all_hiddens)
        return self.decoder(prev_output_tokens, encoder_out, None, features_only, alignment_layer, alignment_heads)

    def make_generation_fast_(
        self, retain_dropout: bool = False, retain_dropout_modules: str | list[str] | None = None, **kwargs: Any
    ) -> None:
        """As fairseq's. retain_dropout_modules: names of classes, as a list or with commas between them.

        Raises OptionError for names that stand for no module with dropout, and for names without retain_dropout.
        """
        super().make_generation_fast_(**kwargs)
        if isinstance(retain_dropout_modules, str):
            retain_dropout_modules = retain_dropout_modules.replace(",", " ").split()
        if retain_dropout:
            retain_dropout_(self, retain_dropout_modules)
        elif retain_dropout_modules is not None:
            raise OptionError(_MODULES_ALONE)

    def prepare_for_inference_(self, cfg: Any) -> None:
        """As fairseq's, which drops retain_dropout_modules without a word if retain_dropout is not set: OptionError."""
        options = cfg.generation  # of old checkpoints, without options that are younger
        modules = getattr(options, "retain_dropout_modules", None)
        if modules is not None and not getattr(options, "retain_dropout", False):
            raise OptionError(_MODULES_ALONE)
        super().prepare_for_inference_(cfg)

    @classmethod
    def from_pretrained(
        cls, model_name_or_path: str, checkpoint_file: str = "model.pt", data_name_or_path: str = ".", **kwargs: Any
    ) -> TranslationHub:
        """Return a `TranslationHub` around a trained checkpoint, or an ensemble of several separated by `:`."""
        return load_hub(cls, model_name_or_path, checkpoint_file, data_name_or_path, **kwargs)
