"""A number of uninitialised memory in checkpoints with sinusoidal positions or adaptive embeddings.

Symptom: two trainings with the same seed write checkpoints that differ in ``*.embed_positions._float_tensor``; the
    number can also be NaN, which tools that look for broken checkpoints report.
Versions: all.
Where: fairseq/modules/sinusoidal_positional_embedding.py:29, adaptive_input.py:65 and adaptive_softmax.py:48
    (``torch.FloatTensor(1)``; only its type is used); ``upgrade_state_dict_named`` of the encoders and decoders
    (transformer_encoder.py:409, transformer_decoder.py:407), which puts another one into what is being loaded.
Remedy: the buffer is zero, after building and after loading.
Upstream: not reported.
Can go: with a fairseq that initialises the buffer or has none.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

REASON = "uninitialised memory in checkpoints makes equal trainings differ"
BROKEN = r'"_float_tensor", torch\.FloatTensor\(1\)'
MENDED = r"class (SinusoidalPositionalEmbedding|AdaptiveInput|TiedHeadModule)\("


def needed() -> bool:
    return True


# all keep a one-element buffer only to know type and device
OWNERS = ("SinusoidalPositionalEmbedding", "AdaptiveInput", "TiedHeadModule")


def define_buffer(owner: Any) -> None:
    """Make ``_float_tensor`` of a module class zero after building and after loading."""
    original_init, original_load = owner.__init__, owner._load_from_state_dict

    def __init__(self, *args, **kwargs):
        original_init(self, *args, **kwargs)
        self._float_tensor.zero_()

    def _load_from_state_dict(self, *args, **kwargs):
        original_load(self, *args, **kwargs)
        self._float_tensor.zero_()

    owner.__init__ = __init__
    owner._load_from_state_dict = _load_from_state_dict


@contextmanager
def patching(module):
    yield
    for name in OWNERS:
        if hasattr(module, name):
            define_buffer(getattr(module, name))
