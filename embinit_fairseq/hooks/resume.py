"""Is this a start or a continuation? Vectors are opened for a start only."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

import torch

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.errors import CheckpointError, OptionError
from embinit_fairseq.hooks.freeze import parse_freeze
from embinit_fairseq.hooks.options import Request, record_in, store_record

logger = logging.getLogger(__name__)
REPORT_FILE = "embed_init.json"


def checkpoint_to_restore(request: Request) -> str | None:
    """The checkpoint fairseq will load over the model that was just built; None for a fresh start.

    Follows `fairseq.checkpoint_utils.load_checkpoint`. `--finetune-from-model` would overwrite every table without a
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
                f"--embed-init {request.strategy} and --finetune-from-model {request.finetune_from_model}: all tables "
                "come from that checkpoint, so nothing would be left of the initialisation; drop one of the flags"
            )
    else:
        path = restore_file.replace(".pt", request.checkpoint_suffix + ".pt")
    return path if os.path.exists(path) else None


def left_out(record: dict[str, Any]) -> set[str]:
    """Slots of a report whose tables the run's optimizer does not know: they have always been frozen as a whole."""
    frozen = {name: slot for name, slot in record["slots"].items() if slot.get("freeze")}
    return {
        name
        for name, slot in frozen.items()  # earlier reports do not tell
        if not slot.get("in_optimizer", not parse_freeze([slot["freeze"]])[0].whole)
    }


def restores_optimizer(checkpoint: str, request: Request) -> bool:
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
            "not know these tables: give the flag again, or add --reset-optimizer"
        )


def recall(cfg: Any, request: Request) -> None:
    """A run that is continued without the flag keeps its report; what it had frozen is trained, and that is said."""
    checkpoint = checkpoint_to_restore(request)
    try:
        record = None if checkpoint is None else read_record(checkpoint)
    except CheckpointError:
        return  # fairseq will say so; without the flag this is none of our business
    if record is None:
        return
    if restores_optimizer(checkpoint, request):
        check_optimizer_knows(record, set(record["slots"]), checkpoint)
    frozen = [slot["freeze"] for slot in record["slots"].values() if slot.get("freeze")]
    for name in left_out(record):  # from now on an optimizer knows it
        record["slots"][name]["in_optimizer"] = True
    store_record(cfg, json.dumps(record))
    if frozen:
        logger.warning(
            "the run in %s was started with --embed-init-freeze %s; without that flag these rows are trained now",
            checkpoint,
            " ".join(frozen),
        )


def read_record(checkpoint: str) -> dict[str, Any] | None:
    """The report of the initialisation a checkpoint goes back to; None if there was none.

    The checkpoint's own: a file beside it may be left over from another run. Only where this torch cannot read a
    checkpoint safely (before 2.4) is that file taken.
    """
    try:
        text = record_in(load_checkpoint(checkpoint).get("cfg"))
    except CheckpointError as error:
        if hasattr(torch.serialization, "add_safe_globals"):
            raise CheckpointError(f"{error} (it would be restored over the initialisation)") from error
        beside = os.path.join(os.path.dirname(checkpoint), REPORT_FILE)
        logger.warning("no report of the initialisation in the checkpoint (%s); looking for %s", error, beside)
        try:
            with open(beside, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError):
            return None
    try:
        record = None if text is None else json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "slots" in record else None
