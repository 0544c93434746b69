"""What a change of the vocabulary writes: dictionaries, and the checkpoint, checked as fairseq loads it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.errors import CheckpointError
from embinit_fairseq.expand.model import Builder, Texts, write_dictionaries
from embinit_fairseq.expand.source import SourceModel
from embinit_fairseq.expand.state import (
    RowChange,
    averages_in,
    expand_optimizer,
    expand_settings,
    expand_weights,
)
from embinit_fairseq.expand.tables import UNKNOWN_LANGUAGES, Fit
from embinit_fairseq.machine import package_versions

_PACKAGES = ("embinit-fairseq", "fairseq", "torch", "numpy")


def write_dictionary_files(builder: Builder, fit: Fit, dictionary: str, texts: Texts, folder: Path) -> list[str]:
    """The new dictionaries (texts) under the names that fairseq expects, and those beside the old one; returns the
    names."""
    if builder.languages == UNKNOWN_LANGUAGES:  # then it keeps its own name
        text = texts.source if "encoder" in fit.sides else texts.target
        name = Path(dictionary).name
        (folder / name).write_bytes(text.encode("utf-8"))
        return [name]
    files = write_dictionaries(folder, builder.options, texts, builder.languages)
    made_up = [f"dict.{language}.txt" for language in builder.languages or ()]
    made_up = [] if len(fit.sides) == 2 or fit.found is not None else [made_up["encoder" in fit.sides]]
    if "label/dict.txt" in files and not _copy_labels(dictionary, folder):
        made_up.append("label/dict.txt")
    for name in made_up:
        (folder / name).unlink()
        if not any((folder / name).parent.iterdir()):
            (folder / name).parent.rmdir()
    return sorted(set(files) - set(made_up))


def _copy_labels(dictionary: str, folder: Path) -> bool:
    """`label/dict.txt` as it lies beside the old dictionary, or beside the input0 it lies in."""
    given = Path(dictionary).resolve().parent
    found = next((path for path in (given, given.parent) if (path / "label" / "dict.txt").is_file()), None)
    if found is not None:
        shutil.copyfile(found / "label" / "dict.txt", folder / "label" / "dict.txt")
    return found is not None


def changed_checkpoint(
    source: SourceModel,
    change: RowChange,
    new_symbols: Sequence[str],
    keep_optimizer: bool,
    new_rows: Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, np.ndarray]]] | None = None,
) -> dict[str, Any]:
    """The content of model.pt: the old checkpoint with other tables and averages, and the optimiser's state or none.

    new_rows: state dicts (the model's, those of its averages) -> for each, name of a table -> its rows `change.rows`.
    """
    state, tables, languages = source.state, source.tables, source.builder.languages
    named = None if languages == UNKNOWN_LANGUAGES else languages
    content = expand_settings(state, change, (source.symbols, new_symbols), named)
    averages = averages_in(state)
    copies = [state["model"], *averages.values()]
    new = new_rows(copies) if new_rows is not None else [{} for _ in copies]
    content["model"] = expand_weights(state["model"], tables, change, new[0])
    if averages:
        pairs = zip(averages.items(), new[1:])
        changed = {name: expand_weights(weights, tables, change, rows) for (name, weights), rows in pairs}
        content["extra_state"] = {**state["extra_state"], **changed}
    moments = content.pop("last_optimizer_state", None)
    if moments is not None and keep_optimizer:
        kept = expand_optimizer(source.builder.path, moments, source.model, tables, change)
        content["last_optimizer_state"] = kept
    return content


def write_checkpoint(content: dict[str, Any], path: Path) -> None:
    """As fairseq does."""
    import torch

    with open(path, "wb") as file:
        torch.save(content, file)


def check_result(builder: Builder, fit: Fit, texts: Texts, symbols: Sequence[str], file: Path) -> None:
    """Load what was written as fairseq does; CheckpointError if the model, its averages or its dictionary do not fit.

    symbols: that the dictionary must have, in the order of rows.
    """
    state = load_checkpoint(file)
    model, task = builder.load(texts, state["model"], str(file))
    wrong = [] if list(fit.dictionary(task).symbols) == list(symbols) else ["the dictionary"]
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    for name, weights in averages_in(state).items():
        wrong += [f"{name} {key}" for key, value in weights.items() if shapes.get(key, value.shape) != value.shape]
    if wrong:
        raise CheckpointError(
            f"{builder.path}: {wrong[0]} would not fit the changed model, which must not happen; nothing is written, "
            "please report it"
        )


def versions() -> dict[str, str | None]:
    """Of the packages that decide about the result."""
    return package_versions(_PACKAGES)
