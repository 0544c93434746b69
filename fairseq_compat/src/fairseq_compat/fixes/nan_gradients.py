"""A gradient of nan: StopIteration; now the name of the module.

Symptom: ``StopIteration`` in torch/nn/modules/module.py after ``FloatingPointError: gradients are Nan/Inf``: fairseq
    repeats the batch to find the module, and torch takes no backward hook of a module that returns lists in a dict, as
    all encoders do.
Where: fairseq/nan_detector.py:50 (``register_backward_hook``).
Remedy: the gradients of a module's outputs are looked at by hooks of these tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairseq_compat.patches import wrap

BROKEN = r"module\.register_backward_hook\("


def tensors_of(output: Any) -> Iterator[Any]:
    """Yield the tensors with a gradient in a module's output."""
    if getattr(output, "requires_grad", False):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from tensors_of(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from tensors_of(value)


def patch(module):
    @wrap(module.NanDetector)
    def add_hooks(original, self, module):
        def watch(module, inputs, output):
            for tensor in tensors_of(output):
                tensor.register_hook(lambda gradient: self.bhook_fn(module, None, gradient))

        if self.forward:
            self.fhooks.append(module.register_forward_hook(self.fhook_fn))
        if self.backward:
            self.bhooks.append(module.register_forward_hook(watch))
