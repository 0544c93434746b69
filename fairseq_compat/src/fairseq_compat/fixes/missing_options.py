"""Options that encoders of speech read and their models do not have.

Symptom: (a) ``--arch hubert_ctc`` ends with ``ConfigAttributeError: Key 'autoregressive' not in 'HubertCtcConfig'``.
    (b) ``--arch xm_transformer`` ends with ``AttributeError: 'Namespace' object has no attribute 'freeze_regex'``.
Versions: (a) fairseq 0.12.3 and main: only the sequence-to-sequence model has the option; (b) main: only models that
    are wav2vec's own have it.
Where: fairseq/models/hubert/hubert_asr.py:384 (``HubertEncoder.__init__``),
    fairseq/models/wav2vec/wav2vec2_asr.py:499 (``Wav2VecEncoder.__init__``).
Remedy: without the option the model is not autoregressive, and no parameter is frozen.
Upstream: (a) fairseq issue 4916 (open); (b) not reported.
Can go: with a fairseq whose models have the options that their encoders read.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager

REASON = "encoders of speech ask for options that their models do not have"
BROKEN = r"not cfg\.autoregressive|if cfg\.freeze_regex is not None"
MENDED = r"class (HubertEncoder|Wav2VecEncoder)\("

# encoder -> an option that it reads, and its value where there is none
OPTIONS = {"HubertEncoder": ("autoregressive", False), "Wav2VecEncoder": ("freeze_regex", None)}


def needed() -> bool:
    return True


@contextmanager
def patching(module):
    yield
    for name, (option, default) in OPTIONS.items():
        encoder = vars(module).get(name)
        if encoder is not None and encoder.__module__ == module.__name__:
            encoder.__init__ = with_option(encoder.__init__, option, default)


def with_option(original, option, default):
    """The ``__init__`` of an encoder, for options without this one, too."""

    @functools.wraps(original)
    def __init__(self, cfg, *args, **kwargs):
        from omegaconf import DictConfig, open_dict

        if isinstance(cfg, DictConfig):
            if option not in cfg:
                with open_dict(cfg):
                    cfg[option] = default
        elif not hasattr(cfg, option):
            setattr(cfg, option, default)
        original(self, cfg, *args, **kwargs)

    return __init__
