"""Read a text as batches in which a model predicts the next word, a masked word, or a translation.

Sentences of the same length are a batch, so that no model sees padding.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.models import FairseqEncoderDecoderModel, FairseqLanguageModel
from torch import Tensor, nn

from embinit_fairseq.checkpoints.build import dictionaries_of
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.io import read_lines
from embinit_fairseq.vocab.text_checks import check_tokens, count_tokens

_LOGITS = 16_000_000  #: largest number of logits of a batch (64 MB)
_MASK_EVERY = 7  #: one masked word per so many words: about the 15 % of BERT
#: argument of a translation model -> the side whose dictionary its tokens belong to (None: no tokens). In models with
#: one dictionary they belong to both sides.
INPUT_SIDES = {"src_tokens": "encoder", "src_lengths": None, "prev_output_tokens": "decoder"}


@dataclass(frozen=True)
class Batch:
    """Hold sentences of the same length.

    Args:
        inputs: name of an argument of `forward` -> tensor.
        chosen: (B, T) bool, True where logits count.
    """

    inputs: dict[str, Tensor]
    chosen: Tensor

    def moved(self, rows: np.ndarray, changed: Sequence[str]) -> Batch:
        """Return the same tokens in another dictionary.

        Args:
            rows: (N,) the row in the other dictionary of every row.
            changed: sides that have the other dictionary.
        """
        new = torch.from_numpy(rows)
        inputs = {name: new[value] if INPUT_SIDES[name] in changed else value for name, value in self.inputs.items()}
        return replace(self, inputs=inputs)


@dataclass(frozen=True)
class Text:
    """Hold a text in batches.

    Args:
        batches: the batches.
        tokens: number of tokens whose logits count.
        unknown: share of words that the dictionary lacks.
        too_long: number of pairs that were left out.
    """

    batches: list[Batch]
    tokens: int
    unknown: float
    too_long: int


#: a sentence: tokens (or lengths) per input, and the positions whose logits count
Row = tuple[dict[str, list[int]], list[bool]]


def read_text(model: Any, softmax: bool, size: int, old: Any, task: Any, paths: Sequence[str]) -> Text:
    """Return the text as batches for a model.

    Args:
        model: the model, which takes one file, or two if it translates.
        softmax: True if the symbols that change are outputs.
        size: number of symbols of the larger dictionary.
        old: the task of the training, for whose dictionary the text is prepared.
        task: the task whose dictionary reads the text; missing words are `<unk>`.
        paths: files of segmented text, a sentence per line.

    Raises:
        OptionError: nothing can be measured, or the number of files is wrong.
        DataError: a file is empty, not segmented for the dictionary, or has another number of lines.
    """
    if not softmax:
        raise OptionError("--verify: these words are inputs only, so there is nothing to measure; leave it out")
    name, translates = type(model).__name__, isinstance(model, FairseqEncoderDecoderModel)
    try:  # models that edit a text (nonautoregressive_transformer, levenshtein_transformer) need the target, too
        inspect.signature(model.forward).bind(**dict.fromkeys(INPUT_SIDES if translates else ("src_tokens",)))
    except TypeError as error:
        raise OptionError(
            f"--verify: {name} computes no distribution of the next or the masked word from a text alone ({error}), so "
            "there is nothing to measure; leave it out"
        ) from error
    if len(paths) != 1 + translates:
        wanted = "two files, SOURCE TARGET" if translates else "one file"
        raise OptionError(f"--verify: {name} takes {wanted}, not {len(paths)}")
    if translates and task.source_dictionary is None:
        raise OptionError(f"--verify: the source of {name} is not text; leave it out")
    source, target = dictionaries_of(task)
    for path, trained in zip(paths, dictionaries_of(old)):
        check_tokens(f"--verify {path}", count_tokens("--verify", path), {*trained.symbols})
    columns = [_encode(path, dictionary) for path, dictionary in zip(paths, (source, target))]
    words = np.concatenate([sentence for column in columns for sentence in column])
    rows, too_long = rows_of(model, columns, paths, (source, target))
    batches = list(batched(rows, size))
    tokens = sum(int(batch.chosen.sum()) for batch in batches)
    if not tokens:
        raise DataError(f"--verify {' '.join(paths)}: nothing that the model takes; is the text empty or too long?")
    return Text(batches, tokens, float((words == source.unk()).mean()), too_long)


def rows_of(
    model: Any,
    columns: Sequence[list[np.ndarray]],
    paths: Sequence[str],
    dictionaries: Sequence[Any],
    flag: str = "--verify",
) -> tuple[list[Row], int]:
    """Return sentences for prediction (next word, masked word, translation), and the number of too long pairs."""
    if isinstance(model, FairseqEncoderDecoderModel):
        return pairs(model.max_positions(), columns, paths, dictionaries, flag)
    if isinstance(model, FairseqLanguageModel):
        return [_everywhere(inputs) for inputs in whole_sentences(model, columns[0], dictionaries[0])], 0
    return masked(parts(columns[0], positions_of(model) - 2), dictionaries[0]), 0


def whole_sentences(model: Any, sentences: list[np.ndarray], dictionary: Any) -> list[dict[str, list[int]]]:
    """Return the inputs of a model with one input; longer sentences are broken."""
    length = positions_of(model)
    if isinstance(model, FairseqLanguageModel):
        return [{"src_tokens": [dictionary.eos(), *ids]} for ids in parts(sentences, length - 1)]
    return [{"src_tokens": [dictionary.bos(), *ids, dictionary.eos()]} for ids in parts(sentences, length - 2)]


def positions_of(model: Any) -> int:
    """Return the number of positions of a model with one input."""
    longest = model.max_positions()
    return int(longest[0] if isinstance(longest, (tuple, list)) else longest)


def divergence(old: Tensor, new: Tensor) -> Tensor:
    """Return KL(old || new) in nats, (T,) in double precision, from logits (T, n) of old and (T, k) of new words."""
    return F.softplus(new.double().logsumexp(-1) - old.double().logsumexp(-1))


def logits(model: nn.Module, batch: Batch) -> Tensor:
    """Return (tokens of the batch that count, symbols)."""
    with torch.inference_mode():
        return model(**batch.inputs)[0][batch.chosen].float()


def _encode(path: str, dictionary: Any) -> list[np.ndarray]:
    """Return the ids of the words of every line."""
    return [
        dictionary.encode_line(line, add_if_not_exist=False, append_eos=False).numpy().astype(np.int64)
        for _, line in read_lines(path, DataError, "--verify")
    ]


def _everywhere(inputs: dict[str, list[int]]) -> Row:
    return inputs, [True] * len(list(inputs.values())[-1])


def parts(sentences: list[np.ndarray], length: int) -> list[np.ndarray]:
    """Break sentences into parts of at most `length` tokens."""
    return [ids[at : at + length] for ids in sentences for at in range(0, len(ids), length)]


def pairs(
    longest: tuple[int, int],
    columns: Sequence[list[np.ndarray]],
    paths: Sequence[str],
    dictionaries: Sequence[Any],
    flag: str = "--verify",
) -> tuple[list[Row], int]:
    """Return the pairs of sentences within the model's positions, and the number of longer pairs."""
    if len(columns[0]) != len(columns[1]):
        raise DataError(
            f"{flag}: {paths[0]} has {len(columns[0])} lines, {paths[1]} {len(columns[1])}; give a text and its "
            "translation, line by line"
        )
    rows: list[Row] = []
    too_long = 0
    for source, target in zip(*columns):
        if len(source) and len(target):
            src, prev = [*source, dictionaries[0].eos()], [dictionaries[1].eos(), *target]
            if len(src) > longest[0] or len(prev) > longest[1]:
                too_long += 1
                continue
            rows.append(_everywhere({"src_tokens": src, "src_lengths": [len(src)], "prev_output_tokens": prev}))
    return rows, too_long


def masked(sentences: list[np.ndarray], dictionary: Any) -> list[Row]:
    """Return `<s> ... </s>` with every seventh word masked; the first masked word differs between sentences."""
    rows: list[Row] = []
    mask = dictionary.index("<mask>")
    for number, ids in enumerate(sentences):
        chosen = (np.arange(len(ids)) + number) % min(_MASK_EVERY, len(ids)) == 0
        tokens = [dictionary.bos(), *np.where(chosen, mask, ids), dictionary.eos()]
        rows.append(({"src_tokens": tokens}, [False, *chosen, False]))
    return rows


def batched(rows: list[Row], size: int) -> Iterator[Batch]:
    """Yield batches of rows of the same lengths, with at most _LOGITS logits of `size` symbols."""
    groups: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(len(value) for value in row[0].values()), []).append(row)
    for lengths, group in sorted(groups.items(), key=lambda item: item[0]):
        step = max(1, _LOGITS // (lengths[-1] * size))
        for part in (group[at : at + step] for at in range(0, len(group), step)):
            inputs = {name: torch.tensor(np.array([row[0][name] for row in part])) for name in part[0][0]}
            if "src_lengths" in inputs:
                inputs["src_lengths"] = inputs["src_lengths"][:, 0]
            yield Batch(inputs, torch.tensor(np.array([row[1] for row in part])))
