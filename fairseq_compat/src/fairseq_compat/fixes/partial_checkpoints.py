"""Checkpoints with the model and its options alone end with KeyError: 'best_loss'.

Symptom: a file of ``model`` and ``args`` or ``cfg`` (published models; scripts that take the optimizer out) ends
    generation, ``from_pretrained`` and ``--finetune-from-model`` with ``KeyError: 'best_loss'``, ``'optimizer'``,
    ``'extra_state'`` or ``'batch_offset'``, or with ``IndexError`` where ``optimizer_history`` is empty.
Where: fairseq/checkpoint_utils.py:577 (``_upgrade_state_dict``).
Remedy: missing parts are those of a training that has not begun; there is no state of an optimizer.
"""

from __future__ import annotations

from fairseq_compat.patches import wrap

BROKEN = r'"best_loss": state\["best_loss"\]'
FIXED = r"def _upgrade_state_dict\("

#: parts that fairseq needs in a file without the history of the optimizer, and without the state of the training
OPTIMIZER, TRAINING = ("best_loss", "optimizer"), {"epoch": 1, "batch_offset": 0, "val_loss": None}


def patch(module):
    @wrap(module)
    def _upgrade_state_dict(original, state):
        for name in ("optimizer_history", "extra_state"):
            if not state.get(name, True):
                del state[name]  # emptied instead of taken out
        if "optimizer_history" not in state:
            state.update({name: state.get(name) for name in OPTIMIZER})
        if "extra_state" not in state:
            state.update({name: state.get(name, value) for name, value in TRAINING.items()})
        return original(state)
