"""Is this a start or a continuation? Vectors are opened for a start only."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from embinit_fairseq.bounded import read_json
from embinit_fairseq.checkpoints.reading import (
    checked_record,
    initialisation_record,
    load_checkpoint,
    options_of,
    updates_of,
)
from embinit_fairseq.errors import CheckpointError, OptionError, SlotError
from embinit_fairseq.hooks.freeze import parse_freeze
from embinit_fairseq.hooks.options import InitRequest, store_record
from embinit_fairseq.hooks.slots import Slot, find_slots
from embinit_fairseq.init import report

# ----------------------------------------------------------------------------------------------------------------------
# Does a model with options of its own agree with them, and with the checkpoint its weights will come from?

#: side of a model -> what gives its dictionary to fairseq-preprocess
_DICTIONARY = {"encoder": "--srcdict", "decoder": "--tgtdict"}


def check_training(model: nn.Module, task: Any, request: InitRequest) -> None:
    """Calls `model.check_training(checkpoint, saved)`, if there is such a method; then compares the dictionaries.

    checkpoint: the file that fairseq will load over the model, None for a fresh start; saved: the options of the model
    in it, None if it does not say or cannot be read safely. Not called for models that are built to be used.
    """
    check = getattr(model, "check_training", None)
    if check is None:
        return
    checkpoint = checkpoint_to_restore(request)
    state = {} if checkpoint is None else _read(checkpoint)
    check(checkpoint, options_of(state, "model") or None)
    if checkpoint is not None and isinstance(state.get("model"), dict):
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


def refuse_overrides(model: Any, overrides: dict[str, Any]) -> None:
    """Where a checkpoint is loaded to be used: raises OptionError for overrides that decide what its weights mean."""
    if not hasattr(model, "function_options"):
        return
    decisive = set(model.function_options(model.cfg)) - {
        "max_positions"
    }  # the embedding matrix's rows tell of that one
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


# ----------------------------------------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)
REPORT_FILE = "embed_init.json"


def checkpoint_to_restore(request: InitRequest) -> str | None:
    """The checkpoint fairseq will load over the model that was just built; None for a fresh start.

    Follows `fairseq.checkpoint_utils.load_checkpoint`. `--finetune-from-model` would overwrite every matrix without a
    word, so the two flags are refused together.
    """
    restore_file = request.restore_file
    if restore_file in (None, "checkpoint_last.pt"):
        if request.save_dir is None:
            return None
        path = os.path.join(request.save_dir, f"checkpoint_last{request.checkpoint_suffix}.pt")
        if os.path.exists(path):
            return path
        if request.continue_once:
            path = request.continue_once
        elif request.finetune_from_model and request.strategy is None:
            path = request.finetune_from_model
        elif request.finetune_from_model:
            raise OptionError(
                f"--embed-init {request.strategy} and --finetune-from-model {request.finetune_from_model}: all "
                "matrices come from that checkpoint, so nothing would be left of the initialisation; drop one of the "
                "flags"
            )
    else:
        path = restore_file.replace(".pt", request.checkpoint_suffix + ".pt")
    return path if os.path.exists(path) else None


def left_out(record: dict[str, Any]) -> set[str]:
    """Slots of a report whose matrices the run's optimizer does not know: they have always been frozen as a whole."""
    frozen = {name: slot for name, slot in record["slots"].items() if slot.get("freeze")}
    return {
        name
        for name, slot in frozen.items()  # earlier reports do not tell
        if not slot.get("in_optimizer", not parse_freeze([slot["freeze"]])[0].whole)
    }


def restores_optimizer(checkpoint: str, request: InitRequest) -> bool:
    """Will fairseq load the optimizer's state of this checkpoint (`checkpoint_to_restore`)?"""
    if request.reset_optimizer or checkpoint == request.finetune_from_model:
        return False
    try:
        return load_checkpoint(checkpoint).get("last_optimizer_state") is not None
    except CheckpointError:
        return True  # one that this torch cannot read safely has one, as a rule


def check_optimizer_knows(record: dict[str, Any], trained: set[str], checkpoint: str) -> None:
    """Raises OptionError if slots are to be trained now which the optimizer that is restored does not know."""
    unknown = [record["slots"][name]["freeze"] for name in sorted(left_out(record) & trained)]
    if unknown:
        raise OptionError(
            f"the run in {checkpoint} was started with --embed-init-freeze {' '.join(unknown)}, so its optimizer does "
            "not know these embedding matrices: give the flag again, or add --reset-optimizer"
        )


def refuse_other_dictionary(
    record: dict[str, Any], slots: Callable[[], dict[str, Slot]] | dict[str, Slot], checkpoint: str
) -> None:
    """Raises OptionError for data whose dictionary has the size of the training's, but other words or another order.

    slots: or what finds them. For models without, which an earlier version may have filled (one pair of several
    languages), nothing is said.
    """
    try:
        available = slots() if callable(slots) else slots
    except SlotError:
        return
    wrong = report.other_dictionaries(record, {name: slot.vocabulary.symbols for name, slot in available.items()})
    if wrong:
        raise OptionError(
            f"{checkpoint} was trained with another dictionary of the same size ({' and '.join(wrong)}), so that words "
            "would get the rows of others: binarise the data with the dictionary of its training (fairseq-preprocess "
            "--srcdict or --tgtdict DICT.txt), or begin without that checkpoint"
        )


def recall(cfg: Any, request: InitRequest, slots: Callable[[], dict[str, Slot]]) -> None:
    """A run that is continued without the flag keeps its report; what it had frozen is trained, and that is said."""
    checkpoint = checkpoint_to_restore(request)
    try:
        record = None if checkpoint is None else read_record(checkpoint)
    except CheckpointError:
        return  # fairseq will say so; without the flag this is none of our business
    if checkpoint is None or record is None:
        return
    refuse_other_dictionary(record, slots, checkpoint)
    if restores_optimizer(checkpoint, request):
        check_optimizer_knows(record, set(record["slots"]), checkpoint)
    frozen = still_frozen(record, checkpoint)
    for name in left_out(record):  # from now on an optimizer knows it
        record["slots"][name]["in_optimizer"] = True
    store_record(cfg, json.dumps(record))
    if frozen:
        logger.warning(
            "the run in %s was started with --embed-init-freeze %s; without that flag these rows are trained now",
            checkpoint,
            " ".join(frozen.values()),
        )


def still_frozen(record: dict[str, Any], checkpoint: str) -> dict[str, str]:
    """Slot name -> what the run has frozen where it ended: not what it froze until an update that it has passed."""
    texts = {name: slot["freeze"] for name, slot in record["slots"].items() if slot.get("freeze")}
    freezes = dict(zip(texts, parse_freeze(texts.values())))
    ends = any(freeze.until is not None for freeze in freezes.values())
    updates = (updates_of(_read(checkpoint)) or 0) if ends else 0
    return {name: str(freeze) for name, freeze in freezes.items() if freeze.until is None or updates < freeze.until}


def read_record(checkpoint: str) -> dict[str, Any] | None:
    """The report of the initialisation a checkpoint goes back to; None if there was none.

    The checkpoint's own: a file beside it may be left over from another run. Only where this torch cannot read a
    checkpoint safely (before 2.4) is that file taken.
    """
    try:
        return initialisation_record(load_checkpoint(checkpoint))
    except CheckpointError as error:
        if hasattr(torch.serialization, "add_safe_globals"):
            raise CheckpointError(f"{error} (it would be restored over the initialisation)") from error
        beside = os.path.join(os.path.dirname(checkpoint), REPORT_FILE)
        logger.warning("no report of the initialisation in the checkpoint (%s); looking for %s", error, beside)
        try:
            return checked_record(read_json(beside, CheckpointError))
        except CheckpointError:
            return None
