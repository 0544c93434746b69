"""Make a checkpoint from an old one, a row map and new rows: the common steps of expand, trim and transfer."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embinit_fairseq.checkpoint_file import option_nodes, record_in
from embinit_fairseq.checkpoints.build import UNKNOWN_LANGUAGES
from embinit_fairseq.checkpoints.loading import averages_in, load_checkpoint
from embinit_fairseq.checkpoints.trained_preparation import OPTION, records_in
from embinit_fairseq.errors import CheckpointError
from embinit_fairseq.init.init_report import pack_rows, symbols_digest, unpack_rows
from embinit_fairseq.io import sha256, whole_folder, write_json
from embinit_fairseq.machine import package_versions
from embinit_fairseq.resize.old_model import OldModel
from embinit_fairseq.resize.optimizer import UnknownStateError, resize_optimizer
from embinit_fairseq.resize.symbol_tensors import with_rows
from embinit_fairseq.vocab.preparation_record import entries_of

_PACKAGES = ("embinit-fairseq", "fairseq", "torch", "numpy")
#: patterns of the checkpoint and its dictionaries in an output folder
CHECKPOINT_FILES = ("model.pt", "dict.txt", "dict.*.txt", "input0/dict.txt", "label/dict.txt")
#: options of tasks that name a dictionary
_DICTIONARIES = ("source_dict", "target_dict", "fixed_dictionary")
RESET = "add --reset-optimizer to leave the optimizer's state out (training continues from the weights alone)"
#: table -> one tensor for the model and for each average that has it; returns new rows in the same order
RowMaker = Callable[[Mapping[str, Sequence[Tensor]]], Mapping[str, Sequence[np.ndarray]]]
#: folder with the new dictionaries -> entries of the command's record
Preparer = Callable[[Path], dict[str, Any]]


@dataclass(frozen=True)
class Change:
    """Describe a change of the vocabulary.

    Args:
        old_row: (new N,) the row map: the old row of every new row, -1 for a row that is made.
        symbols: (new N,) the new symbols, with the symbols that the task appends.
        text: content of the new dict.txt.
    """

    old_row: np.ndarray
    symbols: list[str]
    text: str

    @cached_property
    def made(self) -> np.ndarray:
        """Return (k,) the new rows that are made, ascending."""
        return np.flatnonzero(self.old_row < 0)

    def new_row_of(self, old_size: int) -> np.ndarray:
        """Return (old N,) the new row of every old row, -1 for a row that is removed."""
        rows = np.full(old_size, -1)
        copied = np.flatnonzero(self.old_row >= 0)
        rows[self.old_row[copied]] = copied
        return rows


@contextlib.contextmanager
def resized(
    old_model: OldModel,
    change: Change,
    request: Any,
    inputs: Mapping[str, str],
    files: Sequence[str],
    make_rows: RowMaker | None = None,
    remedy: str = RESET,
    prepare: Preparer | None = None,
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the new folder, loaded once by fairseq, and its record; callers add to both.

    When the block ends, the record is written and the folder has its name. If anything fails, nothing is written.

    Args:
        old_model: its checkpoint, dictionary and tensors.
        change: the row map.
        request: the options, a dataclass with `output` and `force`.
        inputs: option -> path of a file that was read.
        files: patterns of the files that the command writes; the first is the name of the record.
        make_rows: makes the rows `change.made`; None if there are none.
        remedy: advice if the optimizer's state cannot be resized.
        prepare: writes the record of the preparation to the folder, and returns its entries for the command's record.

    Raises:
        CheckpointError: the optimizer's state cannot be resized, or fairseq cannot load the result.
    """
    content = _resized_content(old_model, change, Path(request.output).resolve(), make_rows, remedy)
    with whole_folder(request.output, request.force, files) as folder:
        dictionaries = _write_dictionaries(old_model, change, folder)
        prepared = prepare(folder) if prepare is not None else {}
        _store_preparation(old_model, content, folder)
        with open(folder / "model.pt", "wb") as file:
            torch.save(content, file)
        content.clear()  # it takes as much memory as the model that is loaded
        _, task = load_result(old_model, change, folder)
        if old_model.symbols_of(task) != change.symbols:
            raise CheckpointError(
                f"{old_model.path}: its task reads the new dictionary in another order, so that words would have the "
                "rows of others; nothing is written, please report it"
            )
        options = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(request).items()}
        record = {
            "request": options,
            "files": list(dict.fromkeys(("model.pt", *dictionaries, files[0], *_files_in(folder)))),
            "sides": list(old_model.sides) if old_model.builder.two_sided else None,
            "softmax": old_model.softmax,
            "rows_before": len(old_model.symbols),
            "rows_after": len(change.old_row),
            "tables": {table.name: list(table.names) for table in old_model.tables},
            "averages": list(averages_in(old_model.state)),
            "optimizer": old_model.has_moments,
            "sha256": {name: sha256(path) for name, path in inputs.items()},
            "versions": package_versions(_PACKAGES),
            **prepared,
        }
        yield folder, record
        write_json(folder / files[0], record)


def _files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def load_result(old_model: OldModel, change: Change, folder: Path) -> tuple[Any, Any]:
    """Return (model, task) of the new checkpoint in `folder`."""
    path = folder / "model.pt"
    return old_model.builder.load(old_model.texts_with(change.text), load_checkpoint(path)["model"], str(path))


# ---- The content of the checkpoint ----------------------------------------------------------------------------------


def _resized_content(
    old_model: OldModel, change: Change, output: Path, make_rows: RowMaker | None, remedy: str
) -> dict[str, Any]:
    """Return the content of the old checkpoint with the rows of `change`.

    Embedding matrices, output layers and biases of the model and of its averages (EMA), and the optimizer's state have
    new rows. The best value of the old model's validations is left out; everything else is as it was.
    """
    content = _with_options(old_model, change, output)
    if content.get("extra_state"):
        content["extra_state"] = _without_best(content["extra_state"])
    averages = averages_in(old_model.state)
    state_dicts = [dict(weights) for weights in (old_model.state["model"], *averages.values())]
    resize_tables(old_model, change, state_dicts, make_rows)
    content["model"] = state_dicts[0]
    if averages:
        content["extra_state"] |= dict(zip(averages, state_dicts[1:]))
    if (moments := content.pop("last_optimizer_state", None)) is not None:
        names = {name for table in old_model.tables for name in table.names}
        try:
            content["last_optimizer_state"] = resize_optimizer(moments, old_model.model, names, change.old_row)
        except UnknownStateError as error:
            raise CheckpointError(f"{old_model.path}: {error}; {remedy}") from error
    return content


def _without_best(extra_state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a training without its best value (also `--patience`'s, of fairseq_compat).

    Losses of another dictionary or text may all be worse, so that no checkpoint_best.pt would be written.
    """
    state = {key: value for key, value in extra_state.items() if key != "best"}
    paused = {key: value for key, value in state.items() if isinstance(value, dict) and "patience" in value}
    return {**state, **{key: {**value, "patience": {}} for key, value in paused.items()}}


def resize_tables(
    old_model: OldModel, change: Change, state_dicts: Sequence[dict[str, Tensor]], make_rows: RowMaker | None
) -> None:
    """Give the tables of a model and of its averages the rows of `change`, in place."""
    made = make_rows(tensors_of(old_model, state_dicts)) if make_rows is not None else {}
    for table in old_model.tables:
        new = iter(made.get(table.name, ()))
        for weights in state_dicts:
            if keys := table.keys_in(weights):
                rows = with_rows(weights[keys[0]], change.old_row, next(new, 0.0))
                weights.update(dict.fromkeys(keys, rows))


def tensors_of(old_model: OldModel, state_dicts: Sequence[Mapping[str, Tensor]]) -> dict[str, list[Tensor]]:
    """Return table -> its tensor in every state dict that has it."""
    return {
        table.name: [weights[key] for weights in state_dicts for key in table.keys_in(weights)[:1]]
        for table in old_model.tables
    }


def _with_options(old_model: OldModel, change: Change, output: Path) -> dict[str, Any]:
    """Return the checkpoint with a copy of `cfg` and `args` that fits the new dictionary.

    Languages that fairseq inferred are named, so that `from_pretrained` needs no names of data files. Options with the
    old dictionary (--fixed-dictionary) get the new one. The record of `--embed-init` gets the new rows.
    """
    state = old_model.state
    content = {**state, "cfg": copy.deepcopy(state.get("cfg")), "args": copy.deepcopy(state.get("args"))}
    languages = () if old_model.builder.languages in (None, UNKNOWN_LANGUAGES) else old_model.builder.languages
    for node in ((content["cfg"] or {}).get("task"), content["args"]):
        options = vars(node) if isinstance(node, Namespace) else node if isinstance(node, dict) else {}
        for name, language in zip(("source_lang", "target_lang"), languages or ()):
            if name in options and not options[name]:
                options[name] = language
        for name, file in itertools.product(_DICTIONARIES, old_model.changed_files):
            if Path(options.get(name) or "").name == Path(file).name:
                options[name] = str(output / file)
    for node in option_nodes(content):
        if isinstance(node.get("embed_init_record"), str):
            node["embed_init_record"] = resized_record(node["embed_init_record"], old_model.symbols, change)
    return content


def _store_preparation(old_model: OldModel, content: Mapping[str, Any], folder: Path) -> None:
    """Replace the preparation records of the changed dictionaries; the other side's record stays."""
    changed = {Path(name).name for name in (*old_model.changed_files, old_model.dictionary)}
    for node in option_nodes(content):
        if OPTION in node:
            old = records_in(node[OPTION] or "{}")
            entries = {name: entry for name, entry in old.items() if name not in changed} | entries_of(folder)
            node[OPTION] = json.dumps(entries) if entries else None


def resized_record(text: str, symbols: Sequence[str], change: Change) -> str:
    """Return a record of `--embed-init` for the new dictionary; new rows had no vectors (--embed-init-freeze known)."""
    record = record_in(text)
    if record is None:
        return text
    old, new = symbols_digest(symbols), symbols_digest(change.symbols)
    for slot in record["slots"].values():
        if slot.get("dictionary") == old and slot.get("rows") == len(symbols):
            with_vectors = unpack_rows(slot["known_rows"], slot["rows"])[change.old_row] & (change.old_row >= 0)
            slot |= {"dictionary": new, "rows": len(change.old_row), "known_rows": pack_rows(with_vectors)}
    return json.dumps(record)


def _write_dictionaries(old_model: OldModel, change: Change, folder: Path) -> list[str]:
    """Write the files that the task reads: new dictionaries, the other side's, and the labels next to the old one."""
    texts, old = old_model.texts_with(change.text), Path(old_model.dictionary)
    written: dict[str, bytes] = {}
    for name, users in old_model.builder.files.items():
        labels = next((path / name for path in old.resolve().parents[:2] if (path / name).is_file()), None)
        if name in old_model.changed_files:  # without languages the dictionary keeps its name
            name = old.name if old_model.builder.languages == UNKNOWN_LANGUAGES else name
            written |= dict.fromkeys((name, name.removeprefix("input0/")), texts.of(users).encode())
        elif users and old_model.other_file is not None:
            written[name] = texts.of(users).encode()
        elif not users and labels is not None:
            written[name] = labels.read_bytes()
    for name, content in written.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return sorted(written)
