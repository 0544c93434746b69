"""`embinit expand-vocab --verify`: the divergence of the old and the new model on a text, token by token, for the rows
that were written and beside them for every method that needs no more than the checkpoint."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.cli.progress import progress
from embinit_fairseq.errors import CheckpointError, OptionError
from embinit_fairseq.expand.request import check_texts
from embinit_fairseq.files import write_json
from embinit_fairseq.init.new_rows import METHODS, Recipe, bound

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from embinit_fairseq.expand.evaluation import Batch
    from embinit_fairseq.expand.expansion import Expansion

FILES = ("verify.json", "verify.png")
_SAME = 1e-4  # of logits of old words, beside the largest: what single precision may change
COMPARED = [name for name, method in METHODS.items() if not method.needs_pieces]


def check(paths: Sequence[str]) -> None:
    """Before any work: DataError for a text that is not there, OptionError without matplotlib."""
    check_texts(paths)
    if importlib.util.find_spec("matplotlib") is None:
        raise OptionError("--verify draws a histogram with matplotlib, which is not installed: pip install matplotlib")


def verify(expansion: Expansion, folder: Path, paths: Sequence[str], quiet: bool = False) -> dict[str, Any]:
    """Measure; writes verify.json and verify.png to `folder`, where the new model.pt is. quiet: no progress bar.

    `holds` is False if a method with a bound exceeds it by more than rounding, or if a logit of an old word changed.
    """
    from embinit_fairseq.analysis.divergences import draw_divergences
    from embinit_fairseq.checkpoints.reading import load_checkpoint
    from embinit_fairseq.expand.evaluation import histograms, read_text

    source = expansion.source
    task, size = source.builder.set_up(source.texts), expansion.placement.new_size
    text = read_text(source.model, source.softmax, size, task, task, paths)
    model, _ = source.builder.load(expansion.new_texts, load_checkpoint(folder / "model.pt")["model"])
    recipes = {expansion.recipe.method: expansion.recipe}
    for method in COMPARED:
        recipes.setdefault(method, replace(expansion.recipe, method=method, scale=None, pieces=()))
    batches = progress(text.batches, "verify", "batch", hidden=quiet)
    kls, largest, change = _measure(expansion, model, recipes, batches)
    methods = {method: _summary(expansion, kl, recipes[method], largest) for method, kl in kls.items()}
    record = {
        "text": list(paths),
        "tokens": text.tokens,
        "unknown_words": text.unknown,
        "pairs_too_long": text.too_long,
        "old_logits_changed_by": change,
        "methods": methods,
        "holds": change <= _SAME * (1 + largest) and all(found.get("holds", True) for found in methods.values()),
    }
    counted = histograms(kls)
    write_json(folder / "verify.json", {**record, "histograms": counted})
    draw_divergences(expansion.request.checkpoint, expansion.recipe.count, methods, counted, str(folder / "verify.png"))
    return record


def _measure(
    expansion: Expansion, model: nn.Module, recipes: dict[str, Recipe], batches: Iterable[Batch]
) -> tuple[dict[str, np.ndarray], float, float]:
    """KL of every token by method, the largest absolute logit, and the largest change of one of an old word."""
    import numpy as np
    import torch

    measured: dict[str, list[np.ndarray]] = {method: [] for method in recipes}
    largest = change = 0.0
    with torch.inference_mode():
        for batch in batches:
            old = _logits_before(expansion, batch)
            if not torch.isfinite(old).all():
                raise CheckpointError(
                    f"--verify: what {expansion.request.checkpoint} computes is NaN or infinite; name an earlier "
                    "checkpoint of the training"
                )
            largest = max(largest, float(old.abs().max()))
            for method, new, kl in _after(expansion, model, recipes, batch):
                change = max(change, float((new - old).abs().max()))
                measured[method].append(kl)
    return {method: np.concatenate(parts) for method, parts in measured.items()}, largest, change


def _logits_before(expansion: Expansion, batch: Batch) -> Any:
    """(T, n) of the old words that keep their meaning."""
    import torch

    from embinit_fairseq.expand.evaluation import logits

    return logits(expansion.source.model, batch)[:, torch.from_numpy(expansion.placement.kept)]


def _after(
    expansion: Expansion, model: nn.Module, recipes: dict[str, Recipe], batch: Batch
) -> Iterator[tuple[str, Any, np.ndarray]]:
    """For each method: name, logits of the old words (T, n), KL (T,). The stored rows come first."""
    import torch

    from embinit_fairseq.expand.evaluation import divergence, logits

    placement = expansion.placement
    kept = torch.from_numpy(placement.moved[placement.kept])
    rows = torch.from_numpy(placement.rows)
    moved = batch.moved(placement.moved, expansion.source.fit.sides)
    values = model.state_dict()
    stored = {table.name: values[table.name][rows] for table in expansion.source.tables}
    for method, recipe in recipes.items():
        if method != expansion.recipe.method:
            _put(expansion, values, rows, recipe)
        found = logits(model, moved)
        yield method, found[:, kept], divergence(found[:, kept], found[:, rows]).numpy()
    for name, value in stored.items():
        values[name][rows] = value


def _put(expansion: Expansion, values: dict[str, Any], rows: Any, recipe: Recipe) -> None:
    """Other rows for the new words, rounded as the checkpoint would hold them."""
    import torch

    weights = expansion.source.state["model"]
    (drawn,) = expansion.rows(recipe, [weights])
    for table in expansion.source.tables:
        precision = weights[table.keys[0]].dtype
        values[table.name][rows] = torch.from_numpy(drawn[table.name]).to(precision).to(values[table.name].dtype)


def _summary(expansion: Expansion, kl: np.ndarray, recipe: Recipe, largest: float) -> dict[str, Any]:
    import torch

    from embinit_fairseq.expand.evaluation import rounded_bound, summary

    weights, limit = expansion.source.state["model"], bound(recipe)
    eps = max(torch.finfo(weights[table.keys[0]].dtype).eps for table in expansion.source.tables)
    return summary(kl, limit, None if limit is None else rounded_bound(limit, largest, eps))


def render(record: dict[str, Any]) -> str:
    """The record as a table for people."""
    lines = [
        "",
        f"KL(old || new) in nats, {record['tokens']:,} tokens of {' and '.join(record['text'])}, "
        f"{record['unknown_words']:.1%} of the words unknown:",
        "",
        f"{'':<10}{'mean':>11}{'median':>11}{'99 %':>11}{'max':>11}{'bound':>11}  new words' probability",
    ]
    for method, found in record["methods"].items():
        limit = "-" if found["bound"] is None else f"{found['bound']:.4g}"
        numbers = "".join(f"{found[key]:>11.4g}" for key in ("mean", "q50", "q99", "max"))
        verdict = "" if found.get("holds", True) else "  THE BOUND DOES NOT HOLD"
        lines.append(f"{method:<10}{numbers}{limit:>11}  {found['new_words_probability']:.4g}{verdict}")
    lines += ["", f"logits of old words changed by at most {record['old_logits_changed_by']:.2g}"]
    return "\n".join(lines)
