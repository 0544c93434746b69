"""Read fairseq checkpoints through torch's allow-list (data, never code), and check that they hold a whole model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from embinit_fairseq.checkpoint_file import initialisation_record, load_safely
from embinit_fairseq.errors import CheckpointError, DataError
from embinit_fairseq.init.init_report import other_dictionaries
from embinit_fairseq.io import check_is_file

#: while fairseq loads a checkpoint for use: the options that replace its own
overrides: ContextVar[dict[str, Any] | None] = ContextVar("overrides", default=None)


def is_loaded_for_use() -> bool:
    """Return True while a checkpoint is loaded for anything but training (fairseq-generate, from_pretrained, ...)."""
    return overrides.get() is not None


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return a checkpoint's content on the CPU; tensors stay on disk until they are used, if torch can map them.

    Raises:
        CheckpointError: the file is missing, incomplete, no checkpoint, or holds anything but tensors and plain data,
            which could execute code.
    """
    check_is_file(path, error=CheckpointError)
    state = load_safely(Path(path), CheckpointError, "a fairseq checkpoint")
    if not isinstance(state, dict):
        raise CheckpointError(
            f"{path}: holds a {type(state).__name__}, not a fairseq checkpoint; name one of fairseq-train"
        )
    return state


def load_model_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return the content of a checkpoint that holds a whole model and its configuration; else raise CheckpointError."""
    import torch

    state = load_checkpoint(path)
    weights = state.get("model")
    if not isinstance(weights, dict) or not weights or not all(isinstance(v, torch.Tensor) for v in weights.values()):
        raise CheckpointError(f"{path}: not a fairseq checkpoint (no 'model' in it); name one that fairseq-train wrote")
    if not state.get("cfg") and not state.get("args"):
        raise CheckpointError(f"{path}: it does not say how its model was built (no 'cfg'); name one of fairseq-train")
    if "fsdp_metadata" in state:
        raise CheckpointError(
            f"{path}: a part of a model (--use-sharded-state); train without this option, which saves the whole model"
        )
    return state


def averages_in(state: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return name -> state dict of each average over updates that a checkpoint holds (--store-ema, --ema-fp32)."""
    extra = state.get("extra_state") or {}
    return {name: extra[name] for name in ("ema", "ema_fp32_params") if extra.get(name)}


def check_dictionary(
    state: Mapping[str, Any], checkpoint: str, flag: str, symbols: Mapping[str, Sequence[str]]
) -> None:
    """Raise DataError for a dictionary of the right size with other words than the training's dictionary.

    A checkpoint without a record of `--embed-init` has only the size.

    Args:
        state: content of the checkpoint.
        checkpoint: its path.
        flag: option and path of the dictionary, for the message.
        symbols: slot -> symbols of the dictionary in the order of rows.
    """
    wrong = other_dictionaries(initialisation_record(state) or {}, symbols)
    if wrong:
        raise DataError(
            f"{flag}: as many symbols as {checkpoint} was trained with, but others or in another order "
            f"({' and '.join(wrong)}), so that words would get the rows of others: give the dict.txt of its training"
        )
