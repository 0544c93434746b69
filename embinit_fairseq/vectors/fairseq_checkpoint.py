"""fairseq checkpoints, with the `dict.txt` beside them, as a source of vectors.

Letters: V rows that were read, D columns.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from embinit_fairseq.errors import CheckpointError, OptionError
from embinit_fairseq.vectors.binary import check_dimension, check_finite, existing_file
from embinit_fairseq.vectors.table import Origin, VectorTable, Wanted
from embinit_fairseq.vectors.torch_file import TorchMatrix, load_safely, matrices
from embinit_fairseq.vocab.dictionary import SPECIAL_SYMBOLS, is_filler, read_dictionary

# ---- Which row of a fairseq checkpoint's matrix belongs to which symbol, read without fairseq ------------------------
# Row order is that of fairseq's Dictionary: `<s>`, `<pad>`, `</s>`, `<unk>`, the lines of `dict.txt`, and then what the
# task appends: `<mask>`, language tags.

#: Tasks that append one row, `<mask>`.
_MASK_TASKS = ("masked_lm", "denoising", "multilingual_masked_lm", "sentence_prediction", "sentence_ranking")
#: Tasks that append language tags and perhaps `<mask>`: rows without a name here.
_TAG_TASKS = (
    "multilingual_denoising",
    "multilingual_language_modeling",
    "multilingual_translation",
    "online_backtranslation",
    "semisupervised_translation",
    "translation_from_pretrained_bart",
    "translation_multi_simple_epoch",
)


@dataclass
class FairseqRows:
    """words: symbol -> row, without specials and fillers. specials: role -> row. size: rows the dictionary needs."""

    size: int
    words: dict[str, int]
    specials: dict[str, int] = field(default_factory=dict)
    overwritten: int = 0


def read_rows(file: Path) -> FairseqRows:
    """The rows that `dict.txt` (`symbol count [#fairseq:overwrite]` a line) describes; CheckpointError if malformed."""
    vocabulary = read_dictionary(file, "", CheckpointError)
    rows = {symbol: row for row, symbol in enumerate(vocabulary.symbols)}
    specials = {role: row for row, role in vocabulary.roles.items()}  # an overwritten <s> stays row 0 for fairseq
    if "<mask>" in rows:
        specials["mask"] = rows["<mask>"]
    words = {s: row for s, row in rows.items() if s not in (*SPECIAL_SYMBOLS, "<mask>") and not is_filler(s)}
    return FairseqRows(len(vocabulary), words, specials, len(vocabulary) - len(rows))


def fit_rows(rows: FairseqRows, file: Path, checkpoint: str, table: str, count: int, task: str) -> None:
    """Name what the task appended; CheckpointError unless dictionary and matrix (of `count` rows) belong together."""
    more = count - rows.size
    if more == 0 or (more > 0 and task in _TAG_TASKS):
        return
    if more == 1 and task in _MASK_TASKS and "mask" not in rows.specials:
        rows.specials["mask"] = rows.size
        return
    raise CheckpointError(
        f"{checkpoint}: {table} has {count} rows, but {file.name} beside it describes {rows.size} (4 specials and its "
        f"lines; task {task or 'unknown'}); put the dictionary of this checkpoint's training data beside it"
    )


def options_of(checkpoint: Mapping[str, Any], part: str) -> dict[str, Any]:
    """The options of `model`, `task`, `checkpoint`, ... that a training was started with: from `cfg` (fairseq >= 0.10),
    or all of `args` (before). {} where a checkpoint has none, or something else in their place."""
    cfg = checkpoint.get("cfg")
    return _mapping(cfg.get(part) if isinstance(cfg, Mapping) else None) or _mapping(checkpoint.get("args"))


def _mapping(options: Any) -> dict[str, Any]:
    if isinstance(options, Namespace):
        return vars(options)
    return dict(options) if isinstance(options, Mapping) else {}


def updates_of(checkpoint: Mapping[str, Any]) -> int | None:
    """The updates of the training; None where a checkpoint does not say."""
    history = checkpoint.get("optimizer_history")
    last = history[-1] if isinstance(history, list) and history else None
    updates = last.get("num_updates") if isinstance(last, Mapping) else None
    return updates if isinstance(updates, int) else None


def task_setting(checkpoint: dict[str, Any], name: str) -> str | None:
    """A setting of the training task that is text; None if it is not there."""
    options = options_of(checkpoint, "task")
    values = (options.get(key) for key in (("_name", "task") if name == "task" else (name,)))
    return next((value for value in values if isinstance(value, str) and value), None)


def find_dictionary(checkpoint: Path, language: str | None, data: str | None, count: int, task: str) -> Path:
    """The dictionary beside a checkpoint whose embedding matrix has `count` rows; CheckpointError if there is none.

    `dict.<language>.txt`, else `dict.txt`. fairseq often does not record the languages (it infers them from the names
    of the data): then the one `dict.*.txt` whose size fits the embedding matrix.
    """
    names = ([f"dict.{language}.txt"] if language and Path(language).name == language else []) + ["dict.txt"]
    for name in names:
        if (checkpoint.parent / name).is_file():
            return checkpoint.parent / name
    others = [] if language else sorted(checkpoint.parent.glob("dict.*.txt"))
    fitting = {file.read_bytes(): file for file in reversed(others) if _fits(file, count, task)}
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    if others:
        listed = ", ".join(file.name for file in others)
        raise CheckpointError(
            f"{checkpoint}: which dictionary belongs to its matrix of {count} rows? It names no languages, and of "
            f"{listed} {'more than one fits' if fitting else 'none fits'}; copy the right one to dict.txt beside it"
        )
    origin = f" (it was trained with the data in {data})" if data else ""
    raise CheckpointError(
        f"{checkpoint}: no dictionary beside it (looked for {' and '.join(names)}); copy it from the folder of "
        f"binarised data{origin}"
    )


def _fits(file: Path, count: int, task: str) -> bool:
    try:
        fit_rows(read_rows(file), file, "", "", count, task)
    except CheckpointError:
        return False
    return True


# ----------------------------------------------------------------------------------------------------------------------

#: side -> names of its matrix, `_p`: the second one of Duo. RoBERTa's encoder was called a decoder before fairseq 0.10.
_TABLES = {
    "encoder": (
        "encoder.embed_tokens.weight",
        "encoder.sentence_encoder.embed_tokens.weight",
        "decoder.sentence_encoder.embed_tokens.weight",
        "encoder.embedding.embed_tokens.weight",
        "embed_tokens.weight",
    ),
    "encoder_p": ("encoder.embedding.embed_tokens_p.weight", "embed_tokens_p.weight"),
    "decoder": ("decoder.embed_tokens.weight", "decoder.embedding.embed_tokens.weight"),
    "decoder_p": ("decoder.embedding.embed_tokens_p.weight",),
}
_LANGUAGE = {"encoder": "source_lang", "decoder": "target_lang"}


class FairseqCheckpoint:
    """An embedding matrix of a checkpoint that fairseq-train wrote, with `dict.txt` or `dict.<language>.txt` beside it.

    dim: the dimension that is needed (None: any). strict: without effect, since nothing in a checkpoint may be broken.
    side: which matrix; "encoder" (also the default), "decoder", "encoder_p" or "decoder_p". A model with one
    has it on both sides, and one with a single stream has it for both streams.
    Raises CheckpointError for a file that is none or does not fit its dictionary, DimensionError for another dimension.
    """

    format = "fairseq"

    def __init__(self, path: str, dim: int | None = None, strict: bool = False, side: str | None = None) -> None:
        self.path = os.fspath(path)
        if side not in (None, *_TABLES):
            raise OptionError(
                f"{self.path}: of a fairseq checkpoint the matrix of {', '.join(_TABLES)} can be taken, not of {side!r}"
            )
        file = existing_file(self.path)
        checkpoint: Any = load_safely(file, CheckpointError, "a fairseq checkpoint")
        self.table, slot, self._matrix = self._find_table(checkpoint, side or "encoder")
        self._side = slot if self._has_both(checkpoint["model"]) else ""
        self.rows, self.dim = self._matrix.shape
        check_dimension(f"{self.path} ({self.table})", self.dim, dim)
        language = task_setting(checkpoint, _LANGUAGE[slot.removesuffix("_p")])
        self._task = task_setting(checkpoint, "task") or ""
        self.dictionary = find_dictionary(file, language, task_setting(checkpoint, "data"), self.rows, self._task)

    def _find_table(self, checkpoint: object, side: str) -> tuple[str, str, TorchMatrix]:
        """(name, side, matrix) of the embedding matrix of this side, or of the only one."""
        state = checkpoint.get("model") if isinstance(checkpoint, dict) else None
        if not isinstance(state, dict):
            raise CheckpointError(
                f"{self.path}: not a fairseq checkpoint (no 'model' in it); name a checkpoint*.pt that fairseq-train "
                "wrote, or a directory for Hugging Face models"
            )
        available = matrices(state)
        for candidate in (side, side.removesuffix("_p"), *_LANGUAGE):
            for name in _TABLES[candidate]:
                if name in available:
                    return name, candidate, available[name]
        largest = sorted(available, key=lambda name: -available[name].shape[0])[:8]
        raise CheckpointError(
            f"{self.path}: no embedding matrix with a known name (like {_TABLES['encoder'][0]}); its largest matrices: "
            f"{', '.join(largest) or 'none'}; write the one you mean to an .npz file with words and matrix"
        )

    @staticmethod
    def _has_both(state: Collection[str]) -> bool:
        """Of encoder and decoder."""
        return all(any(name in state for name in _TABLES[side]) for side in _LANGUAGE)

    def read(self, wanted: Wanted | None = None) -> VectorTable:
        """The rows of the wanted symbols (None: all of dict.txt), ordered by row; special rows by role."""
        rows = read_rows(self.dictionary)
        fit_rows(rows, self.dictionary, self.path, self.table, self.rows, self._task)
        chosen = sorted((row, word) for word, row in rows.words.items() if wanted is None or word in wanted)
        words = [word for _, word in chosen]
        roles = list(rows.specials)
        places = [row for row, _ in chosen] + [rows.specials[role] for role in roles]
        matrix = self._matrix.take(np.array(places, dtype=np.int64))
        check_finite(self.path, [*words, *roles], matrix)
        specials = {role: matrix[len(words) + index].copy() for index, role in enumerate(roles)}
        origin = Origin(self.path, self.format, self.rows, self.dim, duplicates=rows.overwritten, side=self._side)
        return VectorTable(words, matrix[: len(words)], origin, specials)

    def compose(self, surfaces: Sequence[str]) -> dict[str, np.ndarray]:
        """A checkpoint does not say how words are cut: OptionError."""
        raise OptionError(
            f"{self.path}: a fairseq checkpoint does not say how to cut words into its symbols, so --embed-init-oov "
            "subword cannot be used with it. Choose xavier, mean, gaussian or zeros."
        )
