"""Does a model with options of its own agree with them, and with the checkpoint its weights will come from?"""

from __future__ import annotations

from typing import Any

from torch import nn

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.errors import CheckpointError, OptionError
from embinit_fairseq.hooks.options import Request
from embinit_fairseq.hooks.resume import checkpoint_to_restore
from embinit_fairseq.hooks.slots import find_slots

#: side of a model -> what gives its dictionary to fairseq-preprocess
_DICTIONARY = {"encoder": "--srcdict", "decoder": "--tgtdict"}


def check_training(model: nn.Module, task: Any, request: Request) -> None:
    """Calls `model.check_training(checkpoint, saved)`, if there is such a method; then compares the dictionaries.

    checkpoint: the file that fairseq will load over the model, None for a fresh start; saved: the options of the model
    in it, None if it does not say or cannot be read safely. Not called for models that are built to be used.
    """
    check = getattr(model, "check_training", None)
    if check is None:
        return
    checkpoint = checkpoint_to_restore(request)
    state = {} if checkpoint is None else _read(checkpoint)
    check(checkpoint, _saved_options(state))
    if isinstance(state.get("model"), dict):
        _check_dictionaries(model, task, checkpoint, state["model"])


def _check_dictionaries(model: nn.Module, task: Any, checkpoint: str, weights: dict[str, Any]) -> None:
    """Raises OptionError for data of another dictionary, as far as its size tells: a checkpoint has no words."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for slot in find_slots(model, task).values():
        table = weights.get(names[id(slot.embedding.weight)])
        rows, symbols = None if table is None else len(table), slot.embedding.num_embeddings
        if rows not in (None, symbols):
            flags = "--joined-dictionary --srcdict" if slot.tied else _DICTIONARY[slot.name.partition("_")[0]]
            raise OptionError(
                f"{checkpoint} was trained with {rows} symbols ({' and '.join(slot.names)}, special ones included), "
                f"the data have {symbols}: binarise them with the dictionary of its training (fairseq-preprocess "
                f"{flags} DICT.txt), or begin without that checkpoint"
            )


def refuse_overrides(model: nn.Module, overrides: dict[str, Any]) -> None:
    """Where a checkpoint is loaded to be used: raises OptionError for overrides that decide what its weights mean."""
    if not hasattr(model, "function_options"):
        return
    decisive = set(model.function_options(model.cfg)) - {"max_positions"}  # the table's rows tell of that one
    changed = sorted(decisive & set(overrides))
    if changed:
        given = ", ".join(f"{name}={overrides[name]!r}" for name in changed)
        raise OptionError(
            f"{given} (from_pretrained, --model-overrides): the checkpoint's weights belong to the options of their "
            "training; drop these"
        )


def _read(checkpoint: str) -> dict[str, Any]:
    try:
        return load_checkpoint(checkpoint)
    except CheckpointError:
        return {}  # fairseq will say so


def _saved_options(state: dict[str, Any]) -> Any:
    cfg = state.get("cfg")
    return cfg.get("model") if isinstance(cfg, dict) else state.get("args")  # args: fairseq before 0.10
