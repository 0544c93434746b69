"""How much a model changes when its softmax gets new words: KL divergence per token (Hewitt 2021).

For one prefix: l_w the logits of old words, Z = sum exp(l_w) over those that are compared, N the sum of exp over new
words. The new model gives every old word its old probability times Z / (Z + N), so that

    KL(old || new) = log((Z + N) / Z) = log(1 + N / Z)

and the new words together get the probability 1 - exp(-KL). Where some old rows became words (fillers), Z is the sum
over the others, and `old` is the old distribution given that it is one of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

QUANTILES = (0.5, 0.9, 0.99)
_ARITHMETIC = 1e-4  # of logits in single precision


def divergence(old: Tensor, new: Tensor) -> Tensor:
    """Logits (T, n) of old words and (T, k) of new ones -> KL(old || new) in nats, (T,), in double precision."""
    return F.softplus(new.double().logsumexp(-1) - old.double().logsumexp(-1))


def rounded_bound(bound: float, largest: float, eps: float) -> float:
    """What KL may be if the logits of new words are too large by rounding: their rows are stored with relative error
    `eps`, and logits reach `largest` (absolute)."""
    error = _ARITHMETIC + 2 * eps * (1 + largest)
    return math.log1p(math.expm1(bound) * math.exp(error))


def summary(kl: np.ndarray, bound: float | None, allowed: float | None) -> dict[str, Any]:
    """Of (T,) divergences: mean, quantiles, max, the mean probability of new words; with a bound, whether it holds."""
    numbers: dict[str, Any] = {
        "mean": float(kl.mean()),
        **{f"q{round(100 * q)}": float(value) for q, value in zip(QUANTILES, np.quantile(kl, QUANTILES))},
        "max": float(kl.max()),
        "new_words_probability": float(-np.expm1(-kl).mean()),
        "bound": bound,
    }
    if allowed is not None:
        numbers["holds"] = bool(kl.max() <= allowed)
    return numbers


def histogram(kl: np.ndarray, bins: int = 40) -> dict[str, list[float]]:
    """edges (bins + 1) from 0 on, counts (bins)."""
    counts, edges = np.histogram(kl, bins=bins, range=(0.0, max(float(kl.max()), 1e-12)))
    return {"edges": edges.tolist(), "counts": counts.tolist()}
