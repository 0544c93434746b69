"""Where fairseq's work is touched from outside its extension points (help.py adds to the text of its help).

fairseq has no hook between "the model is built" and "training starts", and RoBERTa-type encoders redraw every
embedding after building it, so that `build_embedding` would be too early. `fairseq.models.build_model` is what every
task calls, with `from_checkpoint=True` where the weights will come from a file. Tasks whose own `build_model` lacks
that argument (older ones, and `sentence_prediction_adapters`) never get it, so loading is also marked where it begins,
in `fairseq.checkpoint_utils.load_model_ensemble_and_task`.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from typing import Any, Optional

import fairseq.checkpoint_utils
import fairseq.models

from embinit_fairseq.hooks.apply import embed_init
from embinit_fairseq.hooks.options import request_from
from embinit_fairseq.hooks.resume import recall
from embinit_fairseq.hooks.training_check import check_training, refuse_overrides

_MARK = "_embinit_wrapped"
#: while a checkpoint is loaded to be used: what it is loaded with instead of its own options
_overrides: ContextVar[Optional[dict[str, Any]]] = ContextVar("overrides", default=None)


def is_loaded_for_use() -> bool:
    """Is a checkpoint being loaded for anything but training: fairseq-validate, -generate, from_pretrained?"""
    return _overrides.get() is not None


def install() -> None:
    """Wrap the two functions; calling it again is harmless."""
    if not getattr(fairseq.models.build_model, _MARK, False):
        _wrap_build_model()
        _wrap_loading()


def _wrap_build_model() -> None:
    inner = fairseq.models.build_model

    @functools.wraps(inner)
    def build_model(cfg: Any, task: Any, from_checkpoint: bool = False) -> Any:
        """fairseq's model, initialised as `--embed-init` says unless its weights come from a checkpoint."""
        model = inner(cfg, task, from_checkpoint)
        overrides = _overrides.get()
        if overrides is not None:
            refuse_overrides(model, overrides)
        elif not from_checkpoint:
            request = request_from(cfg)
            check_training(model, task, request)
            if request.strategy is None:
                recall(cfg, request)
            else:
                embed_init(model, task, cfg, request)
        return model

    setattr(build_model, _MARK, True)
    fairseq.models.build_model = build_model


def _wrap_loading() -> None:
    inner = fairseq.checkpoint_utils.load_model_ensemble_and_task

    @functools.wraps(inner)
    def load_model_ensemble_and_task(
        filenames: list[str], arg_overrides: Optional[dict[str, Any]] = None, *args: Any, **kwargs: Any
    ) -> Any:
        """fairseq's function; models that are built inside it are not initialised."""
        before = _overrides.set(arg_overrides or {})
        try:
            return inner(filenames, arg_overrides, *args, **kwargs)
        finally:
            _overrides.reset(before)

    fairseq.checkpoint_utils.load_model_ensemble_and_task = load_model_ensemble_and_task
