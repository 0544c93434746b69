"""`--embed-init-freeze`: embedding matrices, or rows of them, that stay as they are.

A whole matrix that is never trained has `requires_grad` off, as fairseq expects. Rows, or a time limit, need more: the
gradient of a frozen row is zero, and whatever an optimizer still does to it (weight decay, momentum) is undone after
each step, so that the row stays the same to the last bit. So does a matrix that the restored optimizer trains: what is
not to be trained from now on cannot be taken out of its state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from embinit_fairseq.errors import OptionError
from embinit_fairseq.hooks.slots import Slot, slot_named


@dataclass(frozen=True)
class Freeze:
    """One `SLOT[:known][:UPDATES]`."""

    slot: str
    known: bool = False
    until: int | None = None

    @property
    def whole(self) -> bool:
        """The embedding matrix is never trained."""
        return not self.known and self.until is None

    def __str__(self) -> str:
        return self.slot + (":known" if self.known else "") + (f":{self.until}" if self.until is not None else "")


def parse_freeze(texts: Iterable[str]) -> list[Freeze]:
    """Read the values of the flag; raises OptionError naming the value."""
    freezes = []
    for text in texts:
        slot, *rest = text.split(":")
        known = bool(rest) and rest[0] == "known"
        rest = rest[1:] if known else rest
        if not slot or len(rest) > 1 or (rest and not (rest[0].isascii() and rest[0].isdecimal())):
            raise OptionError(
                f"--embed-init-freeze {text}: expected SLOT, SLOT:known, SLOT:UPDATES or SLOT:known:UPDATES, "
                "for example encoder:known or encoder:1000"
            )
        freezes.append(Freeze(slot, known, int(rest[0]) if rest else None))
    return freezes


def apply_freezes(
    freezes: Iterable[Freeze],
    slots: dict[str, Slot],
    known: dict[str, np.ndarray | None],
    task: Any,
    in_optimizer: Collection[str] = (),
) -> dict[str, str]:
    """Freeze; returns slot name -> what was frozen. known: slot name -> (N,) bool of rows that were found.

    in_optimizer: names of slots whose embedding matrices have a state in the optimizer that fairseq will restore.
    """
    done: dict[str, str] = {}
    for freeze in freezes:
        slot = slot_named(freeze.slot, slots, f"--embed-init-freeze {freeze}")
        if slot.name in done:
            raise OptionError(f"--embed-init-freeze: the embedding matrix of {' and '.join(slot.names)} is named twice")
        done[slot.name] = str(freeze)
        weight = slot.embedding.weight
        if freeze.whole and not (slot.name in in_optimizer and weight.requires_grad):
            weight.requires_grad_(False)
            continue
        rows = None
        if freeze.known:
            rows = known.get(slot.name)
            if rows is None or not rows.any():
                raise OptionError(
                    f"--embed-init-freeze {freeze}: it is not known which rows of {slot.name!r} have a vector, since "
                    "this strategy read none for it, or the run that is continued was not initialised from vectors "
                    f"for this dictionary; name them with --embed-init-path {slot.name}=PATH in a fresh start with a "
                    "strategy that uses vectors, or freeze the whole slot"
                )
        _FrozenRows(slot.embedding, rows, freeze.until).attach(task)
    return done


class _FrozenRows:
    """Rows of one embedding that do not move while `num_updates < until` (None: ever)."""

    def __init__(self, embedding: torch.nn.Embedding, rows: np.ndarray | None, until: int | None) -> None:
        size = embedding.num_embeddings
        mask = np.ones(size, dtype=bool) if rows is None else rows
        self.weight, self.mask, self.until = embedding.weight, torch.from_numpy(mask.copy()), until
        self.active = True
        self.embedding: Any = embedding

    def attach(self, task: Any) -> None:
        """Hold the rows in every step of the task's training."""
        self.weight.register_hook(self._mask_gradient)
        # fairseq's own extension point: a model calls set_num_updates of every module that has it, before each step
        self.embedding.set_num_updates = self._set_num_updates
        inner = task.optimizer_step

        def optimizer_step(optimizer: Any, model: Any, update_num: int) -> None:
            """The task's own step, after which the frozen rows are put back."""
            self._set_num_updates(update_num)
            kept = self._rows_of(optimizer) if self.active else []
            inner(optimizer, model=model, update_num=update_num)
            with torch.no_grad():
                for table, values in kept:
                    table[self.mask.to(table.device)] = values

        task.optimizer_step = optimizer_step

    def _set_num_updates(self, num_updates: int) -> None:
        self.active = self.until is None or num_updates < self.until

    def _mask_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        if not self.active:
            return gradient
        return gradient.masked_fill(self.mask.to(gradient.device)[:, None], 0.0)

    def _rows_of(self, optimizer: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(matrix, its frozen rows) for the parameter and, in half-precision training, its single-precision master."""
        tables = [self.weight.data, *_master_copies(optimizer, self.weight)]
        return [(table, table[self.mask.to(table.device)].clone()) for table in tables]


def _master_copies(optimizer: Any, weight: torch.Tensor) -> list[torch.Tensor]:
    """fairseq's FP16Optimizer steps a single-precision copy of the parameters, flattened into one vector or not."""
    masters, params = getattr(optimizer, "fp32_params", None), getattr(optimizer, "fp16_params", None)
    if masters is None or params is None:
        return []
    if not isinstance(masters, dict):
        return [master.data for master, param in zip(masters, params) if param is weight]
    offset = 0
    for param in params:
        if param is weight:
            flat = masters[param.device.index] if param.device.index in masters else next(iter(masters.values()))
            return [flat.data[offset : offset + param.numel()].view_as(param)]
        if param.device == weight.device:
            offset += param.numel()
    return []
