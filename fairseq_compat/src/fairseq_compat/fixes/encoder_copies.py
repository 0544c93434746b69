"""Mask Type should be defined, Expected to have finished reduction; checkpoints copy each encoder layer.

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
"""

from __future__ import annotations

from fairseq_compat.patches import wrap

BROKEN = r"self\.in_proj_weight = "
FIXED = r"class TransformerEncoderLayerBase\("

COPIES = [f"{layer}_{kind}" for layer in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias")]


def patch(module):
    torch, layer = module.torch, module.TransformerEncoderLayerBase

    @wrap(layer)
    def __init__(original, self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.can_use_fastpath = False
        for name in COPIES:
            delattr(self, name)
            setattr(self, name, torch.empty(0))

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        for name in COPIES:
            state_dict.pop(prefix + name, None)
        torch.nn.Module._load_from_state_dict(self, state_dict, prefix, *args, **kwargs)

    layer._load_from_state_dict = _load_from_state_dict
