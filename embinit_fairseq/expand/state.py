"""Tensors with new rows: a model's tables, averages of them (EMA), and the moments of optimisers.

Optimisers of torch and fairseq know parameters by their order, and keep for each tensors of its shape. Half-precision
training has one flat vector of all parameters instead. What is not understood is refused, not guessed.
"""

from __future__ import annotations

import copy
import itertools
import json
from argparse import Namespace
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from embinit_fairseq.bounded import parse_json
from embinit_fairseq.checkpoints.reading import option_nodes
from embinit_fairseq.errors import CheckpointError, DataError, OptionError
from embinit_fairseq.expand.tables import DictionaryTable, embedding_names
from embinit_fairseq.init.report import pack_rows, symbols_digest, unpack_rows
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor, nn


# ---- Where new words go in a dictionary, and where the old rows of its tables go ------------------------------------
# Rows are: fairseq's four specials, the lines of `dict.txt`, and what the task appends (`<mask>`, language tags). New
# words take the rows of fillers (`madeupword0000`, count 0) first, then lines behind the last; what is appended moves.

AVERAGES = ("all", "words")


class RowChange(Protocol):
    """Which rows a table has afterwards. source: (new N,) the old row of each, -1 for a new one. rows: (k,) the new."""

    @property
    def old_size(self) -> int: ...

    @property
    def new_size(self) -> int: ...

    @property
    def source(self) -> np.ndarray: ...

    @property
    def rows(self) -> np.ndarray: ...


@dataclass(frozen=True)
class Placement:
    """words: in their order. rows: (k,) of the new table. described: rows of the old `dict.txt` with specials.
    appended: rows behind it. added: rows that the table grows by. reused: (m,) rows of fillers that became words."""

    words: tuple[str, ...]
    rows: np.ndarray
    described: int
    appended: int
    added: int
    reused: np.ndarray

    @property
    def old_size(self) -> int:
        """N of the old table."""
        return self.described + self.appended

    @property
    def new_size(self) -> int:
        """N of the new table."""
        return self.old_size + self.added

    @property
    def moved(self) -> np.ndarray:
        """(old N,) new row of every old row; fillers that became words keep theirs, with another meaning."""
        rows = np.arange(self.old_size)
        rows[self.described :] += self.added
        return rows

    @property
    def source(self) -> np.ndarray:
        """(new N,) the old row of every new one, -1 for those of new words."""
        source = np.full(self.new_size, -1)
        source[self.moved] = np.arange(self.old_size)
        source[self.rows] = -1
        return source

    @property
    def kept(self) -> np.ndarray:
        """(old N,) bool: rows that mean afterwards what they meant before."""
        kept = np.ones(self.old_size, dtype=bool)
        kept[self.reused] = False
        return kept


def place_words(vocabulary: Vocabulary, appended: int, words: Sequence[str]) -> Placement:
    """Give every new word its row."""
    fillers = np.flatnonzero(vocabulary.filler & (vocabulary.counts == 0))
    reused, described = fillers[: len(words)], len(vocabulary)
    added = len(words) - len(reused)
    rows = np.concatenate([reused, np.arange(described, described + added)])
    return Placement(tuple(words), rows, described, appended, added, reused)


def averaged_rows(vocabulary: Vocabulary, appended: int, over: str) -> np.ndarray:
    """(n,) old rows that are averaged. all: every row that is no filler; words: lines of `dict.txt` that are words.

    Raises OptionError if no row is left.
    """
    chosen = ~vocabulary.filler
    if over == "words":
        special = {*SPECIAL_SYMBOLS, "<mask>"}
        chosen &= np.array([symbol not in special for symbol in vocabulary.symbols])
    rows = np.concatenate([np.flatnonzero(chosen), np.arange(len(vocabulary), len(vocabulary) + appended)])
    rows = rows[rows < len(vocabulary)] if over == "words" else rows
    if not len(rows):
        raise OptionError("--average-over words: the dictionary has no words, only specials and fillers; leave it out")
    return rows


def new_dictionary(path: str, placement: Placement) -> str:
    """The text of `dict.txt` with the new words, count 1; every other line as it was."""
    lines = Path(path).read_text(encoding="utf-8").split("\n")  # ends of lines are what fairseq takes for some
    places = [number for number, line in enumerate(lines) if line.strip()]
    if len(places) != placement.described - len(SPECIAL_SYMBOLS):
        raise DataError(f"{path}: it changed while it was read; run the command again")
    added = []
    for word, row in zip(placement.words, placement.rows):
        if row < placement.described:
            lines[places[row - len(SPECIAL_SYMBOLS)]] = f"{word} 1"
        else:
            added.append(f"{word} 1")
    return "\n".join([*(line for line in lines if line.strip()), *added, ""])


# ----------------------------------------------------------------------------------------------------------------------
# What a checkpoint says about its dictionary beside the tensors: languages, and the record of `--embed-init`.


def expand_settings(
    state: dict[str, Any],
    placement: RowChange,
    symbols: tuple[Sequence[str], Sequence[str]],
    languages: tuple[str, str] | None,
    dictionaries: Collection[Path] = (),
) -> dict[str, Any]:
    """The checkpoint with a copy of `cfg` and `args` that is true of the new dictionary; its tensors are as they were.

    symbols: of the old and the new dictionary, in the order of rows. languages: (source, target) to name where the
    checkpoint does not, so that `from_pretrained` needs no names of data files; None: nothing is known. dictionaries:
    the new ones, for options that name the old ones (--fixed-dictionary).
    """
    state = {**state, "cfg": copy.deepcopy(state.get("cfg")), "args": copy.deepcopy(state.get("args"))}
    cfg = state["cfg"] if isinstance(state["cfg"], dict) else {}
    for node in (cfg.get("task"), state["args"]):
        options = vars(node) if isinstance(node, Namespace) else node if isinstance(node, dict) else {}
        for name, language in zip(("source_lang", "target_lang"), languages or ()):
            options.update({name: language} if name in options and not options[name] else {})
        for name, path in itertools.product(("source_dict", "target_dict", "fixed_dictionary"), dictionaries):
            options.update({name: str(path)} if Path(options.get(name) or "").name == path.name else {})
    for node in option_nodes(state):
        if isinstance(node.get("embed_init_record"), str):
            node["embed_init_record"] = _expand_record(node["embed_init_record"], placement, symbols)
    return state


def _expand_record(text: str, placement: RowChange, symbols: tuple[Sequence[str], Sequence[str]]) -> str:
    """`--embed-init-freeze SLOT:known` asks the record which rows had vectors: not the new ones."""
    try:
        record = parse_json(text, "the record of --embed-init", CheckpointError)
        slots = list(record["slots"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return text  # of nobody we know
    old, new = (symbols_digest(names) for names in symbols)
    for slot in slots:
        if slot.get("dictionary") == old and slot.get("rows") == placement.old_size:
            known = unpack_rows(slot["known_rows"], slot["rows"])[placement.source] & (placement.source >= 0)
            slot |= {"dictionary": new, "rows": placement.new_size, "known_rows": pack_rows(known)}
    return json.dumps(record)


# ----------------------------------------------------------------------------------------------------------------------

RESET_REMEDY = "add --reset-optimizer to leave the optimiser's state out (training goes on from the weights alone)"
_MOST_FROZEN = 4  # tables of embeddings of one model, when it is looked for those that were
#: (name, shape) of parameters
Parameters = Sequence[tuple[str, tuple[int, ...]]]


def with_rows(old: Tensor, placement: RowChange, new: np.ndarray | None = None) -> Tensor:
    """The tensor (old N, ...) with its rows of afterwards, (new N, ...). new: those of new words; None: zeros."""
    import torch

    result = old[torch.from_numpy(placement.source).clamp(min=0)]
    if len(placement.rows):
        rows = torch.from_numpy(placement.rows)
        result[rows] = 0 if new is None else torch.from_numpy(np.ascontiguousarray(new)).to(old.dtype)
    return result


def averages_in(state: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Averages of the model over updates in a checkpoint (--store-ema, --ema-fp32): name -> state dict."""
    extra = state.get("extra_state")
    held = {name: extra.get(name) for name in ("ema", "ema_fp32_params")} if isinstance(extra, Mapping) else {}
    return {name: weights for name, weights in held.items() if isinstance(weights, Mapping) and weights}


def expand_weights(
    weights: Mapping[str, Any],
    tables: Sequence[DictionaryTable],
    placement: RowChange,
    new: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    """A state dict with other tables; what was one tensor stays one. new: name of a table -> rows of the new words.

    Raises OptionError where the precision of a table cannot hold a new row.
    """
    import torch

    expanded = dict(weights)
    for table in tables:
        keys = table.keys_in(weights)
        if keys:
            added = new[table.name] if len(placement.rows) else None
            longer = with_rows(weights[keys[0]], placement, added)
            if not torch.isfinite(longer[torch.from_numpy(placement.rows)]).all():
                raise OptionError(
                    f"--noise-scale: a new row of {keys[0]} is too large for {longer.dtype}; choose a smaller scale"
                )
            expanded.update((key, longer) for key in keys)
    return expanded


def expand_optimizer(
    path: str, state: Mapping[str, Any], model: nn.Module, tables: Sequence[DictionaryTable], placement: RowChange
) -> dict[str, Any]:
    """fairseq's `last_optimizer_state` for the longer tables: what has a row a symbol gets rows of zeros.

    Of Adafactor's factored second moments the new rows get the mean: with zeros its first steps would be as large as
    1 / sqrt(1 - beta2). Raises CheckpointError with a remedy for an optimiser that keeps something else.
    """
    groups, moments = state.get("param_groups"), state.get("state")
    if not isinstance(groups, list) or not isinstance(moments, Mapping) or not _is_torchs(groups, moments):
        raise CheckpointError(f"{path}: the state of its optimiser is of several or unknown ones; {RESET_REMEDY}")
    names = {name for table in tables for name in table.names}
    parameters = [(name, tuple(value.shape)) for name, value in model.named_parameters()]
    count = sum(len(group["params"]) for group in groups)
    if count == 1 and len(parameters) > 1:
        flat = {key: _flat(path, held, parameters, names, placement) for key, held in moments.items()}
        return {**state, "state": flat}
    trained = _trained(path, parameters, count, moments, names, embedding_names(model))
    expanded = {
        key: _moments(path, held, *trained[key], placement) if key < len(trained) and trained[key][0] in names else held
        for key, held in moments.items()
    }
    return {**state, "state": expanded}


def _is_torchs(groups: Sequence[Any], moments: Mapping[Any, Any]) -> bool:
    """Are they groups of parameters, and what is kept for each by its number, as torch's optimisers save them?"""
    listed = all(isinstance(group, Mapping) and isinstance(group.get("params"), list) for group in groups)
    return listed and all(isinstance(key, int) and isinstance(held, Mapping) for key, held in moments.items())


def _trained(
    path: str,
    parameters: Parameters,
    count: int,
    moments: Mapping[int, Mapping[str, Any]],
    names: set[str],
    embeddings: set[str],
) -> Parameters:
    """The parameters the optimiser counts: all, or all but tables that were frozen; a criterion's may follow.

    names: what is expanded. embeddings: of all tables, since that of the other side may be frozen, too.
    CheckpointError unless the choices that agree with the shapes have what is expanded at the same places.
    """
    frozen = [name for name, _ in parameters if name in names or name in embeddings]
    fitting = []
    for number in range(min(len(frozen), _MOST_FROZEN) + 1):
        for left_out in itertools.combinations(frozen, number):
            trained = [parameter for parameter in parameters if parameter[0] not in left_out]
            if len(trained) <= count and _agree(trained, moments):
                fitting.append(trained)
        if fitting:
            break
    places = [[(key, shape) for key, (name, shape) in enumerate(trained) if name in names] for trained in fitting]
    if not places or any(found != places[0] for found in places):
        raise CheckpointError(
            f"{path}: the state of its optimiser is not that of the model's parameters; {RESET_REMEDY}"
        )
    return fitting[0]


def _agree(parameters: Parameters, moments: Mapping[int, Mapping[str, Any]]) -> bool:
    return all(
        _elementwise(value, parameters[key][1]) or _factor(name, value, parameters[key][1]) is not None
        for key, held in moments.items()
        if isinstance(key, int) and key < len(parameters)
        for name, value in held.items()
        if _is_moment(value)
    )


def _is_moment(value: Any) -> bool:
    return hasattr(value, "dim") and value.dim() > 0


def _elementwise(value: Tensor, shape: tuple[int, ...]) -> bool:
    return tuple(value.shape) == shape


def _factor(name: str, value: Tensor, shape: tuple[int, ...]) -> str | None:
    """Adafactor: 'row' has a number a row of a matrix, 'col' one a column."""
    if len(shape) == 2 and name in ("exp_avg_sq_row", "exp_avg_sq_col"):
        wanted = shape[:1] if name.endswith("row") else shape[1:]
        return name[-3:] if tuple(value.shape) == wanted else None
    return None


def _moments(
    path: str, held: Mapping[str, Any], name: str, shape: tuple[int, ...], placement: RowChange
) -> dict[str, Any]:
    """What is kept for one table."""
    expanded = {}
    for key, value in held.items():
        if not _is_moment(value) or _factor(key, value, shape) == "col":
            expanded[key] = value
        elif _factor(key, value, shape) == "row":
            mean = value.double().mean().item()
            expanded[key] = with_rows(value, placement, np.full(len(placement.rows), mean))
        else:
            expanded[key] = with_rows(value, placement)
    return expanded


def _flat(
    path: str, held: Mapping[str, Any], parameters: Parameters, names: set[str], placement: RowChange
) -> dict[str, Any]:
    """One vector of all parameters, one behind the other."""
    sizes = [int(np.prod(shape)) for _, shape in parameters]
    expanded: dict[str, Any] = {}
    for key, value in held.items():
        if _is_moment(value) and (value.dim() != 1 or len(value) < sum(sizes)):
            raise CheckpointError(
                f"{path}: its optimiser keeps {key} of {tuple(value.shape)} for {sum(sizes)} numbers of the model; "
                f"tables that were frozen cannot be told apart in it; {RESET_REMEDY}"
            )
        expanded[key] = _longer(value, parameters, sizes, names, placement) if _is_moment(value) else value
    return expanded


def _longer(value: Tensor, parameters: Parameters, sizes: list[int], names: set[str], placement: RowChange) -> Tensor:
    import torch

    *parts, rest = value.split([*sizes, len(value) - sum(sizes)])
    longer = [
        with_rows(part.view(shape), placement).reshape(-1) if name in names else part
        for part, (name, shape) in zip(parts, parameters)
    ]
    return torch.cat([*longer, rest])
