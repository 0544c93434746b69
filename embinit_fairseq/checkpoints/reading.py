"""Checkpoints are read through torch's allow-list only: data, never code."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from embinit_fairseq.bounded import parse_json
from embinit_fairseq.errors import CheckpointError, DataError
from embinit_fairseq.files import check_is_file
from embinit_fairseq.init.report import other_dictionaries
from embinit_fairseq.vectors.fairseq_checkpoint import options_of as options_of
from embinit_fairseq.vectors.fairseq_checkpoint import updates_of as updates_of
from embinit_fairseq.vectors.torch_file import load_safely

#: types of numbers that torch cannot add to others
_UNUSED = ("torch.complex", "torch.float8", "torch.float4", "torch.uint16", "torch.uint32", "torch.uint64")


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """A fairseq checkpoint's content on the CPU; tensors stay on disk until they are used, where torch can map them.

    Raises CheckpointError for a file that is missing, cut short, not a checkpoint, or that holds anything but tensors
    and plain data (such a file could execute code).
    """
    check_is_file(str(path), error=CheckpointError)
    if not Path(path).is_file():
        raise CheckpointError(f"{path}: no such checkpoint")
    state = load_safely(Path(path), CheckpointError, "a fairseq checkpoint")
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: holds a {type(state).__name__}, not a fairseq checkpoint")
    _check_weights(path, state.get("model"))
    return state


def _check_weights(path: str | Path, model: Any) -> None:
    """Raise CheckpointError for a state dict that nothing here can compute with."""
    remedy = "it is damaged: name another checkpoint of the training"
    for name, value in model.items() if isinstance(model, Mapping) else ():
        if not isinstance(name, str):
            raise CheckpointError(
                f"{path}: its model has {name!r:.80} where the name of a parameter should be; {remedy}"
            )
        kind = str(getattr(value, "dtype", ""))
        if kind.startswith(_UNUSED):
            raise CheckpointError(f"{path}: {name} is of {kind}, which no model of fairseq has; {remedy}")


def initialisation_record(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """The report of `--embed-init` that a training left in its checkpoints; None if there is none that can be read."""
    for node in option_nodes(state):
        text = node.get("embed_init_record")
        if not isinstance(text, str):
            continue
        try:
            return checked_record(parse_json(text, "the report of --embed-init", CheckpointError))
        except CheckpointError:
            return None
    return None


def checked_record(record: Any) -> dict[str, Any] | None:
    """The report if it has slots; None for what nobody here wrote."""
    slots = record.get("slots") if isinstance(record, dict) else None
    return record if isinstance(slots, dict) and all(isinstance(slot, dict) for slot in slots.values()) else None


def option_nodes(state: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Where options may stand: the sections of `cfg` (fairseq >= 0.10) that hold those of models, then `args`."""
    cfg = state.get("cfg") or {}
    for node in (cfg.get("embed_init_options"), cfg.get("model"), state.get("args")):
        if isinstance(node, Namespace):
            yield vars(node)
        elif isinstance(node, Mapping):
            yield node  # type: ignore[misc]  # a plain dict or one of omegaconf


def check_dictionary(
    state: Mapping[str, Any], checkpoint: str, flag: str, symbols: Mapping[str, Sequence[str]]
) -> None:
    """Raises DataError for a dictionary of the right size whose words are not those of the training.

    flag: what names the dictionary. symbols: by slot. A checkpoint without a report of `--embed-init` knows sizes only.
    """
    wrong = other_dictionaries(initialisation_record(state) or {}, symbols)
    if wrong:
        raise DataError(
            f"{flag}: as many symbols as {checkpoint} was trained with, but others or in another order "
            f"({' and '.join(wrong)}), so that words would get the rows of others: give the dict.txt of its training"
        )
