"""Measure the effect of a change of the vocabulary on a model, token by token on a text (--verify).

For one prefix: l_w the logits of old words, Z = sum exp(l_w) over old words, N the sum of exp over new words.

After an expansion the probability of every old word is the old one times Z / (Z + N), so that

    KL(old || new) = log((Z + N) / Z) = log(1 + N / Z)

and the new words together have the probability 1 - exp(-KL). If fillers became words, Z is the sum over the other old
rows, and `old` is the old distribution under the condition that the next symbol is one of these rows.

Trimming gives KL(new || old) = -log P_old(kept words), the certificate, which is compared with the measured divergence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embinit_fairseq.errors import CheckpointError
from embinit_fairseq.init.methods import EXPANSION, METHODS, Recipe, new_rows, recipe_of
from embinit_fairseq.resize.core import Change, load_result, tensors_of
from embinit_fairseq.resize.evaluation import Batch, divergence, logits, read_text
from embinit_fairseq.resize.expand import Expansion
from embinit_fairseq.resize.old_model import OldModel
from embinit_fairseq.resize.symbol_tensors import output_names

QUANTILES = (0.5, 0.9, 0.99)
#: methods that are measured next to the chosen one, since they need only the checkpoint
COMPARED = [name for name in EXPANSION if not (METHODS[name].needs_subwords or METHODS[name].needs_vectors)]
#: tolerance for logits in single precision, relative to 1 + the largest, and for divergences in nats
_ROUNDING = 1e-4
#: tolerance in eps for rows with the relative error eps / 2: the terms of a logit may be larger than the logit
_STORED = 8
#: shows progress over batches
Progress = Callable[[Sequence[Batch]], Iterable[Batch]]


def rounded_bound(limit: float, rounding: float) -> float:
    """Return the largest allowed KL if rounding made the logits of new words larger.

    The logit of new word i is sum_j W_ij z_j + r_i. In exact arithmetic r is 0; its rows are stored in the precision of
    the checkpoint, and products are summed in single precision. The new words add at most exp(max r) F(p) Z to the
    normaliser Z (`init.weights`), so that KL <= log(1 + exp(max r) F(p)). r is measured in the logits from which KL is
    computed. Only the error of the limit itself, a billionth, is estimated.

    Args:
        limit: the bound without rounding.
        rounding: max r.
    """
    return math.log1p(math.expm1(limit) * math.exp(rounding) * (1 + 1e-9))


def verify_expansion(
    expansion: Expansion, folder: Path, paths: Sequence[str], progress: Progress
) -> tuple[dict[str, Any], dict[str, dict[str, list[float]]]]:
    """Measure KL(old || new) of the rows that were written, and of every method that needs only the checkpoint.

    Args:
        expansion: the expansion.
        folder: folder of the new model.pt.
        paths: the text; for a translation model source and target.
        progress: shows progress.

    Returns:
        The record and a histogram per method. `holds` is False if a method with a bound exceeds it by more than
        rounding, if a logit of a new word is not the combination of old logits, or if a logit of an old word changed.
    """
    old_model, chosen = expansion.old_model, expansion.recipe
    task = old_model.builder.set_up(old_model.texts)
    text = read_text(old_model.model, old_model.softmax, len(expansion.change.old_row), task, task, paths)
    model, _ = load_result(old_model, expansion.change, folder)
    recipes = {chosen.method: chosen}
    for method in COMPARED:
        recipes.setdefault(method, recipe_of(method, expansion.inputs, seed=chosen.seed))
    outputs = output_names(old_model.model, old_model.tables)
    limits = {method: recipe.bound(outputs) for method, recipe in recipes.items()}
    combined = {method: recipes[method] for method, limit in limits.items() if limit is not None}
    kls, rounding, largest, changed_by = _measure(expansion, model, recipes, combined, progress(text.batches))
    weights = old_model.state["model"]
    eps = max(torch.finfo(weights[table.keys[0]].dtype).eps for table in old_model.tables)
    methods = {}
    for method, kl in kls.items():
        if (limit := limits[method]) is None:
            methods[method] = summary(kl, None, None)
            continue
        numbers = summary(kl, limit.limit, rounded_bound(limit.limit, rounding[method].max()))
        is_rounding = np.abs(rounding[method]).max() <= (_ROUNDING + _STORED * eps) * (1 + largest)
        numbers["holds"] &= bool(is_rounding)
        methods[method] = numbers | {"rounding": float(np.abs(rounding[method]).max())}
    is_same = changed_by <= _ROUNDING * (1 + largest)
    record = {
        "text": list(paths),
        "tokens": text.tokens,
        "unknown_words": text.unknown,
        "pairs_too_long": text.too_long,
        "old_logits_changed_by": changed_by,
        "methods": methods,
        "holds": is_same and all(numbers.get("holds", True) for numbers in methods.values()),
    }
    return record, histograms(kls)


def _measure(
    expansion: Expansion,
    model: nn.Module,
    recipes: Mapping[str, Recipe],
    combined: Mapping[str, Recipe],
    batches: Iterable[Batch],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], float, float]:
    """Measure all recipes on all batches.

    Args:
        expansion: the expansion.
        model: the new model; rows of new words are replaced.
        recipes: method -> recipe.
        combined: the recipes whose rows are combinations of old rows.
        batches: the text.

    Returns:
        Method -> KL of every token; method -> smallest and largest difference of a new word's logit to the same
        combination of old logits; the largest absolute logit; the largest change of an old word's logit.
    """
    old_model, change = expansion.old_model, expansion.change
    new_row, rows = change.new_row_of(len(old_model.symbols)), torch.from_numpy(change.made)
    stays = torch.from_numpy(new_row >= 0)
    new_rows_of_old = torch.from_numpy(new_row)[stays]
    values = model.state_dict()
    stored = {method: _stored_rows(old_model, recipe) for method, recipe in recipes.items()}
    stored[expansion.recipe.method] = {table.name: values[table.name][rows] for table in old_model.tables}
    measured: dict[str, list[np.ndarray]] = {method: [] for method in recipes}
    rounding = {method: np.zeros(2) for method in combined}
    largest = changed_by = 0.0
    with torch.inference_mode():
        for batch in batches:
            old = logits(old_model.model, batch)[:, stays]
            if not torch.isfinite(old).all():
                raise CheckpointError(
                    f"--verify: a logit of {old_model.path} is NaN or infinite; name an earlier checkpoint of the "
                    "training"
                )
            largest = max(largest, float(old.abs().max()))
            moved = batch.moved(new_row, old_model.sides)
            for method in recipes:
                for name, value in stored[method].items():
                    values[name][rows] = value.to(values[name].dtype)
                new = logits(model, moved)
                kept_logits = new[:, new_rows_of_old]
                changed_by = max(changed_by, float((kept_logits - old).abs().max()))
                measured[method].append(divergence(kept_logits, new[:, rows]).numpy())
                if method in combined:
                    error = _combination_error(combined[method], kept_logits, stays, new[:, rows])
                    rounding[method] = np.array(
                        [min(rounding[method][0], error.min()), max(rounding[method][1], error.max())]
                    )
    kls = {method: np.concatenate(parts) for method, parts in measured.items()}
    return kls, rounding, largest, changed_by


def _combination_error(recipe: Recipe, old: Tensor, stays: Tensor, new: Tensor) -> np.ndarray:
    """Subtract the combinations of old words' logits from the logits of new words; return a row per new word.

    Args:
        recipe: combines rows of old words into those of new words.
        old: logits of the old words that stay, a row per token.
        stays: True for each old word that stays.
        new: logits of the new words, a row per token.
    """
    z = torch.zeros(len(stays), len(old))
    z[stays] = old.T
    (expected,) = new_rows(recipe, {"logits": [z]})["logits"]
    return new.T.double().numpy() - expected


def _stored_rows(old_model: OldModel, recipe: Recipe) -> dict[str, Tensor]:
    """Return table -> rows of the new words, rounded as the checkpoint would hold them."""
    weights = old_model.state["model"]
    made = new_rows(recipe, tensors_of(old_model, [weights]))
    return {
        table.name: torch.from_numpy(made[table.name][0]).to(weights[table.keys[0]].dtype) for table in old_model.tables
    }


def verify_trim(
    old_model: OldModel, change: Change, folder: Path, paths: Sequence[str], progress: Progress
) -> dict[str, Any]:
    """Measure KL(new || old) token by token, and compare it with the certificate -log P_old(kept words).

    Args:
        old_model: its checkpoint, dictionary and tensors.
        change: the kept rows.
        folder: folder of the new model.pt.
        paths: the text, which is read with the new dictionary.
        progress: shows progress.
    """
    model, task = load_result(old_model, change, folder)
    old_task = old_model.builder.set_up(old_model.texts)
    text = read_text(model, old_model.softmax, len(old_model.symbols), old_task, task, paths)
    old_rows = torch.from_numpy(change.old_row)
    measured, certified = [], []
    for batch in progress(text.batches):
        new = logits(model, batch).double().log_softmax(-1)
        old = (
            logits(old_model.model, batch.moved(change.old_row, old_model.sides)).double().log_softmax(-1)[:, old_rows]
        )
        measured.append((new.exp() * (new - old)).sum(-1).numpy())
        certified.append(-old.logsumexp(-1).numpy())
    kl, certificate = np.concatenate(measured), np.concatenate(certified)
    difference = float(np.abs(kl - certificate).max())
    return {
        "text": list(paths),
        "tokens": text.tokens,
        "unknown_words": text.unknown,
        **{name: value for name, value in summary(kl, None, None).items() if name in ("mean", "q50", "q99", "max")},
        "certificate_mean": float(certificate.mean()),
        "removed_words_probability": float(-np.expm1(-certificate).mean()),
        "largest_difference": difference,
        "holds": difference <= _ROUNDING,
    }


def summary(kl: np.ndarray, limit: float | None, allowed: float | None) -> dict[str, Any]:
    """Summarise (T,) divergences; `holds` is True if the largest is allowed, if there is a limit."""
    numbers: dict[str, Any] = {
        "mean": float(kl.mean()),
        **{f"q{round(100 * q)}": float(value) for q, value in zip(QUANTILES, np.quantile(kl, QUANTILES))},
        "max": float(kl.max()),
        "new_words_probability": float(-np.expm1(-kl).mean()),
        "bound": limit,
    }
    if allowed is not None:
        numbers["holds"] = bool(kl.max() <= allowed)
    return numbers


def histograms(kls: Mapping[str, np.ndarray], bins: int = 40) -> dict[str, dict[str, list[float]]]:
    """Return name -> edges (bins + 1), the same for all, and counts (bins).

    Divergences of different methods are powers of ten apart, so bins grow by a constant factor. The first bin begins at
    0 and holds the smallest thousandth of all values.
    """
    high = max(1e-12, *(float(kl.max()) for kl in kls.values()))
    low = min(float(np.quantile(kl, 0.001)) for kl in kls.values())
    edges = np.geomspace(max(low, 1e-6 * high), high, bins) if low < high else np.linspace(high / bins, high, bins)
    edges = np.concatenate([[0.0], edges[:-1], [high]])  # the largest to the bit
    return {
        name: {"edges": edges.tolist(), "counts": np.histogram(np.maximum(kl, 0.0), bins=edges)[0].tolist()}
        for name, kl in kls.items()
    }
