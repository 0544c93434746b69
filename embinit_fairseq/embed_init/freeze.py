"""Freeze embedding matrices, or rows of them (`--embed-init-freeze`).

A whole matrix that is never trained has `requires_grad` off, as fairseq expects. For rows, or until an update, the
gradient of frozen rows is set to zero, and the rows are restored after each step, since weight decay and momentum move
them without a gradient. The same holds for a matrix that the restored optimizer has trained before: it cannot leave
the optimizer's state.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from embinit_fairseq.embed_init.request import Freeze
from embinit_fairseq.embed_init.slots import Slot, slot_named
from embinit_fairseq.errors import OptionError

logger = logging.getLogger(__name__)


def freezes_of(values: Iterable[Freeze], slots: dict[str, Slot]) -> dict[str, Freeze]:
    """Return slot -> its freeze, by the values of the flag; warn of frozen output layers.

    Raises:
        SlotError: a slot does not exist.
        OptionError: an embedding matrix is named twice.
    """
    freezes: dict[str, Freeze] = {}
    for freeze in values:
        slot = slot_named(freeze.slot, slots, f"--embed-init-freeze {freeze}")
        if slot.name in freezes:
            raise OptionError(
                f"--embed-init-freeze {freezes[slot.name]} {freeze}: both are for the embedding matrix of "
                f"{' and '.join(slot.names)}; give one of them"
            )
        freezes[slot.name] = freeze
        if slot.is_output and freeze.until is None:
            logger.warning(
                "--embed-init-freeze %s: the frozen matrix is the output layer, too, and such a model learns slowly or "
                "nothing; free it after some updates (--embed-init-freeze %s:1000), or do not tie input and output",
                *(freeze, freeze),
            )
    return freezes


def apply_freezes(
    freezes: Mapping[str, Freeze],
    slots: dict[str, Slot],
    matched: dict[str, np.ndarray],
    task: Any,
    in_optimizer: Collection[str] = (),
) -> None:
    """Freeze matrices and rows.

    Args:
        freezes: slot -> its freeze.
        slots: the model's embedding matrices by name.
        matched: slot -> (N,) bool, rows with a vector, for slots where this is recorded.
        task: the training's task, whose `optimizer_step` is extended.
        in_optimizer: slots that the restored optimizer has trained.

    Raises:
        OptionError: the matched rows of a slot are not recorded.
    """
    for name, freeze in freezes.items():
        embedding = slots[name].embedding
        if freeze.whole and not (name in in_optimizer and embedding.weight.requires_grad):
            embedding.weight.requires_grad_(False)
            continue
        rows = matched.get(name) if freeze.known else np.ones(embedding.num_embeddings, dtype=bool)
        if rows is None or not rows.any():
            raise OptionError(
                f"--embed-init-freeze {freeze}: no row of {name!r} has a vector (the strategy reads none, or the "
                "continued run started without vectors for this dictionary); start again with a strategy that uses "
                f"vectors and --embed-init-path {name}=PATH, or freeze the whole slot"
            )
        _FrozenRows(embedding, rows, freeze.until).attach(task)


class _FrozenRows:
    """Hold rows of one embedding matrix while `num_updates < until` (None: always)."""

    def __init__(self, embedding: torch.nn.Embedding, rows: np.ndarray, until: int | None) -> None:
        self.weight, self.mask, self.until = embedding.weight, torch.from_numpy(rows.copy()), until
        self.active = True
        self.embedding: Any = embedding

    def attach(self, task: Any) -> None:
        """Hold the rows in each optimizer step of the task."""
        self.weight.register_hook(self._mask_gradient)
        # fairseq's own extension point: a model calls set_num_updates of every module that has it, before each step
        self.embedding.set_num_updates = self._set_num_updates
        inner = task.optimizer_step

        def optimizer_step(optimizer: Any, model: Any, update_num: int) -> None:
            """Take the task's step, then restore the frozen rows."""
            self._set_num_updates(update_num)
            held = self._rows_of(optimizer) if self.active else []
            inner(optimizer, model=model, update_num=update_num)
            with torch.no_grad():
                for matrix, values in held:
                    matrix[self.mask.to(matrix.device)] = values

        task.optimizer_step = optimizer_step

    def _set_num_updates(self, num_updates: int) -> None:
        self.active = self.until is None or num_updates < self.until

    def _mask_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        if not self.active:
            return gradient
        return gradient.masked_fill(self.mask.to(gradient.device)[:, None], 0.0)

    def _rows_of(self, optimizer: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return (matrix, its frozen rows) for the parameter and for its single-precision master copies."""
        copies = [self.weight.data, *_master_copies(optimizer, self.weight)]
        return [(matrix, matrix[self.mask.to(matrix.device)].clone()) for matrix in copies]


def _master_copies(optimizer: Any, weight: torch.Tensor) -> list[torch.Tensor]:
    """Return the single-precision copies that fairseq's FP16Optimizer steps, flattened into one vector or not."""
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
