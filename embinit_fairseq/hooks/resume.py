"""Is this a start or a continuation? Vectors are opened for a start only."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.errors import CheckpointError, OptionError
from embinit_fairseq.hooks.options import Request, record_in

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
        elif request.finetune_from_model:
            raise OptionError(
                f"--embed-init {request.strategy} and --finetune-from-model {request.finetune_from_model}: all tables "
                "come from that checkpoint, so nothing would be left of the initialisation; drop one of the flags"
            )
    else:
        path = restore_file.replace(".pt", request.checkpoint_suffix + ".pt")
    return path if os.path.exists(path) else None


def read_record(checkpoint: str) -> dict[str, Any] | None:
    """The report of the initialisation a checkpoint goes back to; None if there was none."""
    beside = os.path.join(os.path.dirname(checkpoint), REPORT_FILE)
    try:
        with open(beside, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read (%s); taking the report inside %s", beside, error, checkpoint)
    try:
        record = record_in(load_checkpoint(checkpoint).get("cfg"))
        return None if record is None else json.loads(record)
    except CheckpointError as error:
        logger.warning("no report of the initialisation: %s", error)
        return None
