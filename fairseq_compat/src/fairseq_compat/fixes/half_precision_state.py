"""--fp16, --bf16, --amp: a continued training begins with rounded weights, or another loss scale.

Symptom: with ``--fp16`` and ``--bf16`` a continued training begins with weights that were rounded to half precision,
    although it trains with single precision; the scale of the loss grows at other updates, and with ``--amp`` it
    begins at ``--fp16-init-scale`` again. Losses differ from an uninterrupted training's.
Where: fairseq/optim/fp16_optimizer.py:78 and :347 (``state_dict``), fairseq/optim/amp_optimizer.py:17.
Remedy: the state of the optimizer in a checkpoint holds the weights in single precision (4 bytes per parameter, in
    a file that has 12), and all numbers of the scaler. The weights are used if they round to the model's weights: a
    model that was changed in the file is taken as it is. fairseq without this fix ignores them. With
    ``--memory-efficient-fp16`` there are no such weights.
"""

from __future__ import annotations

from typing import Any

from fairseq_compat.patches import wrap

BROKEN = r"class _FP16OptimizerMixin\(|class AMPOptimizer\("


def weights_of(optimizer) -> list[Any]:
    """Return the weights in single precision, whose rounded copies the model has."""
    weights = optimizer.fp32_params
    return [weight.data for weight in (weights.values() if isinstance(weights, dict) else weights)]


def restore_weights(optimizer, saved: list[Any]) -> None:
    """Take the saved weights if the model has the same weights in half precision."""
    half, weights = optimizer.fp16_params[0].dtype, weights_of(optimizer)
    saved = [weight.to(current.device) for weight, current in zip(saved, weights)]
    rounded = [weight.to(half).to(weight.dtype) for weight in saved]
    if len(saved) == len(weights) and all(map(_is_equal, rounded, weights)):
        for weight, current in zip(saved, weights):
            current.copy_(weight)


def _is_equal(one, other) -> bool:
    return one.shape == other.shape and bool((one == other).all())


def patch_half(module) -> None:
    def extend(kind, has_weights: bool) -> None:
        @wrap(kind)
        def state_dict(original, self):
            state = original(self)
            if self.scaler is not None:  # its options come from the command
                state["loss_scaler"] = {name: value for name, value in vars(self.scaler).items() if name[0] == "_"}
            return {**state, "fp32_params": weights_of(self)} if has_weights else state

        @wrap(kind)
        def load_state_dict(original, self, state_dict, optimizer_overrides=None):
            original(self, state_dict, optimizer_overrides)
            if self.scaler is not None:
                vars(self.scaler).update(state_dict.get("loss_scaler", {}))
            if has_weights and "fp32_params" in state_dict:
                restore_weights(self, state_dict["fp32_params"])

    extend(module._FP16OptimizerMixin, has_weights=True)
    extend(module._MemoryEfficientFP16OptimizerMixin, has_weights=False)


def patch_amp(module) -> None:
    @wrap(module.AMPOptimizer)
    def state_dict(original, self):
        return {**original(self), "grad_scaler": self.scaler.state_dict()}

    @wrap(module.AMPOptimizer)
    def load_state_dict(original, self, state_dict, optimizer_overrides=None):
        original(self, state_dict, optimizer_overrides)
        if state_dict.get("grad_scaler") and self.scaler.is_enabled():
            self.scaler.load_state_dict(state_dict["grad_scaler"])


PATCHES = {"fairseq.optim.fp16_optimizer": patch_half, "fairseq.optim.amp_optimizer": patch_amp}
