"""Compare the distributions of values in embedding matrices (Kim et al. 2024, Tables 2 and 6, as a figure).

Each matrix (N, D) has a density over the same bins; lines show the standard deviations of Xavier's matrix of this size
and of the position encodings that a transformer adds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embinit_fairseq import figures
from embinit_fairseq.analysis.transforms import xavier_std
from embinit_fairseq.errors import CheckpointError, OptionError
from embinit_fairseq.init.init_report import describe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: name of a matrix, in several models with the pair of languages -> (pair, side, kind) of its slot
_MATRIX = re.compile(r"(?:models\.([^.]+\.))?(?:([^.]+)\.(?:.+\.)?)?embed_tokens(_\w+)?\.weight")
#: share of the values outside of the figure, on either side
_TAIL = 0.0005
#: ratio of the widest to the narrowest matrix above which a linear axis would leave the narrowest only a few bins
_UNLIKE = 4


@dataclass(frozen=True)
class ValueHistogram:
    """Hold the distribution of the values of one matrix.

    moments: min, max, mean, std of all values. density: (bins,), such that its integral is the share of the values
    inside the bins. outside: the share of the others. reach: the largest absolute value, without the tails. xavier_std:
    sigma of Xavier's distribution for (N, D), in the unit of the histogram.
    """

    name: str
    rows: int
    dim: int
    moments: dict[str, float]
    density: np.ndarray
    outside: float
    reach: float
    xavier_std: float


def embedding_matrices(state: Mapping[str, Any], path: str, slots: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Return slot -> (N, D) float32 of the token embeddings in a model's state dict.

    Slots with equal matrices (--share-all-embeddings) are one entry: `encoder = decoder`.

    Args:
        state: name -> parameter.
        path: the checkpoint's path, for messages.
        slots: the slots to return; none: all.

    Raises:
        CheckpointError: the model has no token embeddings.
        OptionError: the model does not have a slot.
    """
    matrices: dict[str, np.ndarray] = {}
    for name, parameter in state.items():
        if match := _MATRIX.fullmatch(name):
            pair, side, kind = match.groups()
            slot = f"{pair or ''}{side or 'encoder'}{kind or ''}"  # as --embed-init names it
            matrices[name.removesuffix(".weight") if slot in matrices else slot] = parameter.float().numpy()
    if not matrices:
        raise CheckpointError(f"{path}: no token embeddings (embed_tokens); name a checkpoint of fairseq-train")
    for slot in slots:
        if slot not in matrices:
            raise OptionError(f"--slot {slot}: {path} has {', '.join(matrices)} only; name one of them")
    groups: list[list[str]] = []
    for slot in (slot for slot in matrices if not slots or slot in slots):
        tied = next((group for group in groups if np.array_equal(matrices[group[0]], matrices[slot])), None)
        if tied is None:
            groups.append([slot])
        else:
            tied.append(slot)
    return {" = ".join(group): matrices[group[0]] for group in groups}


def value_histograms(
    matrices: Mapping[str, np.ndarray], bins: int, scaled: bool = False
) -> tuple[np.ndarray, list[ValueHistogram]]:
    """Count the values of several matrices over the same bins.

    The axis is symmetric around 0 and holds all but a thousandth of the values of each matrix. If the range of one
    matrix is much wider than that of another, bins grow with the distance from 0 (see `linear_width`).

    Args:
        matrices: name -> (N, D).
        bins: number of bins.
        scaled: multiply all values by sqrt(D), as a transformer does.

    Returns:
        (bins + 1,) edges, and one histogram per matrix.

    Raises:
        OptionError: a matrix is empty or has values that are not finite.
    """
    factors = {name: math.sqrt(matrix.shape[1]) if scaled else 1.0 for name, matrix in matrices.items()}
    reaches: dict[str, float] = {}
    for name, matrix in matrices.items():
        if not matrix.size or not np.isfinite(matrix).all():
            raise OptionError(f"{name}: {'NaN or infinity in it' if matrix.size else 'no values'}; take another matrix")
        tails = np.quantile(matrix, _TAIL, method="lower"), np.quantile(matrix, 1 - _TAIL, method="higher")
        reaches[name] = factors[name] * float(np.abs(tails).max())
    reach, width = max(reaches.values()) or 1.0, linear_width(list(reaches.values()))
    reach *= 1 + 1e-12  # rounding must not put the outermost value beyond the axis
    edges = np.linspace(-1, 1, bins + 1)
    edges = reach * edges if width is None else width * np.sinh(edges * np.arcsinh(reach / width))
    histograms = []
    for name, matrix in matrices.items():
        counts = np.histogram(matrix.ravel(), bins=edges / factors[name])[0]
        moments = {key: value * factors[name] for key, value in describe(matrix).items()}
        density, outside = counts / (matrix.size * np.diff(edges)), 1 - float(counts.sum()) / matrix.size
        rows, dim = matrix.shape
        sigma = xavier_std(rows, dim) * factors[name]
        histograms.append(ValueHistogram(name, rows, dim, moments, density, outside, reaches[name], sigma))
    return edges, histograms


def linear_width(reaches: Sequence[float]) -> float | None:
    """Return the width of an axis arcsinh(x / width), nearly linear up to it, on which all matrices have enough bins.

    None: the ranges of the matrices are about equal, so that a linear axis shows all.
    """
    positive = [reach for reach in reaches if reach > 0]
    return min(positive) / 2 if positive and max(positive) > _UNLIKE * min(positive) else None


def draw_values(
    edges: np.ndarray, histograms: list[ValueHistogram], positions: dict[int, float], scaled: bool, path: str
) -> None:
    """Draw the densities on a logarithmic scale, with lines at + and - each sigma: Xavier's dashed, positions' dotted.

    Args:
        edges, histograms, scaled: as for `value_histograms`.
        positions: D -> sigma of the position encodings, in the unit of the histograms.
        path: the PNG.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.8), layout="constrained")
    axes = figure.subplots()
    for number, histogram in enumerate(histograms):
        beyond = f", {histogram.outside:.2%} beyond the axis" if histogram.outside else ""
        label = f"{histogram.name}: sigma {histogram.moments['std']:.3g}{beyond}"
        steps = axes.stairs(histogram.density, edges, label=label, linewidth=1.3, baseline=None)
        for sign in (-1, 1):
            axes.axvline(sign * histogram.xavier_std, color=steps.get_edgecolor(), linestyle="--", linewidth=0.9)
        _mark_ends(axes, histogram, edges[-1], number, steps.get_edgecolor())
    for std in sorted(set(positions.values())):
        for sign in (-1, 1):
            axes.axvline(sign * std, color="black", linestyle=":", linewidth=1)
    axes.plot([], [], "--", color="0.4", label="Xavier's sigma for N x D")
    axes.plot([], [], ":", color="black", label="positions' sigma" + ("" if scaled else " / sqrt(D)"))
    axes.set_yscale("log")
    sigmas = (*positions.values(), *(histogram.xavier_std for histogram in histograms))
    reach = max(edges[-1], *(1.1 * std for std in sigmas))
    width = linear_width([histogram.reach for histogram in histograms])
    if width is not None:
        axes.set_xscale("asinh", linear_width=width)
        _round_ticks(axes, width, reach)
    axes.set_xlim(-reach, reach)
    far = "" if width is None else ", logarithmic far from 0"
    axes.set_xlabel("value" + (" times sqrt(D)" if scaled else "") + far)
    axes.set_ylabel("density")
    axes.grid(alpha=0.3)
    legend = figure.legend(loc="outside lower center", fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a file name may hold dollars
    figures.save(figure, path)


def _mark_ends(axes: Axes, histogram: ValueHistogram, reach: float, number: int, colour: Any) -> None:
    """Mark a side on which values are beyond the bins, by an arrow with the outermost value."""
    height = 0.03 + 0.05 * number  # share of the axes
    for sign, end in ((-1, "min"), (1, "max")):
        value = histogram.moments[end]
        if sign * value > reach:
            text, side = (f" ◂ {value:.3g}", "left") if sign < 0 else (f"{value:.3g} ▸ ", "right")
            transform = axes.get_xaxis_transform()  # x in values, y in shares of the axes
            axes.text(sign * reach, height, text, transform=transform, ha=side, color=colour, fontsize=7)


def _round_ticks(axes: Axes, width: float, reach: float) -> None:
    """Label 0 and powers of ten outside of the linear part; also their multiples by 2 and 5 if there are few powers."""
    tens = range(math.floor(math.log10(width)) - 1, math.floor(math.log10(reach)) + 1)
    powers = [10.0**n for n in tens if 10.0**n >= width]
    if len(powers) < 3:
        powers = [step * 10.0**n for n in tens for step in (1, 2, 5) if width / 2 <= step * 10.0**n <= reach]
    places = [sign * power for sign in (-1, 1) for power in powers or [reach]]
    axes.set_xticks([0.0, *places], [f"{place:.2g}" for place in (0.0, *places)])
    axes.set_xticks([], minor=True)
