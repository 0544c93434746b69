"""Which tensors of a model have a row a symbol, which of them are one, and what stands in a checkpoint for them.

Names and numbers of rows do not tell (a width may equal the number of symbols), but the model does: it is built once
more with one symbol more, and what became longer is over the dictionary.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.checkpoints.build import SIDES, Builder, Texts, dictionaries_of
from embinit_fairseq.errors import CheckpointError, DataError, EmbinitError, OptionError
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS, read_dictionary

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn


# ---- Which side of a model a dictionary belongs to, and what stands on the other one --------------------------------
# Translation has a dictionary for the source (encoder) and one for the target (decoder); other tasks have one.

UNKNOWN_LANGUAGES = ("source", "target")
_TABLE = "embed_tokens.weight"
_IN_PARTS = ("adaptive_softmax.", "embed_tokens.embeddings.", "adaptive_input")


@dataclass(frozen=True)
class Fit:
    """sides: those whose dictionary is --dict (all of SIDES where there is only one dictionary). appended: symbols that
    the task puts behind it. other: the dictionary of the other side, found or made up. found: its file."""

    sides: tuple[str, ...]
    appended: int
    other: str | None = None
    found: Path | None = None

    def dictionary(self, task: Any) -> Any:
        """fairseq's dictionary of the side that is expanded."""
        return dictionaries_of(task)["encoder" not in self.sides]

    def texts(self, dictionary: str) -> Texts:
        """The dictionaries of both sides, with `dictionary` on those it belongs to."""
        return Texts(*(dictionary if side in self.sides else str(self.other) for side in SIDES))


def fit_dictionary(builder: Builder, model: Mapping[str, Tensor], path: str, side: str | None) -> Fit:
    """Find the side(s) of `path`; side: what --side says (encoder, decoder, both) or None.

    Raises DataError if the dictionary does not fit, OptionError if it is not clear which side is meant.
    """
    _check_tables(builder.path, model)
    vocabulary, text = read_dictionary(path), Path(path).read_bytes().decode("utf-8")
    sizes = dict(zip(SIDES, map(len, dictionaries_of(builder.set_up(Texts(text, text))))))
    if not builder.two_sided:
        _check_joined(builder, path)
        return _only_dictionary(builder.path, model, path, side, sizes, len(vocabulary))
    rows = {name: _rows(builder.path, model, f"{name}.") for name in SIDES}
    sides = _chosen(builder, model, path, side, rows, sizes)
    appended = {name: size - len(vocabulary) for name, size in sizes.items()}
    if len(sides) == 2:
        return Fit(sides, appended["encoder"])
    other = SIDES[1 - SIDES.index(sides[0])]
    found, other_text = _other_dictionary(builder, path, other, rows[other] - appended[other])
    return Fit(sides, appended[sides[0]], other_text, found)


def _check_tables(path: str, model: Mapping[str, Tensor]) -> None:
    parts = [name for name in model if any(part in name for part in _IN_PARTS)]
    if parts:
        raise CheckpointError(
            f"{path}: {parts[0]} is of a softmax or a table in parts (--adaptive-softmax-cutoff, --adaptive-input), "
            "which cannot be expanded; train a model without these options"
        )


def _rows(path: str, model: Mapping[str, Tensor], prefix: str) -> int:
    for name, value in model.items():
        if name.startswith(prefix) and name.endswith(_TABLE) and value.dim() == 2:
            return int(value.shape[0])
    side = prefix.rstrip(".") or "model"
    raise CheckpointError(
        f"{path}: its {side} has no table with a row for every symbol (no ...{_TABLE}), so there is nothing to expand; "
        "name a checkpoint of a model of text"
    )


def _only_dictionary(
    path: str, model: Mapping[str, Tensor], dictionary: str, side: str | None, sizes: dict[str, int], described: int
) -> Fit:
    if side not in (None, "both"):
        raise OptionError(f"--side {side}: {path} has one dictionary for everything; leave --side out")
    if sizes["encoder"] != sizes["decoder"]:
        raise CheckpointError(
            f"{path}: its output has only the first {sizes['decoder']} of {sizes['encoder']} symbols "
            "(--output-dictionary-size), so that new words would have no place in it; it cannot be expanded"
        )
    rows = _rows(path, model, "")
    tables = {value.shape[0] for name, value in model.items() if name.startswith("models.") and name.endswith(_TABLE)}
    if len(tables) > 1:  # multilingual_translation: a model for each pair of languages
        counts = ", ".join(map(str, sorted(tables)))
        raise CheckpointError(
            f"{path}: its languages have dictionaries of their own (tables of {counts} rows); only a model with one "
            "dictionary for all of them can be expanded (--share-all-embeddings)"
        )
    if rows != sizes["encoder"]:
        raise DataError(_misfit(dictionary, described, sizes["encoder"], f"{path} has a table of {rows} rows"))
    return Fit(SIDES, sizes["encoder"] - described)


def _misfit(dictionary: str, described: int, size: int, other: str) -> str:
    more = f", {size - described} that the task appends" if size > described else ""
    lines = described - len(SPECIAL_SYMBOLS)
    return (
        f"--dict {dictionary}: {size} symbols (4 specials, {lines} lines{more}), but {other}; give the "
        "dictionary of the data it was trained with"
    )


def _chosen(
    builder: Builder,
    model: Mapping[str, Tensor],
    path: str,
    side: str | None,
    rows: dict[str, int],
    sizes: dict[str, int],
) -> tuple[str, ...]:
    fitting = tuple(name for name in SIDES if rows[name] == sizes[name])
    wanted = SIDES if side == "both" else (side,) if side else fitting
    misfits = [name for name in wanted if name not in fitting] or ([] if fitting else list(SIDES))
    if misfits:
        tables = " and ".join(f"the {name} of {builder.path} a table of {rows[name]} rows" for name in misfits)
        raise DataError(_misfit(path, len(read_dictionary(path)), sizes[misfits[0]], tables))
    shared = len(fitting) == 2 and _same_tables(model)
    if shared and len(wanted) == 1:
        raise OptionError(
            f"--side {side}: encoder and decoder of {builder.path} share one table; leave --side out, or give both"
        )
    if side is None and len(fitting) == 2 and not shared:
        raise OptionError(
            f"--dict {path}: it fits the encoder and the decoder of {builder.path}, which have tables of their own; "
            "say which is meant: --side encoder, --side decoder, or both if it is the dictionary of both"
        )
    if len(wanted) == 2:
        _check_joined(builder, path)
    else:
        _check_name(builder, path, wanted[0])
    return tuple(wanted)


def _check_name(builder: Builder, path: str, side: str) -> None:
    """Two dictionaries of the same size fit both sides, but the file's name says which language it is."""
    name = Path(path).name
    if name in builder.files and side not in builder.files[name]:
        own = " or ".join(other for other, sides in builder.files.items() if side in sides)
        raise OptionError(
            f"--dict {path}: by its name it is not that of the {side}, whose table it fits; give {own}, or the other "
            "--side"
        )


def _same_tables(model: Mapping[str, Tensor]) -> bool:
    import torch

    tables = [
        next(value for name, value in model.items() if name.startswith(f"{side}.") and name.endswith(_TABLE))
        for side in SIDES
    ]
    return tables[0].shape == tables[1].shape and torch.equal(*tables)


def _check_joined(builder: Builder, path: str) -> None:
    """Where all languages' files lie beside each other they must be one dictionary."""
    symbols = read_dictionary(path).symbols
    remedy = (
        "cannot be that of both sides; expand one side at a time (--side encoder, then --side decoder)"
        if builder.two_sided
        else "is not that of all languages, and a model with several cannot be expanded"
    )
    names = [name for name, sides in builder.files.items() if sides]
    for beside in (Path(path).parent / name for name in names if len(names) > 1):
        if beside.is_file() and read_dictionary(beside).symbols != symbols:
            raise OptionError(f"--dict {path}: {beside} beside it is another dictionary, so it {remedy}")


def _other_dictionary(builder: Builder, path: str, side: str, described: int) -> tuple[Path | None, str]:
    """(file, text) of the other side: the file beside `path` if it fits, else symbols that only make up the number."""
    for beside in (Path(path).parent / name for name, sides in builder.files.items() if sides == {side}):
        if beside.is_file() and beside.resolve() != Path(path).resolve() and _describes(beside, described):
            return beside, beside.read_bytes().decode("utf-8")
    lines = described - len(SPECIAL_SYMBOLS)
    return None, "".join(f"symbol{number} 1\n" for number in range(lines))


def _describes(path: Path, described: int) -> bool:
    try:
        return len(read_dictionary(path)) == described
    except EmbinitError:
        return False


def languages_of(options: dict[str, Any], path: str) -> tuple[str, str] | None:
    """(source, target) that a task with two dictionaries must be told; None for others, also with --lang-pairs.

    Where the checkpoint does not name them, since fairseq inferred them from the data: as fairseq does, from the names
    of the binarised files beside `path`, else of those in the folder it was trained with, else made-up ones.
    """
    if options.get("lang_pairs") or "source_lang" not in options or "target_lang" not in options:
        return None
    if options["source_lang"] and options["target_lang"]:
        return options["source_lang"], options["target_lang"]
    data = str(options.get("data") or "").split(os.pathsep)[0]
    for folder in (Path(path).parent, *([Path(data)] if data else ())):
        for file in sorted(folder.glob("*.*-*.*")) if folder.is_dir() else ():
            pair = file.name.split(".")[1].split("-")
            if len(pair) == 2 and all(pair):
                return pair[0], pair[1]
    return UNKNOWN_LANGUAGES


# ----------------------------------------------------------------------------------------------------------------------

_NORMED = (".weight_g", ".weight_v", ".original0", ".original1")  # torch's weight norm, old and new


@dataclass(frozen=True)
class DictionaryTable:
    """names: in the model; several if it is tied. keys: in the checkpoint. is_input: a table of embeddings."""

    names: tuple[str, ...]
    keys: tuple[str, ...]
    is_input: bool
    is_output: bool

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]

    def keys_in(self, weights: Mapping[str, Tensor]) -> list[str]:
        """What stands for it in a state dict, also of an average: that has names which the checkpoint may lack."""
        return [key for key in dict.fromkeys((*self.keys, *self.names)) if key in weights]


def find_tables(
    path: str, model: nn.Module, grown: nn.Module, weights: Mapping[str, Tensor], size: int
) -> list[DictionaryTable]:
    """The tensors over the dictionary. model: as in the checkpoint; grown: with one symbol more; weights: of the file.

    Raises CheckpointError if there are none, or one that is not simply a row (or a bias) a symbol.
    """
    values, longer = model.state_dict(keep_vars=True), grown.state_dict()
    groups: dict[int, list[str]] = {}
    for name, value in values.items():
        if value.shape != longer[name].shape:
            _check_shape(path, name, value, longer[name], size)
            groups.setdefault(id(value), []).append(name)
    if not groups:
        raise CheckpointError(f"{path}: no tensor of this model has a row for every symbol; there is nothing to expand")
    keys = _keys_of(model, weights)
    embeddings = embedding_names(model)
    return [_table(path, tuple(names), keys, weights, embeddings) for names in groups.values()]


def _check_shape(path: str, name: str, value: Tensor, longer: Tensor, size: int) -> None:
    grown_rows = (size + 1, *value.shape[1:])
    if name.endswith(_NORMED):
        raise CheckpointError(
            f"{path}: {name} is a table under weight normalisation, whose rows cannot be averaged; such models "
            "(fconv) cannot be expanded"
        )
    if value.dim() not in (1, 2) or value.shape[0] != size or tuple(longer.shape) != grown_rows:
        raise CheckpointError(
            f"{path}: {name} grows with the dictionary, but from {tuple(value.shape)} to {tuple(longer.shape)} instead "
            f"of by one row for one of {size} symbols; such models cannot be expanded"
        )


def _keys_of(model: Any, weights: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Name in the model -> keys of the checkpoint that hold it: fairseq renames parameters of older versions."""
    upgraded = dict(weights)
    model.upgrade_state_dict(upgraded)
    by_tensor: dict[int, list[str]] = {}
    for key, value in weights.items():
        by_tensor.setdefault(id(value), []).append(key)
    return {name: by_tensor.get(id(value), []) for name, value in upgraded.items()}


def embedding_names(model: nn.Module) -> set[str]:
    """Of all tables of embeddings, over a dictionary or not."""
    from torch import nn

    return {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Embedding)}


def _table(
    path: str, names: tuple[str, ...], keys: dict[str, list[str]], weights: Mapping[str, Tensor], embeddings: set[str]
) -> DictionaryTable:
    held = tuple(dict.fromkeys(key for name in names for key in keys.get(name, ())))
    if not held:
        raise CheckpointError(
            f"{path}: {names[0]} is not in the file but made when it is loaded; load it with fairseq and save it again"
        )
    check_copies(path, held, weights)
    is_input = any(name in embeddings for name in names)
    return DictionaryTable(names, held, is_input, any(name not in embeddings for name in names))


def check_copies(path: str, keys: Sequence[str], weights: Mapping[str, Tensor], of: str = "") -> None:
    """CheckpointError unless the tensors, of one table, are equal and finite. of: whose they are, for the message."""
    import torch

    for key in keys:
        # in parts, since the answer takes as much memory as what is asked about; <pad>, too, is averaged and read
        if not all(torch.isfinite(part).all() for part in weights[key].split(4096)):
            raise CheckpointError(
                f"{path}: {of}{key} holds NaN or infinity; name an earlier checkpoint of the training"
            )
        if not torch.equal(weights[key], weights[keys[0]]):
            raise CheckpointError(
                f"{path}: {of}{keys[0]} and {key} are one table in the model, but differ in the file; it is damaged"
            )


def check_averages(
    path: str,
    averages: Mapping[str, Mapping[str, Any]],
    tables: Sequence[DictionaryTable],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """CheckpointError unless averages of the model (see `averages_in`) are of the model. shapes: of its tensors.

    What the model lacks is left alone, as fairseq does when it loads them.
    """
    import torch

    for name, weights in averages.items():
        for key, value in weights.items():
            found = tuple(value.shape) if isinstance(value, torch.Tensor) else None
            if key in shapes and found != shapes[key]:
                raise CheckpointError(
                    f"{path}: the average of the model (extra_state, {name}) has {key} of shape {found}, but the model "
                    f"of {shapes[key]}; it is damaged, name another checkpoint of the training"
                )
        for table in tables:
            check_copies(path, table.keys_in(weights), weights, f"{name} ")


def has_softmax(model: nn.Module, tables: list[DictionaryTable], sides: tuple[str, ...]) -> bool:
    """Do the new words become outputs, too? (Some models compute logits with their embeddings, under no other name.)"""
    from fairseq.models import FairseqEncoderDecoderModel, FairseqLanguageModel

    if len(getattr(model, "classification_heads", ())):  # fine-tuned; the old head is still in it, but not in use
        return False
    if isinstance(model, FairseqEncoderDecoderModel):
        return "decoder" in sides
    return isinstance(model, FairseqLanguageModel) or any(table.is_output for table in tables)


def tensors_of(tables: Sequence[DictionaryTable], copies: Sequence[Mapping[str, Tensor]]) -> dict[str, list[Tensor]]:
    """Name of a table -> its tensor in every state dict (of the model, and of averages of it) that has it."""
    return {table.name: [copy[key] for copy in copies for key in table.keys_in(copy)[:1]] for table in tables}


def by_copy(
    tables: Sequence[DictionaryTable], copies: Sequence[Mapping[str, Tensor]], found: Mapping[str, Sequence[np.ndarray]]
) -> list[dict[str, np.ndarray]]:
    """What was found for `tensors_of`, for each state dict: name of a table -> its rows."""
    rows: list[dict[str, np.ndarray]] = [{} for _ in copies]
    for table in tables:
        holders = [number for number, copy in enumerate(copies) if table.keys_in(copy)]
        for number, each in zip(holders, found[table.name]):
            rows[number][table.name] = each
    return rows
