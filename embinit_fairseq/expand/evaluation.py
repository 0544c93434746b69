"""Runs a model before and after its expansion on the same text, as it is used: the next word, or a masked one.

Sentences of the same length make a batch, so that no model sees padding.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from embinit_fairseq.bounded import read_lines
from embinit_fairseq.checkpoints.build import dictionaries_of
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.vocab.text import check_tokens, count_tokens

if TYPE_CHECKING:
    import torch
    from torch import nn


# ---- How much a model changes when its softmax gets new words: KL divergence per token (Hewitt 2021) ----------------
# For one prefix: l_w the logits of old words, Z = sum exp(l_w) over those that are compared, N the sum of exp over new
# words. The new model gives every old word its old probability times Z / (Z + N), so that
#
#     KL(old || new) = log((Z + N) / Z) = log(1 + N / Z)
#
# and the new words together get the probability 1 - exp(-KL). Where some old rows became words (fillers), Z is the sum
# over the others, and `old` is the old distribution given that it is one of them.

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


def histograms(kls: Mapping[str, np.ndarray], bins: int = 40) -> dict[str, dict[str, list[float]]]:
    """Name -> edges (bins + 1), the same for all, and counts (bins).

    Divergences of different methods lie powers of ten apart: bins grow by one factor. The first begins at 0 and holds
    the smallest thousandth of all methods.
    """
    high = max(1e-12, *(float(kl.max()) for kl in kls.values()))
    low = min(float(np.quantile(kl, 0.001)) for kl in kls.values())
    edges = np.geomspace(max(low, 1e-6 * high), high, bins) if low < high else np.linspace(high / bins, high, bins)
    edges = np.concatenate([[0.0], edges[:-1], [high]])  # the largest to the bit
    return {
        name: {"edges": edges.tolist(), "counts": np.histogram(np.maximum(kl, 0.0), bins=edges)[0].tolist()}
        for name, kl in kls.items()
    }


# ----------------------------------------------------------------------------------------------------------------------

_LOGITS = 16_000_000  # of a batch, at most (64 MB)
_MASK_EVERY = 7  # about the 15 % of BERT
#: what a translation model takes, and of which side's dictionary it is
_SIDES = {"src_tokens": "encoder", "src_lengths": None, "prev_output_tokens": "decoder"}


@dataclass(frozen=True)
class Batch:
    """inputs: what forward takes, by name. sides: of each input the side whose dictionary it is of, None: no tokens.
    chosen: (B, T) bool, where logits count; None: everywhere."""

    inputs: dict[str, Tensor]
    sides: dict[str, str | None]
    chosen: Tensor | None = None

    def moved(self, rows: np.ndarray, changed: Sequence[str]) -> Batch:
        """The same tokens in another dictionary. rows: (N,) the row there of each one. changed: sides that have it."""
        import torch

        new = torch.from_numpy(rows)
        inputs = {name: new[value] if self.sides[name] in changed else value for name, value in self.inputs.items()}
        return Batch(inputs, self.sides, self.chosen)


@dataclass(frozen=True)
class Text:
    """batches: of everything. tokens: number of those whose logits count. unknown: share of words that the old
    dictionary lacks. too_long: pairs that were left out."""

    batches: list[Batch]
    tokens: int
    unknown: float
    too_long: int


def read_text(model: nn.Module, softmax: bool, size: int, old: Any, task: Any, paths: Sequence[str]) -> Text:
    """The text as batches for the model; OptionError for another number of files than it takes, DataError for bad ones.

    softmax: are the words that change outputs? size: symbols of the larger dictionary. old: the task of the training,
    for whose dictionary the text is prepared. task: with the dictionary by which it is read; what it lacks is `<unk>`.
    """
    from fairseq.models import FairseqEncoderDecoderModel, FairseqLanguageModel

    if not softmax:
        raise OptionError("--verify: these words are inputs only, so there is nothing to measure; leave it out")
    two_sided = isinstance(model, FairseqEncoderDecoderModel)
    _check_forward(model, _SIDES if two_sided else ("src_tokens",))
    if len(paths) != 1 + two_sided:
        wanted = "two files, SOURCE TARGET" if two_sided else "one file"
        raise OptionError(f"--verify: {type(model).__name__} takes {wanted}, not {len(paths)}")
    if two_sided and task.source_dictionary is None:
        raise OptionError(f"--verify: the source of {type(model).__name__} is not text; leave it out")
    dictionaries = dictionaries_of(task)
    for path, trained in zip(paths, dictionaries_of(old)):
        check_tokens(f"--verify {path}", count_tokens("--verify", path), {*trained.symbols})
    columns = [_encode(path, dictionary) for path, dictionary in zip(paths, dictionaries)]
    words = np.concatenate([sentence for column in columns for sentence in column])
    unknown = float((words == dictionaries[0].unk()).mean())
    too_long = 0
    if two_sided:
        rows, too_long = _pairs(model, columns, paths, dictionaries)
    elif isinstance(model, FairseqLanguageModel):
        rows = _left_to_right(_pieces(columns[0], _longest(model) - 1), dictionaries[0])
    else:
        rows = _masked(_pieces(columns[0], _longest(model) - 2), dictionaries[0], task)
    batches = list(_batches(rows, size))
    counted = sum(int(_chosen(batch).sum()) for batch in batches)
    if not counted:
        raise DataError(f"--verify {' '.join(paths)}: nothing that the model takes; is the text empty or too long?")
    return Text(batches, counted, unknown, too_long)


def _check_forward(model: nn.Module, inputs: Iterable[str]) -> None:
    """Models that edit a text (nonautoregressive_transformer, levenshtein_transformer) ask for the target, too."""
    try:
        inspect.signature(model.forward).bind(**dict.fromkeys(inputs))
    except TypeError as error:
        raise OptionError(
            f"--verify: {type(model).__name__} computes no distribution of the next or the masked word from a text "
            f"alone ({error}), so there is nothing to measure; leave it out"
        ) from error


def _encode(path: str, dictionary: Any) -> list[np.ndarray]:
    """Ids of the words of every line."""
    return [
        dictionary.encode_line(line, add_if_not_exist=False, append_eos=False).numpy().astype(np.int64)
        for _, line in read_lines(path, DataError, "--verify")
    ]


Row = tuple[dict[str, list[int]], dict[str, "str | None"], "list[bool] | None"]


def _pairs(
    model: Any, columns: Sequence[list[np.ndarray]], paths: Sequence[str], dictionaries: Sequence[Any]
) -> tuple[list[Row], int]:
    if len(columns[0]) != len(columns[1]):
        raise DataError(
            f"--verify: {paths[0]} has {len(columns[0])} lines, {paths[1]} {len(columns[1])}; give a text and its "
            "translation, line by line"
        )
    rows: list[Row] = []
    longest, too_long = model.max_positions(), 0
    for source, target in zip(*columns):
        if len(source) and len(target):
            src, prev = [*source, dictionaries[0].eos()], [dictionaries[1].eos(), *target]
            if len(src) > longest[0] or len(prev) > longest[1]:
                too_long += 1
                continue
            rows.append(({"src_tokens": src, "src_lengths": [len(src)], "prev_output_tokens": prev}, _SIDES, None))
    return rows, too_long


def _left_to_right(sentences: list[np.ndarray], dictionary: Any) -> list[Row]:
    return [({"src_tokens": [dictionary.eos(), *ids]}, {"src_tokens": "decoder"}, None) for ids in sentences]


def _masked(sentences: list[np.ndarray], dictionary: Any, task: Any) -> list[Row]:
    """`<s> ... </s>` with every seventh word masked, beginning at another one in each sentence."""
    rows: list[Row] = []
    mask = dictionary.index("<mask>")
    for number, ids in enumerate(sentences):
        chosen = (np.arange(len(ids)) + number) % min(_MASK_EVERY, len(ids)) == 0
        tokens = [dictionary.bos(), *np.where(chosen, mask, ids), dictionary.eos()]
        rows.append(({"src_tokens": tokens}, {"src_tokens": "encoder"}, [False, *chosen, False]))
    return rows


def _longest(model: Any) -> int:
    longest = model.max_positions()
    return int(longest[0] if isinstance(longest, (tuple, list)) else longest)


def _pieces(sentences: list[np.ndarray], longest: int) -> list[np.ndarray]:
    return [ids[at : at + longest] for ids in sentences for at in range(0, len(ids), longest)]


def _batches(rows: list[Row], size: int) -> Iterator[Batch]:
    """Rows of the same lengths, with at most _LOGITS logits of `size` symbols."""
    import torch

    def lengths(row: Row) -> tuple[int, ...]:
        return tuple(len(value) for value in row[0].values())

    groups: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(lengths(row), []).append(row)
    for key, group in sorted(groups.items()):
        step = max(1, _LOGITS // (key[-1] * size))
        for part in (group[at : at + step] for at in range(0, len(group), step)):
            inputs = {name: torch.tensor(np.array([row[0][name] for row in part])) for name in part[0][0]}
            if "src_lengths" in inputs:
                inputs["src_lengths"] = inputs["src_lengths"][:, 0]
            chosen = None if part[0][2] is None else torch.tensor(np.array([row[2] for row in part]))
            yield Batch(inputs, part[0][1], chosen)


def _chosen(batch: Batch) -> Tensor:
    import torch

    return torch.ones_like(list(batch.inputs.values())[-1], dtype=torch.bool) if batch.chosen is None else batch.chosen


def logits(model: nn.Module, batch: Batch) -> torch.Tensor:
    """(tokens of the batch that count, symbols)."""
    import torch

    with torch.inference_mode():
        return model(**batch.inputs)[0][_chosen(batch)].float()
