"""Continue a training, or use its checkpoint: find it, compare options and dictionary, recall the report.

Vectors are opened at a fresh start only. fairseq compares names and shapes of parameters. This module compares the
rest: the words of the dictionary, the number of attention heads, matrices that only the new model ties, all options of
this plugin's models, and which embedding matrices the optimizer has trained.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from embinit_fairseq.checkpoint_file import checked_record, initialisation_record, options_of, updates_of
from embinit_fairseq.checkpoints.defaults import add_missing_options
from embinit_fairseq.checkpoints.loading import load_checkpoint
from embinit_fairseq.embed_init.options import flag_of
from embinit_fairseq.embed_init.request import Freeze, InitRequest, store_record
from embinit_fairseq.embed_init.slots import Slot
from embinit_fairseq.errors import CheckpointError, OptionError
from embinit_fairseq.init import init_report
from embinit_fairseq.io import read_json

logger = logging.getLogger(__name__)
REPORT_FILE = "embed_init.json"
#: side of a model -> option of fairseq-preprocess for its dictionary
_DICTIONARY = {"encoder": "--srcdict", "decoder": "--tgtdict"}
#: options of this plugin's models that may change when a checkpoint is used
_FREE = {"dropout", "attention_dropout", "activation_dropout", "pooler_dropout", "attention_kernel"}
_FREE |= {"max_positions", "max_source_positions", "max_target_positions", "checkpoint_activations"}
_FREE |= {"pooler_activation_fn", "train_embeddings", "_name"}

#: option and its value in earlier versions -> its value now
_OLDER_VALUES = {("duo_share_weights", "on"): "stream"}


@dataclass
class Checkpoint:
    """Hold the checkpoint that fairseq will load into the model that was just built.

    state: its content, empty if this torch cannot read it safely. record: its report of `--embed-init`.
    restores_optimizer: fairseq will load the state of its optimizer.
    """

    path: str
    state: dict[str, Any]
    record: dict[str, Any] | None
    restores_optimizer: bool

    def untrained(self) -> set[str]:
        """Return the slots that the restored optimizer does not know: frozen as a whole since the start."""
        slots = self.record["slots"] if self.record is not None and self.restores_optimizer else {}
        return {
            name
            for name, slot in slots.items()
            if slot.get("freeze") and not slot.get("in_optimizer", not Freeze.parse(slot["freeze"]).whole)
        }

    def frozen(self) -> dict[str, str]:
        """Return slot -> freeze at the end of the run, without those whose number of updates has passed."""
        slots = {} if self.record is None else self.record["slots"]
        freezes = {name: Freeze.parse(slot["freeze"]) for name, slot in slots.items() if slot.get("freeze")}
        updates = updates_of(self.state) or 0
        return {name: str(freeze) for name, freeze in freezes.items() if freeze.until is None or updates < freeze.until}


def find_checkpoint(request: InitRequest) -> Checkpoint | None:
    """Return the checkpoint that fairseq will load; None for a fresh start."""
    path = path_to_restore(request)
    if path is None:
        return None
    try:
        state = load_checkpoint(path)
        record = initialisation_record(state)
    except CheckpointError as error:
        if request.strategy is not None and hasattr(torch.serialization, "add_safe_globals"):
            raise CheckpointError(f"{error} (it would be restored over the initialisation)") from error
        state, record = {}, None  # before torch 2.4 most checkpoints cannot be read safely
        with contextlib.suppress(CheckpointError):
            record = checked_record(read_json(os.path.join(os.path.dirname(path), REPORT_FILE), CheckpointError))
    has_optimizer = not state or state.get("last_optimizer_state") is not None
    restores = has_optimizer and not request.reset_optimizer and path != request.finetune_from_model
    return Checkpoint(path, state, record, restores)


def path_to_restore(request: InitRequest) -> str | None:
    """Return the path of that checkpoint, decided as in `fairseq.checkpoint_utils.load_checkpoint`.

    Raises:
        OptionError: a strategy is given with a `--restore-file` that does not exist: fairseq would train from scratch
            and overwrite a run in `--save-dir`.
    """
    if request.restore_file not in (None, "checkpoint_last.pt"):
        path = request.restore_file.replace(".pt", request.checkpoint_suffix + ".pt")
        if os.path.exists(path):
            return path
        if request.strategy is None:
            return None
        raise OptionError(
            f"--restore-file {path}: no such file; give its path from the working directory, not from --save-dir"
        )
    if request.save_dir is None:
        return None
    path = os.path.join(request.save_dir, f"checkpoint_last{request.checkpoint_suffix}.pt")
    if os.path.exists(path):
        return path
    other = request.continue_once or request.finetune_from_model
    return other if other and os.path.exists(other) else None


# ---- Compare --------------------------------------------------------------------------------------------------------


def check_fits(checkpoint: Checkpoint, model: nn.Module, cfg: Any, slots: dict[str, Slot]) -> None:
    """Raise OptionError if the checkpoint was trained with other options of the model or another dictionary."""
    trained, changed = options_of(checkpoint.state, "model") or {}, []
    add_missing_options(trained)  # of a checkpoint that is older than an option
    compared = _decisive(model) or {name for name in trained if name.endswith("_attention_heads")}
    for name in sorted(compared):
        value = trained.get(name)
        now = cfg.get(name) if hasattr(cfg, "get") else getattr(cfg, name, None)
        # ELECTRA is fine-tuned without its generator
        has_part = getattr(model, name.partition("_")[0], model) is not None
        if has_part and None not in (value, now) and _today(name, value) != _today(name, now):
            changed.append(f"{flag_of(name)} {value}, here it is {now}")
    if changed:
        raise OptionError(
            f"{checkpoint.path} was trained with {'; '.join(changed)}: give the options of its training, or begin "
            "without that checkpoint"
        )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for slot in slots.values():
        saved = (checkpoint.state.get("model") or {}).get(names.get(id(slot.embedding.weight)))
        size = slot.embedding.num_embeddings
        if saved is not None and len(saved) != size:
            side = _DICTIONARY.get(slot.name.partition("_")[0], "--srcdict")
            flags = "--joined-dictionary --srcdict" if slot.tied else side
            raise OptionError(
                f"{checkpoint.path}: the matrix of {' and '.join(slot.names)} has {len(saved)} rows, the dictionary of "
                f"the data has {size} symbols (special ones included): binarise the data with the dictionary of its "
                f"training (fairseq-preprocess {flags} DICT.txt), or begin without that checkpoint"
            )
    check_dictionary(checkpoint.record, slots, checkpoint.path)
    check_tied(checkpoint, model)


def check_tied(checkpoint: Checkpoint, model: nn.Module) -> None:
    """Raise OptionError if a tensor of the model has several values in the checkpoint: the last one would be kept."""
    weights = checkpoint.state.get("model") or {}
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = names.setdefault(id(parameter), name)
        if {first, name} <= set(weights) and not torch.equal(weights[first], weights[name]):
            raise OptionError(
                f"{checkpoint.path} has two matrices, {first} and {name}, which are one in this model, so that one of "
                "them would be lost: give --share-all-embeddings, --share-decoder-input-output-embed and the like only "
                "as at its training, or begin without that checkpoint"
            )


def check_dictionary(record: dict[str, Any] | None, slots: dict[str, Slot], checkpoint: str) -> None:
    """Raise OptionError if the data's dictionary has the size of the training's, but other words or another order."""
    symbols = {name: slot.vocabulary.symbols for name, slot in slots.items()}
    wrong = init_report.other_dictionaries(record or {}, symbols)
    if wrong:
        raise OptionError(
            f"{checkpoint} was trained with another dictionary of the same size ({' and '.join(wrong)}), so that words "
            "would get the rows of others: binarise the data with the dictionary of its training (fairseq-preprocess "
            "--srcdict or --tgtdict DICT.txt), or begin without that checkpoint"
        )


def check_optimizer(checkpoint: Checkpoint, trained: set[str]) -> None:
    """Raise OptionError if slots are to be trained that the restored optimizer does not know.

    It would use the moments of other parameters for them, without a message if sizes are equal.
    """
    unknown = sorted(checkpoint.untrained() & trained)
    if unknown and checkpoint.record is not None:
        freezes = " ".join(checkpoint.record["slots"][name]["freeze"] for name in unknown)
        raise OptionError(
            f"the run in {checkpoint.path} was started with --embed-init-freeze {freezes}, so its optimizer does not "
            "know these embedding matrices: give the flag again, or add --reset-optimizer"
        )


def _today(name: str, value: Any) -> str:
    """Return the value of an option as it is spelled today."""
    return _OLDER_VALUES.get((name, str(value)), str(value))


def _decisive(model: Any) -> set[str]:
    """Return the options that change the meaning of the weights of this plugin's models; none for other models."""
    if not type(model).__module__.startswith("embinit_fairseq."):
        return set()
    return {option.name for option in fields(getattr(type(model), "__dataclass"))} - _FREE


def check_overrides(model: Any, overrides: dict[str, Any]) -> None:
    """Raise OptionError if a model of this plugin is loaded for use with options that change its weights' meaning."""
    changed = ", ".join(f"{name}={overrides[name]!r}" for name in sorted(_decisive(model) & set(overrides)))
    if changed:
        raise OptionError(
            f"{changed} (from_pretrained, --model-overrides): the checkpoint's weights belong to the options of their "
            "training; drop these"
        )


# ---- Continue without the flag --------------------------------------------------------------------------------------


def recall(checkpoint: Checkpoint, cfg: Any) -> None:
    """Keep the report of a run that continues without `--embed-init`, and name the rows that are no longer frozen."""
    if checkpoint.record is None:
        return
    check_optimizer(checkpoint, set(checkpoint.record["slots"]))
    for slot in checkpoint.record["slots"].values():
        if slot.get("freeze"):  # from now on an optimizer knows it
            slot["in_optimizer"] = True
    store_record(cfg, json.dumps(checkpoint.record))
    if frozen := checkpoint.frozen():
        logger.warning(
            "the run in %s was started with --embed-init-freeze %s; without that flag these rows are trained now",
            checkpoint.path,
            " ".join(frozen.values()),
        )
