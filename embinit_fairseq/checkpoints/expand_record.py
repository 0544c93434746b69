"""What a checkpoint says about its dictionary beside the tensors: languages, and the record of `--embed-init`."""

from __future__ import annotations

import copy
import json
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import numpy as np

from embinit_fairseq.checkpoints.expand_rows import Placement
from embinit_fairseq.init.report import pack_rows, symbols_digest, unpack_rows


def expand_settings(
    state: dict[str, Any],
    placement: Placement,
    symbols: tuple[Sequence[str], Sequence[str]],
    languages: tuple[str, str] | None,
) -> dict[str, Any]:
    """The checkpoint with a copy of `cfg` and `args` that is true of the new dictionary; its tensors are as they were.

    symbols: of the old and the new dictionary, in the order of rows. languages: (source, target) to name where the
    checkpoint does not, so that `from_pretrained` needs no names of data files; None: nothing is known.
    """
    state = {**state, "cfg": copy.deepcopy(state.get("cfg")), "args": copy.deepcopy(state.get("args"))}
    cfg = state["cfg"] if isinstance(state["cfg"], dict) else {}
    for node in (cfg.get("task"), state["args"]):
        for name, language in zip(("source_lang", "target_lang"), languages or ()):
            if _has(node, name) and not _get(node, name):
                _set(node, name, language)
    for node in (cfg.get("embed_init_options"), cfg.get("model"), state["args"]):
        text = _get(node, "embed_init_record")
        if isinstance(text, str):
            _set(node, "embed_init_record", _expand_record(text, placement, symbols))
    return state


def _expand_record(text: str, placement: Placement, symbols: tuple[Sequence[str], Sequence[str]]) -> str:
    """`--embed-init-freeze SLOT:known` asks the record which rows had vectors: not the new ones."""
    try:
        record = json.loads(text)
        slots = list(record["slots"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return text  # of nobody we know
    old, new = (symbols_digest(names) for names in symbols)
    for slot in slots:
        if slot.get("dictionary") == old and slot.get("rows") == placement.old_size:
            known = np.zeros(placement.new_size, dtype=bool)
            known[placement.moved] = unpack_rows(slot["known_rows"], slot["rows"])
            known[placement.rows] = False
            slot |= {"dictionary": new, "rows": placement.new_size, "known_rows": pack_rows(known)}
    return json.dumps(record)


def _has(node: Any, name: str) -> bool:
    return name in (vars(node) if isinstance(node, Namespace) else node if isinstance(node, dict) else ())


def _get(node: Any, name: str) -> Any:
    return (vars(node) if isinstance(node, Namespace) else node)[name] if _has(node, name) else None


def _set(node: Any, name: str, value: Any) -> None:
    (vars(node) if isinstance(node, Namespace) else node)[name] = value
