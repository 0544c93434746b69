"""The frame of this plugin's translation models: what fairseq calls, around the encoder and decoder of each."""

from __future__ import annotations

from typing import Any

from fairseq.hub_utils import GeneratorHubInterface
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor

from embinit_fairseq.errors import OptionError
from embinit_fairseq.models.hub import load_trained
from embinit_fairseq.models.restoring import check_restored
from embinit_fairseq.modules.retained_dropout import retain_dropout_

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
        if saved is not None:
            check_restored(self, checkpoint, saved)

    @classmethod
    def from_pretrained(
        cls, model_name_or_path: str, checkpoint_file: str = "model.pt", data_name_or_path: str = ".", **kwargs: Any
    ) -> GeneratorHubInterface:
        """fairseq's hub around a trained checkpoint, or an ensemble of several separated by `:`."""
        loaded = load_trained(cls, model_name_or_path, checkpoint_file, data_name_or_path, **kwargs)
        return GeneratorHubInterface(loaded["args"], loaded["task"], loaded["models"])
