"""The one place where fairseq is touched from outside its extension points.

fairseq has no hook between "the model is built" and "training starts", and RoBERTa-type encoders redraw every
embedding after building it, so that `build_embedding` would be too early. `fairseq.models.build_model` is what every
task calls, with `from_checkpoint=True` where the weights will come from a file.
"""

from __future__ import annotations

import functools
from typing import Any

import fairseq.models

from embinit_fairseq.hooks.apply import embed_init
from embinit_fairseq.hooks.options import request_from

_MARK = "_embinit_wrapped"


def install() -> None:
    """Wrap `fairseq.models.build_model`; calling it again is harmless."""
    inner = fairseq.models.build_model
    if getattr(inner, _MARK, False):
        return

    @functools.wraps(inner)
    def build_model(cfg: Any, task: Any, from_checkpoint: bool = False) -> Any:
        model = inner(cfg, task, from_checkpoint)
        request = None if from_checkpoint else request_from(cfg)
        if request is not None:
            embed_init(model, task, cfg, request)
        return model

    setattr(build_model, _MARK, True)
    fairseq.models.build_model = build_model
