"""Fit the weights of a checkpoint to a model: classification heads, parts of the pre-training, wrong options."""

from __future__ import annotations

import logging
from typing import Any

from torch import Tensor, nn

from embinit_fairseq.checkpoints.loading import is_loaded_for_use
from embinit_fairseq.errors import OptionError

logger = logging.getLogger(__name__)

State = dict[str, Tensor]
HEADS = "classification_heads."


class WithHeads:
    """Give a fairseq model any number of classification heads, which checkpoints add and leave out."""

    #: name of the layer of a head whose rows are the classes
    last_layer = "projection"
    classification_heads: nn.ModuleDict

    def new_head(self, num_classes: int, inner_dim: int | None) -> nn.Module:
        """Return a head with initial values. inner_dim: dimension of the input of its last layer."""
        raise NotImplementedError

    def register_classification_head(
        self, name: str, num_classes: int = 0, inner_dim: int | None = None, **_: Any
    ) -> None:
        """Add a head with `num_classes` outputs; fairseq calls this by name."""
        if name in self.classification_heads:
            logger.warning("the classification head %r is replaced", name)
        self.classification_heads[name] = self.new_head(num_classes, inner_dim)

    def classification_head(self, name: str) -> nn.Module:
        """Return the head `name`; raise OptionError, which lists the others, if there is none."""
        if name not in self.classification_heads:
            none = "it has none (fine-tune it, or load a fine-tuned one)"
            available = f"there are: {', '.join(self.classification_heads)}" if self.classification_heads else none
            raise OptionError(f"the model has no classification head {name!r}; {available}")
        return self.classification_heads[name]

    def upgrade_state_dict_named(self, state_dict: State, name: str) -> None:
        """Make the heads that only the checkpoint has; heads that only the model has, or with other classes, stay.

        Raises:
            OptionError: a head would keep its random values in a model that is not loaded for training.
        """
        super().upgrade_state_dict_named(state_dict, name)  # type: ignore[misc]  # of a fairseq model
        end = f".{self.last_layer}.weight"
        for key in list(state_dict):
            if key.startswith(HEADS) and key.endswith(end):
                self._fit_head(state_dict, key[len(HEADS) : -len(end)])
        for key, value in self.classification_heads.state_dict().items():
            if HEADS + key not in state_dict:
                if is_loaded_for_use():
                    head = key.split(".", 1)[0]
                    raise OptionError(f"the checkpoint has no classification head {head!r}: fine-tune it first")
                logger.info("the checkpoint has no %s: it keeps its initial values", HEADS + key)
                state_dict[HEADS + key] = value

    def _fit_head(self, state_dict: State, name: str) -> None:
        prefix = f"{HEADS}{name}."
        num_classes, inner_dim = state_dict[f"{prefix}{self.last_layer}.weight"].shape
        if name not in self.classification_heads:
            self.register_classification_head(name, num_classes=num_classes, inner_dim=inner_dim)
            return
        own = getattr(self.classification_heads[name], self.last_layer)
        if own.weight.shape == (num_classes, inner_dim):
            return
        if is_loaded_for_use() and own.out_features != num_classes:
            raise OptionError(
                f"the checkpoint's classification head {name!r} has {num_classes} classes, the task "
                f"{own.out_features}: give --num-classes {num_classes}"
            )
        logger.warning(
            "the checkpoint's head %r has %d classes, the model's %d: the model's is kept, with its initial values",
            *(name, num_classes, own.out_features),
        )
        for key in [key for key in state_dict if key.startswith(prefix)]:
            del state_dict[key]


def fit_pre_training_parts(state: State, prefixes: tuple[str, ...], words: str, wanted: bool) -> None:
    """Delete the parts that only pre-training has, unless the model has them (wanted).

    Raises:
        OptionError: the parts are wanted and missing.
    """
    present = [key for key in state if key.startswith(prefixes)]
    if wanted and not present:
        raise OptionError(
            f"the checkpoint has no {words}, which fine-tuning leaves out: continue pre-training with the "
            "checkpoint of the pre-training"
        )
    if present and not wanted:
        for key in present:
            del state[key]
        logger.info("%d tensors of the pre-training are left out: %s", len(present), words)


#: part of a parameter's name -> options to give if the checkpoint differs there; the first entry that matches counts
_REMEDIES = {
    "embed_tokens.": "the dict.txt of its training",
    ".embed_buckets.": "--rel-pos, --rel-pos-bins, --tupe-reset, --tupe-tie-cls and --{part}-attention-heads",
    ".positions.": "--position-encoding (or --arch), --max-positions and --tupe-tie-cls",
    ".emb_layer_norm.": "--embedding-normalize",
    "sentence_encoder.layer_norm.": "--encoder-normalize-before",
    "": "--arch, the number of layers and the other sizes",
}


def check_weights(model: nn.Module, state: State) -> None:
    """Raise OptionError, with the options to give, if loading would fail with a page of names or shapes."""
    own = {key: list(value.shape) for key, value in model.state_dict().items() if not key.startswith(HEADS)}
    theirs = {key: list(value.shape) for key, value in state.items() if not key.startswith(HEADS)}
    different = [key for key in {**own, **theirs} if own.get(key) != theirs.get(key)]
    for part, remedy in _REMEDIES.items():
        keys = [key for key in different if part in key]
        if keys and (part != "embed_tokens." or own.get(keys[0], [])[1:] == theirs.get(keys[0], [])[1:]):
            shapes = (str(weights.get(keys[0], "missing")) for weights in (theirs, own))
            part = keys[0].partition(".")[0]  # encoder or generator
            has_part = any(key.startswith(f"{part}.") for key in own)
            remedy = remedy.format(part=part) if has_part else f"--arch of a model with a {part} (electra_*)"
            raise OptionError(
                f"the weights of the checkpoint do not fit the model: {keys[0]} is {next(shapes)} in the checkpoint, "
                f"{next(shapes)} in the model ({len(different)} such differences): give {remedy} as at its training"
            )
