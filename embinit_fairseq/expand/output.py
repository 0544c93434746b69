"""What a change of the vocabulary writes: dictionaries, the checkpoint, checked as fairseq loads it, and the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from embinit_fairseq.checkpoints.build import Texts
from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.errors import CheckpointError
from embinit_fairseq.expand.source import SourceModel
from embinit_fairseq.expand.state import (
    RowChange,
    averages_in,
    expand_optimizer,
    expand_settings,
    expand_weights,
)
from embinit_fairseq.expand.tables import UNKNOWN_LANGUAGES
from embinit_fairseq.files import sha256
from embinit_fairseq.machine import package_versions

_PACKAGES = ("embinit-fairseq", "fairseq", "torch", "numpy")


def changed_checkpoint(
    source: SourceModel,
    change: RowChange,
    new_symbols: Sequence[str],
    keep_optimizer: bool,
    output: str,
    new_rows: Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, np.ndarray]]] | None = None,
) -> dict[str, Any]:
    """The content of model.pt: the old checkpoint with other tables and averages, and the optimiser's state or none.

    output: the folder it will be in. new_rows: state dicts (the model's, those of its averages) -> for each, name of a
    table -> its rows `change.rows`.
    """
    state, tables, languages = source.state, source.tables, source.builder.languages
    named = None if languages == UNKNOWN_LANGUAGES else languages
    files = [name for name, sides in source.builder.files.items() if sides & {*source.fit.sides}]
    paths = [Path(output).resolve() / name for name in files]
    content = expand_settings(state, change, (source.symbols, new_symbols), named, paths)
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


def write_result(
    source: SourceModel, texts: Texts, symbols: Sequence[str], content: dict[str, Any], folder: Path
) -> list[str]:
    """Write the dictionaries (texts) and model.pt, and load them as fairseq does; return the names of the dictionaries.

    Args:
        symbols: that the dictionary must have, in the order of rows.
        content: of model.pt; it is emptied, since it takes as much memory as what is loaded.

    Raises:
        CheckpointError: the model, its averages or its dictionary do not fit.
    """
    names = _write_dictionaries(source, texts, folder)
    write_checkpoint(content, folder / "model.pt")
    content.clear()
    state = load_checkpoint(folder / "model.pt")
    model, task = source.builder.load(texts, state["model"], str(folder / "model.pt"))
    wrong = [] if list(source.fit.dictionary(task).symbols) == list(symbols) else ["the dictionary"]
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    for name, weights in averages_in(state).items():
        wrong += [f"{name} {key}" for key, value in weights.items() if shapes.get(key, value.shape) != value.shape]
    if wrong:
        raise CheckpointError(
            f"{source.builder.path}: {wrong[0]} would not fit the changed model, which must not happen; nothing is "
            "written, please report it"
        )
    return names


def _write_dictionaries(source: SourceModel, texts: Texts, folder: Path) -> list[str]:
    """Write what the task reads: the new dictionaries, and those of the other side and of labels beside the old one."""
    written: dict[str, bytes] = {}
    given = Path(source.dictionary)
    for name, sides in source.builder.files.items():
        labels = next((path / name for path in given.resolve().parents[:2] if (path / name).is_file()), None)
        if sides & {*source.fit.sides}:  # where the languages are made up it keeps its own name
            name = given.name if source.builder.languages == UNKNOWN_LANGUAGES else name
            written |= dict.fromkeys((name, name.removeprefix("input0/")), texts.of(sides).encode())
        elif sides and source.fit.found is not None:
            written[name] = texts.of(sides).encode()
        elif not sides and labels is not None:
            written[name] = labels.read_bytes()
    for name, content in written.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return sorted(written)


def common_record(
    source: SourceModel, change: RowChange, request: Any, has_moments: bool, inputs: Mapping[str, str]
) -> dict[str, Any]:
    """Return what is recorded of every change. has_moments: of the new checkpoint; inputs: the files that were read."""
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(request).items()}
    return {
        "request": options,
        "sides": source.sides,
        "softmax": source.softmax,
        "rows_before": change.old_size,
        "rows_after": change.new_size,
        "tables": {table.name: list(table.names) for table in source.tables},
        "averages": list(averages_in(source.state)),
        "optimizer": has_moments,
        "sha256": {name: sha256(path) for name, path in inputs.items()},
        "versions": package_versions(_PACKAGES),
    }
