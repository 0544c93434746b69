"""The second, unused set of weights in every encoder layer, and the fast path that reads it.

Symptom: (a) ``fairseq-generate`` raises ``RuntimeError: Mask Type should be defined``; (b) data-parallel training
    stops with ``Expected to have finished reduction in the prior iteration``; (c) parameter counts, checkpoints and
    optimizer states hold a zero-filled copy of every encoder layer; (d) loading a part of a state dict raises
    ``KeyError``.
Versions: (a) torch 2.x, whose private ``torch._transformer_encoder_layer_fwd`` has another signature; (b)-(d) all.
Where: fairseq/modules/transformer_layer.py:75-93, :150, :319; fairseq/models/transformer/transformer_encoder.py:265.
Remedy: the copies become empty tensors that are no parameters (``forward`` names them, so TorchScript needs them),
    their keys are dropped from state dicts, and the fast path is never taken. Old checkpoints load for generation and
    evaluation; resuming their *training* needs ``--reset-optimizer``, as its state counts the copies.
Upstream: fairseq issues 4899 (open) and 4858, both for (a).
Can go: with a fairseq without ``can_use_fastpath``.
"""

from __future__ import annotations

from contextlib import contextmanager

REASON = "unused copies of the encoder weights break data-parallel training and, with torch 2, generation"
BROKEN = r"self\.in_proj_weight = "
MENDED = r"class TransformerEncoderLayerBase\("

COPIES = (
    "in_proj_weight",
    "in_proj_bias",
    "out_proj_weight",
    "out_proj_bias",
    "fc1_weight",
    "fc1_bias",
    "fc2_weight",
    "fc2_bias",
)


def needed() -> bool:
    return True


@contextmanager
def patching(module):
    yield
    torch, layer = module.torch, module.TransformerEncoderLayerBase
    original_init = layer.__init__

    def __init__(self, *args, **kwargs):
        original_init(self, *args, **kwargs)
        self.can_use_fastpath = False
        for name in COPIES:
            delattr(self, name)
            setattr(self, name, torch.empty(0))

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        for name in COPIES:
            state_dict.pop(prefix + name, None)
        torch.nn.Module._load_from_state_dict(self, state_dict, prefix, *args, **kwargs)

    layer.__init__ = __init__
    layer._load_from_state_dict = _load_from_state_dict
