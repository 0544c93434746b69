"""Fine-tuning of HuBERT with CTC.

Symptom: ``--arch hubert_ctc`` ends with ``ConfigAttributeError: Key 'autoregressive' not in 'HubertCtcConfig'``.
Versions: fairseq 0.12.3 and main: the encoder asks for an option that only the sequence-to-sequence model has.
Where: fairseq/models/hubert/hubert_asr.py:384 (``HubertEncoder.__init__``).
Remedy: without the option the model is not autoregressive.
Upstream: fairseq issue 4916 (open).
Can go: with a fairseq whose ``HubertCtcConfig`` has the option.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager

REASON = "hubert_ctc asks for an option that it does not have"
BROKEN = r"not cfg\.autoregressive"
MENDED = r"class HubertEncoder\("


def needed() -> bool:
    return True


@contextmanager
def patching(module):
    yield
    encoder = module.HubertEncoder
    original = encoder.__init__

    @functools.wraps(original)
    def __init__(self, cfg, task):
        from omegaconf import DictConfig, open_dict

        if isinstance(cfg, DictConfig) and "autoregressive" not in cfg:
            with open_dict(cfg):
                cfg.autoregressive = False
        original(self, cfg, task)

    encoder.__init__ = __init__
