"""Weights of a checkpoint on their way into a model: what is left out, what is made, what cannot fit and why."""

from __future__ import annotations

import logging
from typing import Any

from torch import Tensor, nn

from embinit_fairseq.embed_init.plugin import is_loaded_for_use
from embinit_fairseq.errors import OptionError

logger = logging.getLogger(__name__)

State = dict[str, Tensor]
HEADS = "classification_heads."
#: parts that are there or not: in a name, in words, the flag
_PARTS = (
    (".emb_layer_norm.", "layer norm on the embeddings", "--embedding-normalize"),
    ("sentence_encoder.layer_norm.", "layer norm behind the last layer", "--encoder-normalize-before"),
    (".relative.", "relative positions", "--rel-pos"),
)


def fit_pre_training_parts(state: State, prefixes: tuple[str, ...], words: str, wanted: bool) -> None:
    """Parts that only pre-training has: a model without them (wanted: false) leaves them out, and the log says so.

    Raises OptionError if they are wanted and not there.
    """
    present = [key for key in state if key.startswith(prefixes)]
    if wanted and not present:
        raise OptionError(
            f"the checkpoint has no {words}, which fine-tuning leaves behind: continue pre-training with the "
            "checkpoint of the pre-training"
        )
    if present and not wanted:
        for key in present:
            del state[key]
        logger.info("%d tensors of the pre-training are left out: %s", len(present), words)


def find_head(heads: nn.ModuleDict, name: str) -> nn.Module:
    """The classification head of this name; raises OptionError, which lists the others, if there is none."""
    if name not in heads:
        none = "it has none (fine-tune it, or load a fine-tuned one)"
        available = f"there are: {', '.join(heads)}" if len(heads) else none
        raise OptionError(f"the model has no classification head {name!r}; {available}")
    return heads[name]


def fit_heads(model: Any, state: State, last: str) -> None:
    """Make the heads that only a checkpoint has; those that only the model has, or with other classes, keep its values.

    last: the layer of a head whose rows are the classes. Raises OptionError for a head that would keep its values in a
    model that is not loaded to be trained: its answers would be random.
    """
    end = f".{last}.weight"
    for key in list(state):
        if key.startswith(HEADS) and key.endswith(end):
            _fit_head(model, state, key[len(HEADS) : -len(end)], last)
    for key, value in model.classification_heads.state_dict().items():
        if HEADS + key not in state:
            if is_loaded_for_use():
                name = key.split(".", 1)[0]
                raise OptionError(f"the checkpoint has no classification head {name!r}: fine-tune it first")
            logger.info("the checkpoint has no %s: it starts as it was initialised", HEADS + key)
            state[HEADS + key] = value


def _fit_head(model: Any, state: State, name: str, last: str) -> None:
    prefix = f"{HEADS}{name}."
    num_classes, inner_dim = state[f"{prefix}{last}.weight"].shape
    head = dict(model.classification_heads.items()).get(name)
    if head is None:
        model.register_classification_head(name, num_classes=num_classes, inner_dim=inner_dim)
    elif getattr(head, last).weight.shape != (num_classes, inner_dim):
        classes = getattr(head, last).out_features
        if is_loaded_for_use() and classes != num_classes:
            raise OptionError(
                f"the checkpoint's classification head {name!r} has {num_classes} classes, the task {classes}: give "
                f"--num-classes {num_classes}"
            )
        logger.warning(
            "the checkpoint's head %r has %d classes, the model's %d: the model's is kept and starts anew",
            *(name, num_classes, classes),
        )
        for key in [key for key in state if key.startswith(prefix)]:
            del state[key]


def check_weights(model: nn.Module, state: State, untie_cls: bool) -> None:
    """Raises OptionError, with the flag to give, where loading would fail with a page of names or shapes.

    This is for weights that come alone: if a training is to begin with a checkpoint, `options.check_restored` has
    compared all options before. untie_cls: a table of untied positions has one row more than there are positions.
    """
    own = {key: tuple(value.shape) for key, value in model.state_dict().items() if not key.startswith(HEADS)}
    theirs = {key: tuple(value.shape) for key, value in state.items() if not key.startswith(HEADS)}
    different = sorted(own.keys() ^ theirs.keys())
    positions = [key for key in different if ".positions." in key and ".relative." not in key]
    if positions:
        raise OptionError(
            f"the checkpoint has other positions than the model ({positions[0]}): give --arch or --position-encoding "
            "as at its training"
        )
    for key in own:
        if own[key] != theirs.get(key, own[key]):
            raise OptionError(_other_shape(key, theirs[key], own[key], untie_cls))
    for part, words, flag in _PARTS:
        for key in different:
            if part in key:
                has, remedy = ("", "add") if key in theirs else ("no ", "drop")
                raise OptionError(f"the checkpoint has {has}{words}: {remedy} {flag}")
    if different:
        raise OptionError(
            f"the checkpoint has {'' if different[0] in theirs else 'no '}{different[0]}, unlike the model (and "
            f"{len(different) - 1} more): give --arch, the number of layers and the other options as at its training"
        )


def _other_shape(key: str, theirs: tuple[int, ...], own: tuple[int, ...], untie_cls: bool) -> str:
    rows, own_rows = theirs[0], own[0]
    if key.endswith("embed_tokens.weight") and rows != own_rows:
        return f"the checkpoint has {rows} symbols, the dictionary {own_rows}: use the dict.txt of its training"
    if key.endswith("embed_positions.weight") and theirs[1:] == own[1:]:
        rows, own_rows = rows - untie_cls, own_rows - untie_cls
        hint = ", or --tupe-tie-cls as at its training" if ".absolute." in key and abs(rows - own_rows) == 1 else ""
        return f"the checkpoint has {rows} positions, the model {own_rows}: give --max-positions {rows}{hint}"
    if key.endswith("embed_buckets.weight") and theirs[1] != own[1]:
        flag = f"--{'generator' if key.startswith('generator.') else 'encoder'}-attention-heads {theirs[1]}"
        return f"the checkpoint has {theirs[1]} attention heads, the model {own[1]}: give {flag}"
    if key.endswith("embed_buckets.weight"):
        return (
            f"the checkpoint's table of relative positions has {rows} rows, the model's {own_rows}: give "
            "--rel-pos-bins, --tupe-reset and --tupe-tie-cls as at its training"
        )
    shapes = [" x ".join(map(str, shape)) for shape in (theirs, own)]
    return (
        f"the checkpoint's {key} is {shapes[0]}, the model's {shapes[1]}: give --arch and its sizes as at its training"
    )
