"""What a change of the vocabulary starts from: a checkpoint, its dictionary, and the tables over it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.checkpoints.build import Builder, Texts, import_plugin
from embinit_fairseq.checkpoints.reading import check_dictionary, options_of
from embinit_fairseq.errors import DataError
from embinit_fairseq.expand.request import read_checkpoint
from embinit_fairseq.expand.state import averages_in
from embinit_fairseq.expand.tables import (
    DictionaryTable,
    Fit,
    check_averages,
    find_tables,
    fit_dictionary,
    has_softmax,
    languages_of,
)
from embinit_fairseq.vocab.dictionary import Vocabulary, read_dictionary

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class SourceModel:
    """What a change starts from.

    Args:
        dictionary: path of the `dict.txt` that changes.
        vocabulary: what it holds.
        symbols: of its rows, those that the task appends included.
        texts: the dictionaries of both sides.
        tables: the tensors over the dictionary.
        softmax: True if its words are outputs, too.
    """

    builder: Builder
    state: dict[str, Any]
    fit: Fit
    dictionary: str
    vocabulary: Vocabulary
    symbols: list[str]
    texts: Texts
    model: nn.Module
    tables: list[DictionaryTable]
    softmax: bool

    @property
    def sides(self) -> list[str] | None:
        """The sides whose dictionary changes; None if the model has one dictionary."""
        return list(self.fit.sides) if self.builder.two_sided else None

    @property
    def has_moments(self) -> bool:
        """Return True if the checkpoint has moments of an optimiser: averages and plain gradient descent have none."""
        return bool((self.state.get("last_optimizer_state") or {}).get("state"))


def open_model(checkpoint: str, dictionary: str, side: str | None, user_dir: str | None) -> SourceModel:
    """Read and check a checkpoint and its dictionary; build the model as it is, and once with one symbol more.

    side: what --side says. Raises CheckpointError, DataError, OptionError.
    """
    vocabulary = read_dictionary(dictionary)
    import_plugin(user_dir)
    state = read_checkpoint(checkpoint)
    builder = Builder(checkpoint, state, languages_of(options_of(state, "task"), dictionary))
    fit = fit_dictionary(builder, state["model"], dictionary, side)
    text = Path(dictionary).read_bytes().decode("utf-8")
    texts = fit.texts(text)
    model, task = builder.load(texts, state["model"])
    symbols = list(fit.dictionary(task).symbols)
    if symbols[: len(vocabulary)] != list(vocabulary.symbols):
        row = next(row for row, pair in enumerate(zip(symbols, vocabulary.symbols)) if len({*pair}) > 1)
        raise DataError(
            f"--dict {dictionary}: found {symbols[row]!r} in row {row} as fairseq reads it, expected "
            f"{vocabulary.symbols[row]!r}; remove unusual white space (a task with specials of its own is not served)"
        )
    check_dictionary(state, checkpoint, f"--dict {dictionary}", dict.fromkeys(fit.sides, symbols))
    grown = builder.build(fit.texts(f"{text.rstrip()}\nembinit_fairseq/one_symbol_more 1\n"))
    tables = find_tables(checkpoint, model, grown, state["model"], len(symbols))
    shapes = {name: tuple(value.shape) for name, value in [*model.state_dict().items(), *state["model"].items()]}
    check_averages(checkpoint, averages_in(state), tables, shapes)
    softmax = has_softmax(model, tables, fit.sides)
    return SourceModel(builder, state, fit, dictionary, vocabulary, symbols, texts, model, tables, softmax)
