"""Open the model whose vocabulary changes: its checkpoint, its dictionary, and the tensors with one row per symbol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from embinit_fairseq.checkpoints.build import SIDES, Builder, Texts, dictionaries_of, import_plugin, languages_of
from embinit_fairseq.checkpoints.reading import averages_in, check_dictionary, load_model_checkpoint, options_of
from embinit_fairseq.errors import CheckpointError, DataError, EmbinitError, OptionError
from embinit_fairseq.resize.tables import Table, check_tied_copies, find_tables, has_softmax
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS, Vocabulary, read_dictionary

_EMBEDDINGS = "embed_tokens.weight"
#: a line of dict.txt for the model with one symbol more
_ONE_MORE = "embinit_fairseq/one_symbol_more 1\n"


@dataclass(frozen=True)
class Source:
    """The old model.

    Args:
        state: content of the checkpoint; its tensors are on disk until they are used.
        builder: builds its model with other dictionaries.
        dictionary: path of the `dict.txt` that changes.
        vocabulary: its content.
        sides: "encoder", "decoder" or both: those that use the dictionary.
        texts: the dictionaries of both sides; the other side's may be made up.
        other_file: the other side's dictionary, if there is one next to `dictionary`.
        symbols: (old N,) of the dictionary and those that the task appends.
        model: as fairseq loads it.
        tables: its tensors with one row per symbol.
        softmax: True if the symbols are outputs.
    """

    state: dict[str, Any]
    builder: Builder
    dictionary: str
    vocabulary: Vocabulary
    sides: tuple[str, ...]
    texts: Texts
    other_file: Path | None
    symbols: list[str]
    model: nn.Module
    tables: list[Table]
    softmax: bool

    @property
    def path(self) -> str:
        """The checkpoint."""
        return self.builder.path

    @property
    def text(self) -> str:
        """The text of the dictionary."""
        return self.texts.of(self.sides)

    @property
    def lines(self) -> list[str]:
        """The lines of the dictionary; line i describes row i + 4."""
        text = self.text.replace("\r\n", "\n").replace("\r", "\n")  # other ends of lines are a part of a symbol
        return [line for line in text.split("\n") if line.strip()]

    @property
    def has_moments(self) -> bool:
        """True if the checkpoint has an optimizer's moments; averages and plain gradient descent have none."""
        return bool((self.state.get("last_optimizer_state") or {}).get("state"))

    def without_moments(self) -> Source:
        """Return the same model without the optimizer's state."""
        return replace(self, state={name: part for name, part in self.state.items() if name != "last_optimizer_state"})

    def texts_with(self, text: str) -> Texts:
        """Return the dictionaries of both sides with `text` for those that change."""
        return replace_text(self.texts, self.sides, text)

    def symbols_of(self, task: Any) -> list[str]:
        """Return the symbols of a task's dictionary that changes, in the order of rows."""
        return symbols_of_side(task, self.sides)


def open_source(checkpoint: str, dictionary: str, side: str | None, user_dir: str | None) -> Source:
    """Read and check a checkpoint and its dictionary; build the model, and again with one symbol more.

    Args:
        checkpoint: written by fairseq-train.
        dictionary: its dict.txt, or that of one side.
        side: encoder, decoder, both, or None to find out.
        user_dir: another plugin that the model needs.

    Raises:
        CheckpointError: the model cannot be read or changed.
        DataError: the dictionary is not the model's.
        OptionError: `side` is wrong or missing, or `user_dir` is no plugin.
    """
    vocabulary = read_dictionary(dictionary)
    import_plugin(user_dir)
    state = load_model_checkpoint(checkpoint)
    weights = state["model"]
    builder = Builder(checkpoint, state, languages_of(options_of(state, "task"), dictionary))
    text = Path(dictionary).read_bytes().decode("utf-8")
    sides, other_rows = find_sides(builder, weights, dictionary, vocabulary, text, side)
    other_file, other_text = _other_dictionary(builder, dictionary, sides, other_rows)
    texts = replace_text(Texts(other_text, other_text), sides, text)
    model, task = builder.load(texts, weights)
    symbols = symbols_of_side(task, sides)
    if symbols[: len(vocabulary)] != list(vocabulary.symbols):
        row = next(row for row, pair in enumerate(zip(symbols, vocabulary.symbols)) if len({*pair}) > 1)
        raise DataError(
            f"--dict {dictionary}: found {symbols[row]!r} in row {row} as fairseq reads it, expected "
            f"{vocabulary.symbols[row]!r}; remove unusual white space (a task with specials of its own is not served)"
        )
    check_dictionary(state, checkpoint, f"--dict {dictionary}", dict.fromkeys(sides, symbols))
    longer = builder.build(replace_text(texts, sides, f"{text.rstrip()}\n{_ONE_MORE}"))
    tables = find_tables(checkpoint, model, longer, weights, len(symbols))
    for name, state_dict in {"": weights, **averages_in(state)}.items():
        for table in tables:
            check_tied_copies(checkpoint, table.keys_in(state_dict), state_dict, name)
    softmax = has_softmax(model, tables, sides)
    return Source(state, builder, dictionary, vocabulary, sides, texts, other_file, symbols, model, tables, softmax)


def replace_text(texts: Texts, sides: tuple[str, ...], text: str) -> Texts:
    """Return dictionaries with `text` on these sides."""
    return replace(texts, **{name: text for name, side in zip(("source", "target"), SIDES) if side in sides})


def symbols_of_side(task: Any, sides: tuple[str, ...]) -> list[str]:
    """Return the symbols of a task's dictionary of the first of these sides."""
    return list(dictionaries_of(task)["encoder" not in sides].symbols)


# ---- Which side of a model a dictionary belongs to, and the dictionary of the other one -----------------------------


def find_sides(
    builder: Builder, weights: Mapping[str, Tensor], path: str, vocabulary: Vocabulary, text: str, side: str | None
) -> tuple[tuple[str, ...], int]:
    """Return the sides that use a dictionary, and the number of symbols that a dict.txt of the other side has.

    The embedding matrix of a side has as many rows as the dictionary has symbols, with those that the task appends.

    Raises:
        DataError: the dictionary fits no side, or not the one that is meant.
        OptionError: it is not clear, or impossible, which side is meant.
    """
    sizes = dict(zip(SIDES, map(len, dictionaries_of(builder.set_up(Texts(text, text))))))
    if builder.two_sided:
        rows = {name: _rows(builder.path, weights, f"{name}.") for name in SIDES}
        is_shared = len(set(rows.values())) == 1 and _same_embeddings(weights)
    else:
        rows, is_shared = dict.fromkeys(SIDES, _rows(builder.path, weights, "")), True
        if sizes["encoder"] != sizes["decoder"]:
            raise CheckpointError(
                f"{builder.path}: its output has only the first {sizes['decoder']} of {sizes['encoder']} symbols "
                "(--output-dictionary-size), so that its vocabulary cannot be changed"
            )
    fitting = [name for name in SIDES if rows[name] == sizes[name]]
    wanted = list(SIDES) if is_shared or side == "both" else [side] if side else fitting
    misfits = [name for name in wanted or SIDES if name not in fitting]
    if misfits:
        actual = dict.fromkeys(f"{rows[name]} rows" + f" ({name})" * builder.two_sided for name in misfits)
        size = sizes[misfits[0]]
        raise DataError(
            f"--dict {path}: {size} symbols ({len(SPECIAL_SYMBOLS)} specials, {len(vocabulary) - len(SPECIAL_SYMBOLS)} "
            f"lines, {size - len(vocabulary)} that the task appends), but the embedding matrix of {builder.path} has "
            f"{' and '.join(actual)}; give the dictionary of the data it was trained with"
        )
    if is_shared and side not in (None, "both"):
        raise OptionError(f"--side {side}: {builder.path} has one dictionary for everything; leave --side out")
    if side is None and len(fitting) == 2 and not is_shared:
        raise OptionError(
            f"--dict {path}: it fits the encoder and the decoder of {builder.path}, which have embedding matrices of "
            "their own; say which is meant: --side encoder, --side decoder, or both if it is the dictionary of both"
        )
    _check_neighbours(builder, path, vocabulary, wanted)
    other = SIDES["encoder" in wanted]
    return tuple(wanted), rows[other] - sizes[other] + len(vocabulary)


def _rows(path: str, weights: Mapping[str, Tensor], prefix: str) -> int:
    """Return the rows of a side's embedding matrix (prefix `encoder.`), or of the model's (prefix "")."""
    matrices = [value for name, value in weights.items() if name.startswith(prefix) and name.endswith(_EMBEDDINGS)]
    rows = sorted({len(value) for value in matrices if value.dim() == 2})
    if len(rows) != 1:
        actual = f"several, of {' and '.join(map(str, rows))} rows" if rows else "none"
        raise CheckpointError(
            f"{path}: expected one embedding matrix (...{_EMBEDDINGS}) with a row for every symbol of "
            f"{f'its {prefix[:-1]}' if prefix else 'the model'}, found {actual}; name a checkpoint of a model of text "
            "without --adaptive-input, and with one dictionary if it has many languages (--share-all-embeddings)"
        )
    return rows[0]


def _same_embeddings(weights: Mapping[str, Tensor]) -> bool:
    one, other = (
        next(value for name, value in weights.items() if name.startswith(f"{side}.") and name.endswith(_EMBEDDINGS))
        for side in SIDES
    )
    return torch.equal(one, other)


def _check_neighbours(builder: Builder, path: str, vocabulary: Vocabulary, wanted: list[str]) -> None:
    """Raise OptionError if files tell that a dictionary of the right size is not that of these sides.

    Two dictionaries of one size fit both sides, but their names say the language; and where the files of all languages
    are next to each other, a dictionary for all of them must be equal to them.
    """
    users = builder.files.get(Path(path).name)
    if len(wanted) == 1 and users is not None and wanted[0] not in users:
        own = " or ".join(name for name, sides in builder.files.items() if wanted[0] in sides)
        raise OptionError(
            f"--dict {path}: by its name it is not that of the {wanted[0]}; give {own}, or the other --side"
        )
    names = [name for name, sides in builder.files.items() if sides]
    for neighbour in (Path(path).parent / name for name in names if len(wanted) == 2 and len(names) > 1):
        if neighbour.is_file() and read_dictionary(neighbour).symbols != vocabulary.symbols:
            remedy = (
                "change one side at a time (--side encoder, then --side decoder)"
                if builder.two_sided
                else "a model with several dictionaries that are not those of two sides cannot be changed"
            )
            raise OptionError(
                f"--dict {path}: {neighbour} next to it is another dictionary, so it is not that of all languages; "
                f"{remedy}"
            )


def _other_dictionary(builder: Builder, path: str, sides: tuple[str, ...], rows: int) -> tuple[Path | None, str]:
    """Return (file, text) of the other side's dictionary with `rows` rows.

    It is the file next to `path` if that fits, else made-up symbols, which only have the right number.
    """
    others = [name for name, users in builder.files.items() if users and not users & {*sides}]
    for file in (Path(path).parent / name for name in others):
        if file.is_file() and file.resolve() != Path(path).resolve() and _describes(file, rows):
            return file, file.read_bytes().decode("utf-8")
    return None, "".join(f"symbol{number} 1\n" for number in range(rows - len(SPECIAL_SYMBOLS)))


def _describes(path: Path, rows: int) -> bool:
    try:
        return len(read_dictionary(path)) == rows
    except EmbinitError:
        return False
