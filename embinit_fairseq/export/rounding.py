"""Activations of fairseq, and the places where it rounds to single precision: in a model in double precision, another
equation could not be told from that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

#: --activation-fn -> its name in transformers
ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "gelu_accurate": "gelu_new", "gelu_fast": "gelu_new", "tanh": "tanh"}


@contextlib.contextmanager
def unrounded(model: Any) -> Iterator[None]:
    """In double precision, PyTorch's GELU and softmax (of attention) take the place of fairseq's."""
    import torch
    from fairseq import utils
    from fairseq.modules import gelu

    softmax = utils.softmax
    if next(model.parameters()).dtype == torch.float64:
        for module in model.modules():
            if getattr(module, "activation_fn", None) is gelu:
                module.activation_fn = torch.nn.functional.gelu
        utils.softmax = lambda x, dim, onnx_trace=False: x.softmax(dim)
    try:
        yield
    finally:
        utils.softmax = softmax
