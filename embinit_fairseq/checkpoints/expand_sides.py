"""Which side of a model a dictionary belongs to, and what stands on the other one.

Translation has a dictionary for the source (encoder) and one for the target (decoder); other tasks have one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.checkpoints.expand_model import Builder, Texts
from embinit_fairseq.errors import CheckpointError, DataError, EmbinitError, OptionError
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS, read_dictionary

if TYPE_CHECKING:
    from torch import Tensor

SIDES = ("encoder", "decoder")
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
        return task.source_dictionary if "encoder" in self.sides else task.target_dictionary

    def texts(self, dictionary: str) -> Texts:
        """The dictionaries of both sides, with `dictionary` on those it belongs to."""
        return Texts(*(dictionary if side in self.sides else str(self.other) for side in SIDES))


def fit_dictionary(builder: Builder, model: Mapping[str, Tensor], path: str, side: str | None) -> Fit:
    """Find the side(s) of `path`; side: what --side says (encoder, decoder, both) or None.

    Raises DataError if the dictionary does not fit, OptionError if it is not clear which side is meant.
    """
    _check_tables(builder.path, model)
    vocabulary, text = read_dictionary(path), Path(path).read_bytes().decode("utf-8")
    task = builder.set_up(Texts(text, text))
    sizes = {"encoder": len(task.source_dictionary), "decoder": len(task.target_dictionary or task.source_dictionary)}
    appended = {name: size - len(vocabulary) for name, size in sizes.items()}
    if builder.languages is None:
        return _only_dictionary(builder.path, model, path, side, sizes, appended, len(vocabulary))
    rows = {name: _rows(builder.path, model, f"{name}.") for name in SIDES}
    fitting = tuple(name for name in SIDES if rows[name] == sizes[name])
    sides = _chosen(builder, model, path, side, fitting, rows, sizes)
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
    path: str,
    model: Mapping[str, Tensor],
    dictionary: str,
    side: str | None,
    sizes: dict[str, int],
    appended: dict[str, int],
    described: int,
) -> Fit:
    if side not in (None, "both"):
        raise OptionError(f"--side {side}: {path} has one dictionary for everything; leave --side out")
    if sizes["encoder"] != sizes["decoder"]:
        raise CheckpointError(
            f"{path}: its output has only the first {sizes['decoder']} of {sizes['encoder']} symbols "
            "(--output-dictionary-size), so that new words would have no place in it; it cannot be expanded"
        )
    rows = _rows(path, model, "")
    if rows != sizes["encoder"]:
        raise DataError(_misfit(dictionary, described, appended["encoder"], f"{path} has a table of {rows} rows"))
    return Fit(SIDES, appended["encoder"])


def _misfit(dictionary: str, described: int, appended: int, other: str) -> str:
    more = f", {appended} that the task appends" if appended else ""
    lines = described - len(SPECIAL_SYMBOLS)
    return (
        f"--dict {dictionary}: {described + appended} symbols (4 specials, {lines} lines{more}), but {other}; give the "
        "dictionary of the data it was trained with"
    )


def _chosen(
    builder: Builder,
    model: Mapping[str, Tensor],
    path: str,
    side: str | None,
    fitting: tuple[str, ...],
    rows: dict[str, int],
    sizes: dict[str, int],
) -> tuple[str, ...]:
    wanted = SIDES if side == "both" else (side,) if side else fitting
    misfits = [name for name in wanted if name not in fitting] or ([] if fitting else list(SIDES))
    if misfits:
        described = len(read_dictionary(path))
        tables = " and ".join(f"the {name} of {builder.path} a table of {rows[name]} rows" for name in misfits)
        raise DataError(_misfit(path, described, sizes[misfits[0]] - described, tables))
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
    elif builder.languages is not None and builder.languages[0] != builder.languages[1]:
        _check_name(builder.languages, path, wanted[0])
    return tuple(wanted)


def _check_name(languages: tuple[str, str], path: str, side: str) -> None:
    """Two dictionaries of the same size fit both sides, but the file's name says which language it is."""
    own, other = languages if side == "encoder" else languages[::-1]
    if Path(path).name == f"dict.{other}.txt":
        raise OptionError(
            f"--dict {path}: by its name it is that of {other}, but the {side} whose table it fits is for {own}; "
            f"give dict.{own}.txt, or the other --side"
        )


def _same_tables(model: Mapping[str, Tensor]) -> bool:
    import torch

    tables = [
        next(value for name, value in model.items() if name.startswith(f"{side}.") and name.endswith(_TABLE))
        for side in SIDES
    ]
    return tables[0].shape == tables[1].shape and torch.equal(*tables)


def _check_joined(builder: Builder, path: str) -> None:
    """Where both languages' files lie beside each other they must be one dictionary."""
    symbols = read_dictionary(path).symbols
    for language in builder.languages or ():
        beside = Path(path).parent / f"dict.{language}.txt"
        if beside.is_file() and read_dictionary(beside).symbols != symbols:
            raise OptionError(
                f"--dict {path}: {beside} beside it is another dictionary, so it cannot be that of both sides; expand "
                "one side at a time (--side encoder, then --side decoder)"
            )


def _other_dictionary(builder: Builder, path: str, side: str, described: int) -> tuple[Path | None, str]:
    """(file, text) of the other side: the file beside `path` if it fits, else symbols that only make up the number."""
    language = (builder.languages or ("", ""))[SIDES.index(side)]
    beside = Path(path).parent / f"dict.{language}.txt"
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
    """(source, target) of a task with two dictionaries; None for other tasks.

    Where the checkpoint does not name them, since fairseq inferred them from the data: as fairseq does, from the names
    of the binarised files beside `path`, else of those in the folder it was trained with, else made-up ones.
    """
    if "source_lang" not in options or "target_lang" not in options:
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
