"""Compare two systems: by the sentences of a test set, whose translations are exchanged, or by seeds.

Paired approximate randomisation (Noreen 1989; Riezler and Maxwell 2005), as sacrebleu's --paired-ar: if two systems
were the same, each pair of translations could be exchanged. p is the share of random exchanges whose difference is at
least as large as the measured one. sacrebleu counts only larger differences: two systems that differ in one sentence,
whose exchange leaves the absolute difference as it is, then have the smallest possible p.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

#: random exchanges, and the seed of their numbers, both sacrebleu's
TRIALS, SEED = 10_000, 12345
#: largest difference of scores that counts as rounding
_ROUNDING = 1e-9


def randomisation_tests(
    baseline: Sequence[str],
    references: Sequence[Sequence[str]],
    systems: Sequence[Sequence[str]],
    metrics: Mapping[str, Metric],
    trials: int = TRIALS,
) -> list[dict[str, dict[str, Any]]]:
    """Test each system against the baseline by paired approximate randomisation.

    Args:
        baseline: translations.
        references: texts with as many lines.
        systems: translations of other systems, with as many lines.
        metrics: name -> sacrebleu's object.
        trials: number of random exchanges.

    Returns:
        For each system: metric -> `baseline`, `system`, `difference`, two-sided `p`, `trials`, `seed`, `signature`.
    """
    is_exchanged = np.random.default_rng(SEED).integers(2, size=(trials, len(baseline)), dtype=bool)
    tests: list[dict[str, dict[str, Any]]] = [{} for _ in systems]
    for name, metric in metrics.items():
        counts, *of_systems = (np.array(metric._extract_corpus_statistics(t, references)) for t in (baseline, *systems))
        signature = metric.get_signature()
        signature.update("seed", str(SEED))
        signature.update("ar", trials)
        for test, of_system in zip(tests, of_systems):
            scores = [_score(metric, stats.sum(0).tolist()) for stats in (counts, of_system)]
            test[name] = {
                "metric": name,
                "baseline": scores[0],
                "system": scores[1],
                "difference": scores[1] - scores[0],
                "p": _p(metric, counts, of_system, abs(scores[1] - scores[0]), is_exchanged),
                "trials": trials,
                "seed": SEED,
                "signature": str(signature),
            }
    return tests


def _p(metric: Metric, baseline: np.ndarray, system: np.ndarray, difference: float, is_exchanged: np.ndarray) -> float:
    """Return the two-sided p of a difference.

    Args:
        metric: sacrebleu's object.
        baseline, system: (sentences, counts): the counts whose sums over sentences give the score.
        difference: absolute difference of the two scores.
        is_exchanged: (trials, sentences).
    """
    differing = (baseline != system).any(1)
    moved = is_exchanged[:, differing].astype(float) @ (system - baseline)[differing]
    if np.issubdtype(baseline.dtype, np.integer):
        moved = moved.astype(baseline.dtype)
    pairs = zip((baseline.sum(0) + moved).tolist(), (system.sum(0) - moved).tolist())
    differences = np.array([_score(metric, first) - _score(metric, second) for first, second in pairs])
    larger = int((abs(differences) >= difference - _ROUNDING).sum())
    return (larger + 1) / (len(is_exchanged) + 1)


def _score(metric: Metric, counts: list[float]) -> float:
    """Return the score of a test set from the counts of its sentences, added."""
    return float(metric._compute_score_from_stats(counts).score)


def seed_interval(differences: Sequence[float]) -> dict[str, Any] | None:
    """Return mean and 95 % t-interval of paired differences over seeds; None for less than two numbers.

    Raises:
        ModuleNotFoundError: SciPy is not installed.
    """
    if len(differences) < 2 or not np.isfinite(differences).all():
        return None
    from scipy.stats import t

    number, mean = len(differences), float(np.mean(differences))
    half = float(t.ppf(0.975, number - 1) * np.std(differences, ddof=1) / math.sqrt(number))
    return {"seeds": number, "mean": mean, "low": mean - half, "high": mean + half}
