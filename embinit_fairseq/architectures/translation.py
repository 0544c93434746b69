"""The frame of this plugin's translation models: what fairseq calls, around the encoder and decoder of each."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor

from embinit_fairseq.architectures.hub import load_trained
from embinit_fairseq.architectures.options import check_restored
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.modules.decoder_layer import retain_dropout_

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

    def function_options(self, cfg: Any) -> dict[str, Any]:
        """Of cfg, what must not differ from a checkpoint's (see `restoring.check_restored`)."""
        raise NotImplementedError

    def check_training(self, checkpoint: str | None, saved: Any) -> None:
        """Before a training: raises OptionError for options that are not those of the checkpoint."""
        if checkpoint is not None and saved is not None:
            check_restored(self, checkpoint, saved)

    @classmethod
    def from_pretrained(
        cls, model_name_or_path: str, checkpoint_file: str = "model.pt", data_name_or_path: str = ".", **kwargs: Any
    ) -> GeneratorHubInterface:
        """fairseq's hub around a trained checkpoint, or an ensemble of several separated by `:`."""
        loaded = load_trained(cls, model_name_or_path, checkpoint_file, data_name_or_path, **kwargs)
        return GeneratorHubInterface(loaded["args"], loaded["task"], loaded["models"])
