"""Read files written by `torch.save` without executing code in them; read the options and records in checkpoints.

torch is imported when a file is opened.
"""

from __future__ import annotations

import inspect
import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import CheckpointError, EmbinitError

#: first bytes of a file that torch.save wrote since 1.6, and before
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80\x02"


def load_safely(
    path: Path | str, error: type[EmbinitError] = CheckpointError, what: str = "a file of torch.save"
) -> Any:
    """Return the content that `torch.save` wrote to `path`, memory-mapped if the file and torch allow it.

    Tensors, built-in containers, NumPy's numeric arrays and scalars, and the objects that fairseq stored (`Namespace`,
    meters, omegaconf's configurations) are accepted as data. Everything else that the file names is refused. So is a
    call of these objects with anything but plain data (`fairseq_compat.plain_data`).

    Args:
        path: the file.
        error: class of the error for a file that is refused, damaged or missing.
        what: description of the expected file, for the message.
    """
    import torch

    try:
        from fairseq_compat.plain_data import TAKE_OUT, allowed, plain, refused_in
    except ImportError as cause:
        raise error(f"{path}: reading it safely needs fairseq_compat; scripts/setup.sh installs it") from cause
    try:
        with open(path, "rb") as stream:
            start = stream.read(len(_ZIP))
    except OSError as cause:
        raise error(f"{path}: cannot be read ({cause.strerror}); check the path and its permissions") from cause
    options: dict[str, Any] = {"map_location": "cpu", "weights_only": True}
    if start == _ZIP and "mmap" in inspect.signature(torch.load).parameters:
        options["mmap"] = True
    try:
        with allowed():
            loaded = plain(torch.load(str(path), **options))
    except ImportError:
        raise
    except Exception as cause:  # a damaged pickle can raise anything
        # torch's own text is not quoted: it recommends the unsafe way to load, which would execute code in the file
        fault = (
            "it is empty, cut short or damaged; give another file, such as an earlier checkpoint of the same folder, "
            "or copy or download it again"
        )
        if refused := refused_in(cause):
            fault = (
                f"it holds objects that are not on the allow-list of tensors and plain data (it names {refused}), "
                f"which are not executed; {TAKE_OUT}"
            )
        elif start and start != _ZIP and not start.startswith(_PICKLE):
            fault = "this is another kind of file, which torch.save did not write; check the path"
        raise error(f"{path}: not {what} that can be read safely: {fault}") from cause
    return loaded


def options_of(checkpoint: Mapping[str, Any], part: str) -> dict[str, Any]:
    """Return the options of a training: the section `part` of `cfg` (fairseq >= 0.10), or all of `args` (before)."""
    if options := (checkpoint.get("cfg") or {}).get(part):
        return vars(options) if isinstance(options, Namespace) else dict(options)
    options = vars(checkpoint.get("args") or Namespace())
    choice = options.get("arch" if part == "model" else part)
    return {**options, "_name": choice} if choice else dict(options)


def updates_of(checkpoint: Mapping[str, Any]) -> int | None:
    """Return the number of updates of the training, None if the checkpoint does not have it."""
    history = checkpoint.get("optimizer_history") or [{}]
    return history[-1].get("num_updates")


def option_nodes(state: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the places of model options: sections of `cfg` (fairseq >= 0.10), then `args`."""
    cfg = state.get("cfg") or {}
    for node in (cfg.get("embed_init_options"), cfg.get("model"), state.get("args")):
        if isinstance(node, Namespace):
            yield vars(node)
        elif isinstance(node, Mapping):
            yield node  # type: ignore[misc]  # a plain dict or one of omegaconf


def initialisation_record(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the record of `--embed-init` in a checkpoint; None if there is no readable one."""
    for node in option_nodes(state):
        if isinstance(node.get("embed_init_record"), str):
            return record_in(node["embed_init_record"])
    return None


def record_in(text: str) -> dict[str, Any] | None:
    """Return the record of `--embed-init` in a JSON text; None if it is not one."""
    try:
        return checked_record(json.loads(text))
    except ValueError:
        return None


def checked_record(record: Any) -> dict[str, Any] | None:
    """Return the record if it has slots, else None."""
    slots = record.get("slots") if isinstance(record, dict) else None
    return record if isinstance(slots, dict) and all(isinstance(slot, dict) for slot in slots.values()) else None
