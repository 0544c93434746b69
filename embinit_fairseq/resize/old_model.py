"""Open the model whose vocabulary changes: its checkpoint, its dictionary, and the tensors with one row per symbol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from embinit_fairseq.checkpoint_file import options_of
from embinit_fairseq.checkpoints.build import SIDES, Builder, Texts, dictionaries_of, import_plugin, languages_of
from embinit_fairseq.checkpoints.loading import averages_in, check_dictionary, load_model_checkpoint
from embinit_fairseq.errors import CheckpointError, DataError, OptionError
from embinit_fairseq.init.requirements import MethodOptions
from embinit_fairseq.io import check_folder, check_inputs
from embinit_fairseq.resize.symbol_tensors import SymbolTensor, check_tied_copies, find_symbol_tensors, has_softmax
from embinit_fairseq.vectors.open import SourceSpec
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS, Vocabulary, read_dictionary

_EMBEDDINGS = "embed_tokens.weight"
#: a line of dict.txt for the model with one symbol more
_ONE_MORE = "embinit_fairseq/one_symbol_more 1\n"


@dataclass(frozen=True)
class OldModel:
    """Hold the old model.

    Args:
        state: content of the checkpoint; its tensors are on disk until they are used.
        builder: builds the checkpoint's model with other dictionaries.
        dictionary: path of the `dict.txt` that changes.
        vocabulary: content of this dictionary.
        sides: "encoder", "decoder" or both: the sides that use the dictionary.
        texts: the dictionaries of both sides; the other side's may be made up.
        other_file: the other side's dictionary, if there is one next to `dictionary`.
        symbols: (old N,) the dictionary's symbols, then symbols that the task appends.
        model: the model, loaded by fairseq.
        tables: the model's tensors with one row per symbol.
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
    tables: list[SymbolTensor]
    softmax: bool

    @property
    def path(self) -> str:
        """Return the path of the checkpoint."""
        return self.builder.path

    @property
    def text(self) -> str:
        """Return the text of the dictionary."""
        return self.texts.of(self.sides)

    @property
    def lines(self) -> list[str]:
        """Return the lines of the dictionary; line i describes row i + 4."""
        text = self.text.replace("\r\n", "\n").replace("\r", "\n")  # other ends of lines are a part of a symbol
        return [line for line in text.split("\n") if line.strip()]

    @property
    def has_moments(self) -> bool:
        """Return True if the checkpoint has an optimizer's moments; averages and plain gradient descent have none."""
        return bool((self.state.get("last_optimizer_state") or {}).get("state"))

    @cached_property
    def changed_files(self) -> list[str]:
        """Return the names, in the data folder, of the dictionaries that change."""
        return [name for name, users in self.builder.files.items() if users & {*self.sides}]

    def texts_with(self, text: str) -> Texts:
        """Return the dictionaries of both sides with `text` for the sides that change."""
        return self.texts.replaced(self.sides, text)

    def symbols_of(self, task: Any) -> list[str]:
        """Return the symbols of a task's dictionary that changes, in the order of rows."""
        return symbols_of_side(task, self.sides)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Hold the options that all changes of a vocabulary share.

    Args:
        checkpoint: a checkpoint of fairseq-train.
        dictionary: the checkpoint's dict.txt, or that of one side.
        output: the new folder.
        side: encoder, decoder, both, or None to find out.
        user_dir: another plugin that the model needs.
        force: True to replace the folder.
    """

    checkpoint: str
    dictionary: str
    output: str
    side: str | None = None
    user_dir: str | None = None
    force: bool = False

    def check(self, files: Sequence[str], options: Sequence[str], more: Mapping[str, str] = {}) -> dict[str, str]:
        """Check inputs and output before any work, and return option -> file that is read.

        Args:
            files: patterns of the files that the command writes.
            options: names of the options for input files.
            more: name -> further input file or folder.
        """
        inputs: dict[str, str | None] = {"checkpoint": self.checkpoint, "dictionary": self.dictionary}
        for name in options:
            value = getattr(self, name)
            inputs |= {f"{name} {n}": p for n, p in enumerate(value, 1)} if isinstance(value, tuple) else {name: value}
        checked = check_inputs(inputs)
        check_folder(self.output, self.force, files, [*checked.values(), *more.values()])
        return checked | {name: path for name, path in more.items() if Path(path).is_file()}


@dataclass(frozen=True, kw_only=True)
class MethodRequest(MethodOptions, Request):
    """Hold the options of a method, and the options of every change of a vocabulary."""

    @staticmethod
    def spelled(option: str) -> str:
        """Return the flag of an option."""
        return f"--{option.replace('_', '-')}"


def files_of(spec: SourceSpec | None) -> dict[str, str]:
    """Return path -> path of the files of --vectors."""
    return {path: path for path in (spec.paths if spec is not None else ())}


def open_old_model(request: Request, keep_optimizer: bool) -> OldModel:
    """Read and check a checkpoint and its dictionary; build the model, and again with one symbol more.

    Args:
        request: names the checkpoint, the dictionary and its side.
        keep_optimizer: False to leave the optimizer's state out.

    Raises:
        CheckpointError: the model cannot be read or changed.
        DataError: the dictionary is not the model's.
        OptionError: the side is wrong or missing, or the plugin does not exist.
    """
    checkpoint, dictionary = request.checkpoint, request.dictionary
    vocabulary = read_dictionary(dictionary)
    import_plugin(request.user_dir)
    state = load_model_checkpoint(checkpoint)
    if not keep_optimizer:
        state.pop("last_optimizer_state", None)
    weights = state["model"]
    builder = Builder(checkpoint, state, languages_of(options_of(state, "task"), dictionary))
    text = Path(dictionary).read_bytes().decode("utf-8")
    sides, other_rows = find_sides(builder, weights, dictionary, vocabulary, text, request.side)
    other_file, other_text = _other_dictionary(builder, dictionary, sides, other_rows)
    texts = Texts(other_text, other_text).replaced(sides, text)
    model, task = builder.load(texts, weights)
    symbols = symbols_of_side(task, sides)
    check_order(f"--dict {dictionary}", symbols, vocabulary)
    check_dictionary(state, checkpoint, f"--dict {dictionary}", dict.fromkeys(sides, symbols))
    longer = builder.build(texts.replaced(sides, f"{text.rstrip()}\n{_ONE_MORE}"))
    tables = find_symbol_tensors(checkpoint, model, longer, weights, len(symbols))
    check_tied_copies(checkpoint, tables, {"": weights, **averages_in(state)})
    softmax = has_softmax(model, tables, sides)
    return OldModel(state, builder, dictionary, vocabulary, sides, texts, other_file, symbols, model, tables, softmax)


def check_order(where: str, symbols: Sequence[str], vocabulary: Vocabulary) -> None:
    """Raise DataError unless fairseq's rows of a dictionary begin with its file's. where: option and path."""
    for row, (symbol, written) in enumerate(zip(symbols, vocabulary.symbols)):
        if symbol != written:
            raise DataError(
                f"{where}: found {symbol!r} in row {row} as fairseq reads it, expected {written!r}; remove unusual "
                "white space (a task with specials of its own is not served)"
            )


def symbols_of_side(task: Any, sides: tuple[str, ...]) -> list[str]:
    """Return the symbols of a task's dictionary for the first of these sides."""
    return list(dictionaries_of(task)["encoder" not in sides].symbols)


# ---- Which side of a model a dictionary belongs to, and the dictionary of the other side ----------------------------


def find_sides(
    builder: Builder, weights: Mapping[str, Tensor], path: str, vocabulary: Vocabulary, text: str, side: str | None
) -> tuple[tuple[str, ...], int]:
    """Return the sides that use a dictionary, and the number of symbols that a dict.txt of the other side has.

    The embedding matrix of a side has as many rows as the dictionary has symbols, appended ones included.

    Raises:
        DataError: the dictionary fits no side, or not the one that is meant.
        OptionError: it is not clear, or impossible, which side is meant.
    """
    sizes = dict(zip(SIDES, map(len, dictionaries_of(builder.set_up(Texts(text, text))))))
    if builder.two_sided:
        matrices = {name: _embedding_matrix(builder.path, weights, f"{name}.") for name in SIDES}
        is_shared = torch.equal(*matrices.values())
    else:
        matrices, is_shared = dict.fromkeys(SIDES, _embedding_matrix(builder.path, weights, "")), True
    rows = {name: len(matrix) for name, matrix in matrices.items()}
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


def _embedding_matrix(path: str, weights: Mapping[str, Tensor], prefix: str) -> Tensor:
    """Return the embedding matrix of a side (prefix `encoder.`), or of the model (prefix "")."""
    matrices = [value for name, value in weights.items() if name.startswith(prefix) and name.endswith(_EMBEDDINGS)]
    rows = sorted({len(value) for value in matrices if value.dim() == 2})
    if len(rows) != 1:
        actual = f"several, of {' and '.join(map(str, rows))} rows" if rows else "none"
        raise CheckpointError(
            f"{path}: expected one embedding matrix (...{_EMBEDDINGS}) with a row for every symbol of "
            f"{f'its {prefix[:-1]}' if prefix else 'the model'}, found {actual}; name a checkpoint of a model of text "
            "without --adaptive-input, and with one dictionary if it has many languages (--share-all-embeddings)"
        )
    return matrices[0]


def _check_neighbours(builder: Builder, path: str, vocabulary: Vocabulary, wanted: list[str]) -> None:
    """Raise OptionError if file names show that a dictionary of the right size belongs to another side.

    Two dictionaries of one size fit both sides, but their names say the language. If the files of all languages are in
    one folder, a dictionary for all of them must be equal to them.
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
            raise OptionError(
                f"--dict {path}: {neighbour} is another dictionary, so this one is not that of all languages; change "
                "one side at a time (--side encoder, then --side decoder). More than two dictionaries cannot be changed"
            )


def _other_dictionary(builder: Builder, path: str, sides: tuple[str, ...], rows: int) -> tuple[Path | None, str]:
    """Return (file, text) of the other side's dictionary with `rows` rows.

    The text is that of the file next to `path` if it fits, else made-up symbols of the right number.
    """
    others = [name for name, users in builder.files.items() if users and not users & {*sides}]
    for file in (Path(path).parent / name for name in others):
        if file.is_file() and file.resolve() != Path(path).resolve() and len(read_dictionary(file)) == rows:
            return file, file.read_bytes().decode("utf-8")
    return None, "".join(f"symbol{number} 1\n" for number in range(rows - len(SPECIAL_SYMBOLS)))
