"""Uninitialised memory in checkpoints makes equal trainings differ.

Symptom: two trainings with the same seed (sinusoidal positions, adaptive embeddings) write checkpoints that differ in
    ``*.embed_positions._float_tensor``; the number can also be NaN, which tools that look for broken checkpoints
    report.
Where: fairseq/modules/sinusoidal_positional_embedding.py:29, adaptive_input.py:65 and adaptive_softmax.py:48
    (``torch.FloatTensor(1)``; only its type is used); ``upgrade_state_dict_named`` of the encoders and decoders
    (transformer_encoder.py:409, transformer_decoder.py:407), which puts another one into the state that is loaded.
Remedy: the buffer is zero, after building and after loading.
"""

from __future__ import annotations

from typing import Any

from fairseq_compat.patches import wrap

BROKEN = r'"_float_tensor", torch\.FloatTensor\(1\)'
FIXED = r"class (SinusoidalPositionalEmbedding|AdaptiveInput|TiedHeadModule)\("

# modules whose one-element buffer only has a type and a device
OWNERS = ("SinusoidalPositionalEmbedding", "AdaptiveInput", "TiedHeadModule")


def define_buffer(owner: Any) -> None:
    """Make ``_float_tensor`` of a module class zero after building and after loading."""

    @wrap(owner)
    def __init__(original, self, *args, **kwargs):
        original(self, *args, **kwargs)
        self._float_tensor.zero_()

    @wrap(owner)
    def _load_from_state_dict(original, self, *args, **kwargs):
        original(self, *args, **kwargs)
        self._float_tensor.zero_()


def patch(module):
    for name in OWNERS:
        if hasattr(module, name):
            define_buffer(getattr(module, name))
