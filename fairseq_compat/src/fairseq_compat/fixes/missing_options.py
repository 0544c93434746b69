"""hubert_ctc and xm_transformer miss attributes.

Symptom: (a) ``--arch hubert_ctc`` ends with ``ConfigAttributeError: Key 'autoregressive' not in 'HubertCtcConfig'``.
    (b) ``--arch xm_transformer`` ends with ``AttributeError: 'Namespace' object has no attribute 'freeze_regex'``.
Versions: (a) fairseq 0.12.3 and main: only the sequence-to-sequence model has the option; (b) main: only models that
    are wav2vec's own have it.
Where: fairseq/models/hubert/hubert_asr.py:384 (``HubertEncoder.__init__``),
    fairseq/models/wav2vec/wav2vec2_asr.py:499 (``Wav2VecEncoder.__init__``).
Remedy: without the option the model is not autoregressive, and no parameter is frozen.
Upstream: (a) fairseq issue 4916 (open).
"""

from __future__ import annotations

from fairseq_compat.patches import wrap

BROKEN = r"not cfg\.autoregressive|if cfg\.freeze_regex is not None"
FIXED = r"class (HubertEncoder|Wav2VecEncoder)\("

# encoder -> an option that it reads, and the value if it is missing
OPTIONS = {"HubertEncoder": ("autoregressive", False), "Wav2VecEncoder": ("freeze_regex", None)}


def patch(module):
    for name, (option, default) in OPTIONS.items():
        encoder = vars(module).get(name)
        if encoder is not None and encoder.__module__ == module.__name__:
            add_option(encoder, option, default)


def add_option(encoder, option: str, default) -> None:
    """Let a class of encoders accept a configuration without an option, which then has its default."""

    @wrap(encoder)
    def __init__(original, self, cfg, *args, **kwargs):
        from omegaconf import DictConfig, open_dict

        if isinstance(cfg, DictConfig):
            if option not in cfg:
                with open_dict(cfg):
                    cfg[option] = default
        elif not hasattr(cfg, option):
            setattr(cfg, option, default)
        original(self, cfg, *args, **kwargs)
