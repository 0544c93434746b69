"""fairseq's configuration of a converted TUPE model: from names and shapes where they say it, else from `args`."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from embinit_fairseq.convert_tupe.keys import Layout
from embinit_fairseq.errors import CheckpointError, OptionError, check_heads

#: Options of `--arch tupe_base` and their defaults, in the order in which flags are printed.
TUPE_BASE: dict[str, Any] = {
    "rel_pos": False,
    "rel_pos_bins": 32,
    "max_rel_pos": 128,
    "encoder_layers": 12,
    "encoder_embed_dim": 768,
    "encoder_ffn_embed_dim": 3072,
    "encoder_attention_heads": 12,
    "encoder_normalize_before": False,
    "embedding_normalize": False,
    "activation_fn": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.0,
    "pooler_activation_fn": "tanh",
    "pooler_dropout": 0.1,
    "max_positions": 512,
}
_ACTIVATIONS = ("gelu", "relu")
_BREAK_MODES = ("none", "complete", "complete_doc", "eos")
_HEAD = "sentence_classification_head"  # the only one their criterion knows


class Settings:
    """The `args` of a checkpoint: values by name, checked for their type."""

    def __init__(self, path: str, args: Any) -> None:
        self.path = path
        self.values: Mapping[str, Any] = vars(args) if isinstance(args, Namespace) else args or {}
        if not isinstance(self.values, Mapping):
            raise CheckpointError(f"{path}: its 'args' are a {type(args).__name__}, not options; it is damaged")

    def get(self, name: str, default: Any, kind: type | tuple[type, ...]) -> Any:
        """The option `name`; the default if it is absent or None."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise CheckpointError(f"{self.path}: its option {name} is {value!r}; it is damaged")
        return value

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """The option `name`, which must lie in this range; whole where the default is."""
        value = self.get(name, default, int if isinstance(default, int) else (int, float))
        if not least <= value <= most:  # nor is NaN
            limits = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
            raise CheckpointError(f"{self.path}: its option {name} is {value!r}, not {limits}; it is damaged")
        return type(default)(value)


def configuration(path: str, args: Any, layout: Layout, num_heads: int | None, data: str) -> dict[str, Any]:
    """The sections that fairseq's loader reads, as plain data. args: of the checkpoint, or None. num_heads: `--heads`.

    OptionError or CheckpointError, naming `path`, for what is missing, contradicts itself or is not possible here.
    """
    settings = Settings(path, args)
    model = _model_options(path, settings, layout, num_heads)
    task, criterion = _task_options(path, settings, layout, data)
    return {"_name": None, "model": model, "task": task, "criterion": criterion, "bpe": None, "tokenizer": None}


def _model_options(path: str, settings: Settings, layout: Layout, num_heads: int | None) -> dict[str, Any]:
    taken: dict[str, Any] = {
        name: settings.number(name, TUPE_BASE[name], 0, 1)
        for name in ("dropout", "attention_dropout", "activation_dropout", "pooler_dropout")
    }
    for name in ("activation_fn", "pooler_activation_fn"):
        activation = settings.get(name, TUPE_BASE[name], str)
        if activation not in _ACTIVATIONS + (("tanh",) if name.startswith("pooler") else ()):
            raise CheckpointError(f"{path}: it was trained with {name} {activation}, which this plugin does not have")
        taken[name] = activation
    buckets = TUPE_BASE["rel_pos_bins"] if layout.relative is None else layout.relative[0] - 1
    if buckets < 4 or buckets % 2:
        raise CheckpointError(f"{path}: a table of {buckets} relative buckets (and one row); it is damaged")
    # the distance must be more than the near ones that have a bucket each; TUPE-A has no use for it
    near = buckets // 4
    distance = TUPE_BASE["max_rel_pos"]
    if layout.relative is not None:
        distance = settings.number("max_rel_pos", distance, near + 1, math.inf)
    return {
        "_name": "tupe",
        "position_encoding": "untied",
        "tupe_reset": "official",
        "tupe_tie_cls": False,
        "rel_pos": layout.relative is not None,
        "rel_pos_bins": buckets,
        "max_rel_pos": distance,
        "encoder_layers": layout.num_layers,
        "encoder_embed_dim": layout.embed_dim,
        "encoder_ffn_embed_dim": layout.ffn_embed_dim,
        "encoder_attention_heads": _num_heads(path, settings, layout, num_heads),
        "encoder_normalize_before": layout.normalize_before,
        "embedding_normalize": layout.embedding_normalize,
        "max_positions": layout.position_rows - 1,
        **taken,
    }


def _num_heads(path: str, settings: Settings, layout: Layout, num_heads: int | None) -> int:
    """From the relative table, `args` and `--heads`, which must agree."""
    sources = {
        "the table of relative positions": None if layout.relative is None else layout.relative[1],
        "the checkpoint's args": settings.get("encoder_attention_heads", None, int),
        "--heads": num_heads,
    }
    known = {source: number for source, number in sources.items() if number is not None}
    if not known:
        raise OptionError(f"{path}: nothing in it says how many attention heads there are; give --heads (base: 12)")
    if len(set(known.values())) > 1:
        listed = ", ".join(f"{source}: {number}" for source, number in known.items())
        raise OptionError(f"{path}: the numbers of attention heads differ ({listed}); correct or leave out --heads")
    num_heads = next(iter(known.values()))
    check_heads(num_heads, layout.embed_dim, f"{path}: --heads", "the model's embed_dim")
    return num_heads


def _task_options(path: str, settings: Settings, layout: Layout, data: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sections of the task and of the criterion: masked_lm, or sentence_prediction if there is a head."""
    task = settings.get("task", "sentence_prediction" if layout.heads else "masked_lm", str)
    if task == "sentence_prediction" and not layout.heads:
        raise CheckpointError(f"{path}: fine-tuned (task {task}), but without a classification head; it is damaged")
    common = {"data": data, "seed": settings.get("seed", 1, int)}
    if layout.heads:
        return _sentence_prediction(settings, layout, common)
    break_mode = settings.get("sample_break_mode", "complete", str)
    if break_mode not in _BREAK_MODES:
        raise CheckpointError(f"{path}: its option sample_break_mode is {break_mode!r}; it is damaged")
    longest = layout.position_rows - 1
    unmasked = settings.number("leave_unmasked_prob", 0.1, 0, 1)
    task_section = {
        "_name": "masked_lm",
        **common,
        "sample_break_mode": break_mode,
        "tokens_per_sample": min(settings.number("tokens_per_sample", longest, 1, math.inf), longest),
        "mask_prob": settings.number("mask_prob", 0.15, 0, 1),
        "leave_unmasked_prob": unmasked,
        "random_token_prob": settings.number("random_token_prob", 0.1, 0, round(1 - unmasked, 6)),
        "freq_weighted_replacement": settings.get("freq_weighted_replacement", False, bool),
        "mask_whole_words": settings.get("mask_whole_words", False, bool),
    }
    return task_section, {"_name": "masked_lm", "tpu": False}


def _sentence_prediction(settings: Settings, layout: Layout, common: dict) -> tuple[dict[str, Any], dict[str, Any]]:
    head = _HEAD if _HEAD in layout.heads else next(iter(layout.heads))
    shared = {"classification_head_name": head, "regression_target": settings.get("regression_target", False, bool)}
    task_section = {
        "_name": "sentence_prediction",
        **common,
        **shared,
        "num_classes": layout.heads[head][1],
        "init_token": _token(settings, layout, "init_token", None if settings.values else 0),
        "separator_token": _token(settings, layout, "separator_token", None),
        "shorten_method": "truncate" if settings.get("truncate_sequence", False, bool) else "none",
        "max_positions": layout.position_rows - 1,
    }
    return task_section, {"_name": "sentence_prediction", **shared}


def _token(settings: Settings, layout: Layout, name: str, default: int | None) -> int | None:
    """The row of a symbol that the task adds to sentences; None where it adds none."""
    if settings.get(name, default, int) is None:
        return None
    return int(settings.number(name, 0, 0, layout.num_symbols - 1))


def flags(options: Mapping[str, Any]) -> str:
    """The command-line flags of fairseq-train that build this model."""
    words = ["--arch tupe_base"]
    for name, default in TUPE_BASE.items():
        if options[name] != default:
            flag = f"--{name.replace('_', '-')}"
            words.append(flag if options[name] is True else f"{flag} {options[name]}")
    return " ".join(words)
