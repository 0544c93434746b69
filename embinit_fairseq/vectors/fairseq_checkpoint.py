"""Read fairseq checkpoints, with the `dict.txt` in the same folder, as vectors.

Rows are ordered as in fairseq's Dictionary: `<s>`, `<pad>`, `</s>`, `<unk>`, the lines of `dict.txt`, and then the rows
that the task appends: `<mask>`, language tags. Letters: V rows that were read, D columns.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embinit_fairseq.checkpoint_file import initialisation_record, load_safely, options_of
from embinit_fairseq.errors import CheckpointError, OptionError
from embinit_fairseq.vectors.other_tools import refused_of_other_tool, state_of_other_tool, words_with_matrix
from embinit_fairseq.vectors.table import (
    FIRST_ROWS,
    Origin,
    VectorReader,
    VectorTable,
    Wanted,
    check_dimension,
    check_finite,
)
from embinit_fairseq.vectors.torch_matrices import TorchMatrix, matrices
from embinit_fairseq.vocab.dictionary import are_ids, read_dictionary, symbols_digest

logger = logging.getLogger(__name__)

# ---- Rows of the dictionary -----------------------------------------------------------------------------------------

#: tasks that append one row, `<mask>`
_MASK_TASKS = ("masked_lm", "denoising", "multilingual_masked_lm", "sentence_prediction", "sentence_ranking")
#: tasks that append rows without a name here, language tags and perhaps `<mask>` -> option with the languages, how a
#: tag is spelled, options that ask for tags (none: the task always has tags), whether `<mask>` is appended
_TAG_TASKS: dict[str, tuple[str, str, tuple[str, ...], bool]] = {
    "multilingual_denoising": ("langs", "[{}]", ("add_lang_token",), True),
    "multilingual_language_modeling": ("langs", "<{}>", ("add_bos_token",), False),
    "multilingual_translation": ("lang_pairs", "__{}__", ("encoder_langtok", "decoder_langtok"), False),
    "online_backtranslation": ("mono_langs", "__{}__", (), True),
    "semisupervised_translation": ("lang_pairs", "__{}__", ("encoder_langtok", "decoder_langtok"), False),
    "translation_from_pretrained_bart": ("langs", "[{}]", (), True),
    "translation_multi_simple_epoch": ("langs", "__{}__", (), False),
}
#: the task that other versions of fairseq change, and how many rows more they have: NLLB's has tags of the data, which
#: not every checkpoint records, M2M-100's fillers
_CHANGED_TASK, _MORE_ROWS = "translation_multi_simple_epoch", (3, 8)
_NLLB_TAGS = ("<MINED_DATA>", "<MMT_BT_DATA>", "<SMT_BT_DATA>")


def task_name(task: Mapping[str, Any]) -> str:
    """Return the name of a task from its options."""
    return task.get("_name") or task.get("task") or ""


def _appended_symbols(task: Mapping[str, Any]) -> set[str] | None:
    """Return the symbols that one of _TAG_TASKS appends to its dictionary, None if its options do not name them."""
    name = task_name(task)
    option, tag, switches, has_mask = _TAG_TASKS[name]
    languages = task.get(option)
    if isinstance(languages, str):
        languages = [language for language in languages.split(",") if language]
    if not languages or any(switch not in task for switch in switches):
        return None
    if option == "lang_pairs":
        languages = [language for pair in languages for language in pair.split("-")]
    if switches and not any(task[switch] for switch in switches):
        languages = []
    if task.get("lang_tok_style") == "mbart":  # an option of _CHANGED_TASK
        tag, has_mask = "[{}]", True
    symbols = [tag.format(language) for language in languages] + ["<mask>"] * has_mask
    if task.get("add_data_source_prefix_tags"):
        symbols += _NLLB_TAGS
    return set(symbols)


class FairseqRows(NamedTuple):
    """The rows of a dictionary.

    symbols: the symbol of each row. words: symbol -> row, without specials and fillers. specials: role -> row.
    overwritten: symbols that a later line of the file repeats.
    """

    symbols: list[str]
    words: dict[str, int]
    specials: dict[str, int]
    overwritten: int

    def are_of(self, digest: str | None, count: int) -> bool:
        """Return False if a training's dictionary with as many rows had other symbols. digest: hash of its symbols."""
        symbols = [*self.symbols, *["<mask>"] * (self.specials.get("mask") == len(self.symbols))]
        return len(symbols) != count or digest in (None, symbols_digest(symbols))


def read_rows(file: Path, count: int | None = None, task: Mapping[str, Any] | None = None) -> FairseqRows:
    """Return the rows that a `dict.txt` describes.

    Args:
        file: `symbol count [#fairseq:overwrite]` per line.
        count: rows of the embedding matrix, None if it is not known.
        task: options of the training's task, which may append rows.

    Raises:
        CheckpointError: if the file is malformed, or dictionary and matrix do not belong together.
    """
    vocabulary = read_dictionary(file, "", CheckpointError)
    rows = {symbol: row for row, symbol in enumerate(vocabulary.symbols)}
    specials = {role: row for row, role in vocabulary.roles.items() if role != "extra"}
    words = {symbol: row for symbol, row in rows.items() if vocabulary.regular[row]}
    size = len(vocabulary)
    name = task_name(task or {})
    appended = 0 if count is None else count - size
    if appended == 1 and name in _MASK_TASKS and "mask" not in specials:
        specials["mask"] = size
    elif appended:
        _check_appended(file, size, appended, task or {}, rows)
    return FairseqRows(list(vocabulary.symbols), words, specials, size - len(rows))


def _check_appended(file: Path, size: int, appended: int, task: Mapping[str, Any], rows: Mapping[str, int]) -> None:
    """Raise CheckpointError unless a task appends as many rows: after a lost line, words get other words' rows.

    Args:
        file: the dictionary, which describes `size` rows.
        appended: rows of the matrix after these.
        task: options of the task.
        rows: symbol -> row; a symbol of the dictionary is not appended.
    """
    name = task_name(task)
    symbols = _appended_symbols(task) if name in _TAG_TASKS else set()
    expected = None if symbols is None else len(symbols - rows.keys())
    if appended == expected or (appended > 0 and expected is None):
        return
    tags = f", and its task appends {expected}" if expected else ""
    description = (
        f"the embedding matrix has {size + appended} rows, but {file.name} in the same folder describes {size}{tags}"
    )
    more = appended - (expected or 0)
    if appended > 0 and name == _CHANGED_TASK and (more < 0 or more in _MORE_ROWS):
        logger.warning(
            "%s; if lines of the dictionary were removed or added, the words after them get wrong rows", description
        )
        return
    raise CheckpointError(
        f"{description} (4 specials and its lines; task {name or 'unknown'}); put the dictionary of this checkpoint's "
        "training data there, without removing or adding lines"
    )


def find_dictionary(
    checkpoint: Path, language: str | None, data: str | None, count: int, task: Mapping[str, Any], digest: str | None
) -> Path:
    """Return the dictionary in the folder of a checkpoint: `dict.<language>.txt`, else `dict.txt`.

    fairseq often does not record the languages (it infers them from the names of the data). Then the one `dict.*.txt`
    is taken whose size fits the embedding matrix.

    Args:
        checkpoint: the file.
        language: language of the matrix, if it is recorded.
        data: folder of the training data, for messages.
        count: rows of the matrix.
        task: options of the training's task.
        digest: digest of the training's dictionary, if it is recorded.

    Raises:
        CheckpointError: if there is none, or several fit.
    """
    folder = checkpoint.parent
    names = [f"dict.{language}.txt"] * bool(language) + ["dict.txt"]
    if named := [folder / name for name in names if (folder / name).is_file()]:
        return named[0]
    others = [] if language else sorted(folder.glob("dict.*.txt"))
    fitting = {
        file.read_bytes(): file for file in reversed(others) if _fits(file, count, task, digest)
    }  # joined ones are equal
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    if others:
        listed = ", ".join(file.name for file in others)
        raise CheckpointError(
            f"{checkpoint}: which dictionary belongs to its matrix of {count} rows? It names no languages, and of "
            f"{listed} {'more than one fits' if fitting else 'none fits'}; copy the right one to dict.txt in its folder"
        )
    origin = f" (it was trained with the data in {data})" if data else ""
    raise CheckpointError(
        f"{checkpoint}: no dictionary in its folder (looked for {' and '.join(names)}); copy it from the folder of "
        f"binarised data{origin}"
    )


def _fits(file: Path, count: int, task: Mapping[str, Any], digest: str | None) -> bool:
    try:
        return read_rows(file, count, task).are_of(digest, count)
    except CheckpointError:
        return False


# ---- The reader -----------------------------------------------------------------------------------------------------

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


class FairseqCheckpoint(VectorReader):
    """An embedding matrix of a checkpoint, with `dict.txt` or `dict.<language>.txt` in the same folder.

    Args:
        path: the checkpoint.
        dim: the expected D (None: any).
        strict: has no effect; nothing in a checkpoint may be broken.
        side: "encoder" (the default), "decoder", "encoder_p" or "decoder_p". A model with one matrix has it on both
            sides, a model with one stream has it for both streams.

    Raises:
        CheckpointError: if the file is not a checkpoint or does not fit its dictionary.
    """

    format = "fairseq"

    def __init__(self, path: str, dim: int | None = None, strict: bool = False, side: str | None = None) -> None:
        self.path = path
        if side not in (None, *_TABLES):
            raise OptionError(f"{path}: a fairseq checkpoint has the sides {', '.join(_TABLES)}, not {side!r}")
        try:
            checkpoint: Any = load_safely(Path(path), CheckpointError, "a fairseq checkpoint")
        except CheckpointError as error:
            raise CheckpointError(refused_of_other_tool(path, str(error))) from error
        state = checkpoint.get("model") if isinstance(checkpoint, dict) else None
        if not isinstance(state, dict):
            raise CheckpointError(f"{path}: {state_of_other_tool(path, checkpoint)}")
        available = matrices(state)
        if not available.keys() & {*itertools.chain(*_TABLES.values())} and (
            remedy := words_with_matrix(path, checkpoint)  # XLM's
        ):
            raise CheckpointError(f"{path}: {remedy}")
        self.table, slot, self._matrix = self._find_table(available, side or "encoder")
        has_both = all(any(name in state for name in _TABLES[half]) for half in _LANGUAGE)
        self._side = slot if has_both else ""
        self.rows, self.dim = self._matrix.shape
        check_dimension(f"{path} ({self.table})", self.dim, dim)
        task = options_of(checkpoint, "task")
        self._task = task
        language = task.get(_LANGUAGE[slot.removesuffix("_p")])
        slots = (initialisation_record(checkpoint) or {"slots": {}})["slots"]
        digests = {name: recorded["dictionary"] for name, recorded in slots.items() if "dictionary" in recorded}
        self._digest = digests.get(slot) or (next(iter(digests.values())) if len(digests) == 1 else None)
        self.dictionary = find_dictionary(Path(path), language, task.get("data"), self.rows, task, self._digest)

    def _find_table(self, available: Mapping[str, TorchMatrix], side: str) -> tuple[str, str, TorchMatrix]:
        """Return (name, side, matrix) of the embedding matrix of this side, or of the only one."""
        for candidate in (side, side.removesuffix("_p"), *_LANGUAGE):
            for name in _TABLES[candidate]:
                if name in available:
                    return name, candidate, available[name]
        largest = sorted(available, key=lambda name: -available[name].shape[0])[:8]
        raise CheckpointError(
            f"{self.path}: no embedding matrix with a known name (like {_TABLES['encoder'][0]}); its largest matrices: "
            f"{', '.join(largest) or 'none'}; write the one you mean to an .npz file with words and matrix"
        )

    @cached_property
    def _symbols(self) -> FairseqRows:
        """The symbols of dict.txt, read when they are first needed."""
        try:
            rows = read_rows(self.dictionary, self.rows, self._task)
        except CheckpointError as error:
            raise CheckpointError(f"{self.path}: {self.table}: {error}") from error
        if not rows.are_of(self._digest, self.rows):
            raise CheckpointError(
                f"{self.path}: {self.table}: {self.dictionary} has as many symbols as its training's dictionary, but "
                "others or in another order, so that words would get the rows of others; put the dict.txt of its "
                "training there"
            )
        return rows

    def first_words(self) -> list[str]:
        """Return the words of the first rows."""
        return list(itertools.islice(self._symbols.words, FIRST_ROWS))

    @property
    def has_ids(self) -> bool:
        """Return True if the words are ids of subwords, as RoBERTa's and BART's are."""
        return are_ids([*self._symbols.words])

    def read(self, wanted: Wanted | None = None) -> VectorTable:
        """Return the rows of the wanted symbols (None: all of dict.txt), ordered by row; special rows by role."""
        rows = self._symbols
        chosen = sorted((row, word) for word, row in rows.words.items() if wanted is None or word in wanted)
        words, roles = [word for _, word in chosen], list(rows.specials)
        places = [row for row, _ in chosen] + [*rows.specials.values()]
        matrix = self._matrix.take(np.array(places, dtype=np.int64))
        check_finite(self.path, [*words, *roles], matrix)
        specials = {role: row.copy() for role, row in zip(roles, matrix[len(words) :])}
        origin = Origin(self.path, self.format, self.rows, self.dim, duplicates=rows.overwritten, side=self._side)
        return VectorTable(words, matrix[: len(words)], origin, specials)
