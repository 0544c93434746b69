"""Show the attention of each head of a trained model by position alone (Ke et al. 2021, Figure 6 and section 4.2).

H: heads; T: positions. The positional scores of TUPE and BERT-R depend neither on the words nor on the layer, so that
there is one map (T, T) per head. The model's modules compute it.

A map has one of five patterns, by numbers relative to T or to uniform attention. A (n, n): softmax of the scores over
the keys, without [CLS]; m_i: number of keys that query i may see.

    width      sum_i exp(entropy of row i) / sum_i m_i          in (0, 1]; 1: uniform
    direction  mean over i of (mass after i) - (mass before i)  in [-1, 1]; 0: symmetric
    distance   mean |i - j| under A / under uniform attention   0: the diagonal; 1: uniform

    globally   width >= 0.8
    previous   otherwise direction <= -0.5
    next       otherwise direction >= 0.5
    other      otherwise distance > 0.6 and distance > width: far from the query (for example a few positions that all
               queries share); a band around the query is nearer than it is wide
    locally    otherwise width <= 0.3
    broadly    otherwise

A decoder's queries see no later keys, so that the direction means nothing: its heads are never `previous` or `next`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embinit_fairseq import figures
from embinit_fairseq.analysis.trained_model import TrainedModel
from embinit_fairseq.errors import CheckpointError, OptionError
from embinit_fairseq.modules.position_encoding import (
    ENCODERS,
    POSITION_ENCODINGS,
    PositionEncoding,
    PositionSizes,
    published_name,
)

#: largest number of positions of a map if the user gives no length
LONGEST = 512
#: name -> its meaning
PATTERNS = {
    "globally": "attending globally",
    "locally": "attending locally",
    "broadly": "attending broadly",
    "previous": "attending to the previous positions",
    "next": "attending to the next positions",
    "other": "none of the five patterns",
}
_GLOBAL_WIDTH, _LOCAL_WIDTH, _DIRECTED, _NEAR = 0.8, 0.3, 0.5, 0.6
#: names of parameters, and parts of them
_ABSOLUTE, _RELATIVE = "absolute.embed_positions.weight", "relative.embed_buckets.weight"
_ADDED = "embed_positions.weight"
_POSITIONS, _TOKENS = ".positions.", ".embed_tokens.weight"

# ---- Maps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PositionMap:
    """Hold the positional scores of the heads of one part of a model.

    encoding: published name. scores (H, T, T): query i, key j; minus infinity where a decoder's query may not see the
    key. has_cls: row and column 0 belong to [CLS]. untied: they hold one constant each (equation (9)).
    left_out: part of the model's encoding that is not in the map, "" for none.
    """

    encoding: str
    part: str
    scores: np.ndarray
    has_cls: bool
    untied: bool
    left_out: str = ""

    @property
    def ordinary(self) -> np.ndarray:
        """Return the scores without the row and the column of [CLS]."""
        first = int(self.has_cls)
        return self.scores[:, first:, first:]


def position_map(model: TrainedModel, part: str | None = None, length: int | None = None) -> PositionMap:
    """Compute the map of one part of a model.

    Args:
        model: the trained model.
        part: encoder, decoder or ELECTRA's generator; None: the encoder.
        length: T; None: all positions of the model, 512 at most.

    Raises:
        CheckpointError: the model has no scores by position alone.
        OptionError: the model does not have this part or this length.
    """
    kind = str(model.options.get("position_encoding") or model.options.get("positions") or "untied")
    prefixes = _prefixes(model)
    if not prefixes or kind not in POSITION_ENCODINGS:
        raise CheckpointError(
            f"{model.path} is a checkpoint of {model.arch}, which has no positional correlation of this plugin; name "
            f"one of {ENCODERS} or tupe_transformer"
        )
    part = part or "encoder"
    if part not in prefixes:
        raise OptionError(
            f"--part {part}: {model.path} ({model.arch}) has positions of this kind in its "
            f"{' and '.join(sorted(prefixes))} only"
        )
    state = model.parameters(prefixes[part])
    sizes = _sizes(model.options, part, state)
    module = POSITION_ENCODINGS[kind].build(sizes).double()
    module.load_state_dict(state)
    if type(module).bias is PositionEncoding.bias:
        hint = {"added": ": use embinit plot correlations", "none": ": it has no positions"}.get(kind, "")
        raise CheckpointError(f"{model.path} ({model.arch}): its scores depend on words, so that it has no map{hint}")
    longest = module.max_positions or sizes.max_positions
    length = min(longest, LONGEST) if length is None else length
    has_cls = module.untie_cls or ".sentence_encoder." in prefixes[part]
    shortest = 2 + has_cls  # two positions to choose from
    if not shortest <= length <= longest:
        raise OptionError(f"--length {length}: the {part} of {model.path} has {shortest} to {longest} positions")
    with torch.no_grad():
        bias = module.bias(length)
    assert bias is not None
    scores = bias.numpy()
    if part == "decoder":
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    tied, rotary = (bool(model.options.get(name)) for name in ("tupe_tie_cls", "rotary"))
    name = published_name(kind, sizes.num_buckets > 0, tied, rotary)
    left_out = "the rotation, whose scores depend on the words" if rotary and "RoPE" in name else ""
    return PositionMap(name, part, scores, has_cls, module.untie_cls, left_out)


def _prefixes(model: TrainedModel) -> dict[str, str]:
    """Return part -> the beginning of the names of its positions' parameters."""
    prefixes = {key[: key.index(_POSITIONS) + len(_POSITIONS)] for key in model.state if _POSITIONS in key}
    if {"position_encoding", "positions"} & {*model.options}:  # an encoding may have no parameters
        ends = len(_TOKENS) - 1
        prefixes |= {key[:-ends] + _POSITIONS[1:] for key in model.state if key.endswith(_TOKENS)}
    return {prefix.partition(".")[0]: prefix for prefix in sorted(prefixes, reverse=True)}


def _sizes(options: dict[str, Any], part: str, state: dict[str, Tensor]) -> PositionSizes:
    """Return the sizes of an encoding by the shapes of its parameters, else by the options."""
    # translation has no [CLS] and no option for it
    reset = None if options.get("tupe_tie_cls", True) else options["tupe_reset"]
    num_buckets, num_heads = state[_RELATIVE].shape if _RELATIVE in state else (0, options[f"{part}_attention_heads"])
    table = state.get(_ABSOLUTE, state.get(_ADDED))
    if table is None:
        names = ("max_positions", "max_target_positions" if part == "decoder" else "max_source_positions")
        max_positions, embed_dim = next((options[name] for name in names if options.get(name)), LONGEST), 0
    else:
        max_positions, embed_dim = table.shape
    is_untied = _ABSOLUTE in state and reset is not None  # one more row, for [CLS]
    return PositionSizes(
        embed_dim,
        num_heads,
        max_positions - int(is_untied),
        num_buckets=num_buckets - int(is_untied and num_buckets > 0 and reset == "official"),
        max_distance=options["max_rel_pos"] if num_buckets else 0,
        reset=reset,
        bidirectional=part != "decoder",
    )


# ---- Patterns -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadPattern:
    """Hold the pattern of a head. keys: sum_i exp(entropy) / n, the average number of keys that a query attends to."""

    name: str
    width: float
    keys: float
    direction: float
    distance: float


def attention(scores: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis, in which each query sees a key whose score is finite."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def head_patterns(scores: np.ndarray) -> list[HeadPattern]:
    """Return the pattern of each head.

    Args:
        scores: (H, n, n) without [CLS], n >= 2; minus infinity where query i may not see key j.
    """
    n = scores.shape[-1]
    seen = np.isfinite(scores[0])
    uniform = seen / seen.sum(axis=1, keepdims=True)
    offset = np.arange(n) - np.arange(n)[:, None]  # j - i
    weights = attention(scores)
    logarithms = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    keys = np.exp(-(weights * logarithms).sum(axis=-1)).sum(axis=-1) / n
    width = keys * n / seen.sum()
    direction = (weights * np.sign(offset)).sum(axis=(1, 2)) / n
    distance = (weights * abs(offset)).sum(axis=(1, 2)) / (uniform * abs(offset)).sum()
    directed = bool(seen.all())
    return [
        HeadPattern(_name(w, direct, far, directed), float(w), float(count), float(direct), float(far))
        for w, count, direct, far in zip(width, keys, direction, distance)
    ]


def _name(width: float, direction: float, distance: float, directed: bool) -> str:
    if width >= _GLOBAL_WIDTH:
        return "globally"
    if directed and abs(direction) >= _DIRECTED:
        return "next" if direction > 0 else "previous"
    if distance > max(_NEAR, width):
        return "other"
    return "locally" if width <= _LOCAL_WIDTH else "broadly"


# ---- Figure ---------------------------------------------------------------------------------------------------------


def draw_positions(
    model: TrainedModel, shown: PositionMap, patterns: list[HeadPattern], softmax: bool, path: str
) -> None:
    """Draw one panel per head: the scores, or with `softmax` the attention by position alone; path: the PNG."""
    num_heads, length, _ = shown.scores.shape
    columns = min(num_heads, 2 if num_heads <= 4 else 4 if num_heads <= 16 else 6)  # 2: the width of a page
    figure, panels = figures.new_figure(columns, math.ceil(num_heads / columns))
    values, options, label = _relative_attention(shown.scores) if softmax else _plain_scores(shown)
    for number, (axes, pattern) in enumerate(zip(panels, patterns)):
        image = figures.draw_map(axes, values[number], f"head {number + 1}: {pattern.name}", **options)
        if shown.has_cls:
            figures.mark_cls(axes)
    for axes in panels[num_heads:]:
        axes.remove()
    panels = panels[:num_heads]
    ticks = figures.position_ticks(length, shown.has_cls)
    figures.label_axes(panels, columns, "query position", "key position", *ticks)
    figures.colour_bar(figure, image, panels, label, values)
    left_out = f", without {shown.left_out}" if shown.left_out else ""
    figures.title(figure, model.path, f"{model.arch}, {shown.encoding}, {shown.part}{left_out}")
    figures.save(figure, path)


def _plain_scores(shown: PositionMap) -> tuple[np.ndarray, dict[str, Any], str]:
    """Return the scores with one colour scale for all heads, chosen by the scores that are not reset."""
    values = np.where(np.isfinite(shown.scores), shown.scores, np.nan)
    return values, figures.colours(*figures.limits(shown.ordinary)), "positional correlation (before the softmax)"


def _relative_attention(scores: np.ndarray) -> tuple[np.ndarray, dict[str, Any], str]:
    """Return attention as a multiple of uniform attention, with logarithmic colours: white is uniform."""
    from matplotlib.colors import LogNorm

    seen = np.isfinite(scores)
    tiny = np.finfo(scores.dtype).tiny  # the logarithm of 0 cannot be drawn
    values = np.where(seen, np.maximum(attention(scores) * seen.sum(axis=-1, keepdims=True), tiny), np.nan)
    factor = max(2.0, figures.limits(values, share=0.002)[1])
    options = {"cmap": "RdBu_r", "norm": LogNorm(1 / factor, factor)}
    return values, options, "attention by position alone (1: uniform)"
