"""The list of new words, one a line, and how they are cut into pieces that a dictionary has."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from embinit_fairseq.bounded import read_lines
from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.errors import CheckpointError, DataError, OptionError, counted
from embinit_fairseq.expand.state import AVERAGES
from embinit_fairseq.files import check_is_file
from embinit_fairseq.init.new_rows import METHODS
from embinit_fairseq.init.strategies import check_seed
from embinit_fairseq.vocab.dictionary import is_filler
from embinit_fairseq.vocab.tokens import PREFIX, detect_style

# ---- The options of an expansion, and the checkpoint it begins with -------------------------------------------------

#: what else than tensors stands in a checkpoint, and of which types it may be
_KINDS = {
    "cfg": (dict,),
    "args": (Namespace, dict),
    "extra_state": (dict,),
    "last_optimizer_state": (dict,),
    "optimizer_history": (list,),
}


@dataclass(frozen=True)
class ExpandRequest:
    """The options of `embinit expand-vocab`."""

    checkpoint: str
    dictionary: str
    words: str
    method: str
    output: str
    side: str | None = None
    seed: int = 1
    noise_scale: float | None = None
    average_over: str = "all"
    bpe_codes: str | None = None
    sentencepiece_model: str | None = None
    segment_text: tuple[str, ...] = ()
    user_dir: str | None = None
    reset_optimizer: bool = False
    force: bool = False

    @property
    def inputs(self) -> dict[str, str | None]:
        """Option -> file that is read."""
        names = ("checkpoint", "dictionary", "words", "bpe_codes", "sentencepiece_model")
        texts = {f"segment_text {number}": path for number, path in enumerate(self.segment_text, start=1)}
        return {**{name: getattr(self, name) for name in names}, **texts}


def check_texts(paths: Sequence[str]) -> None:
    """Of --verify, before any work: DataError for one that is not there."""
    for path in paths:
        check_is_file(path, "--verify", missing="give a tokenised text, a sentence a line")


def check_options(request: ExpandRequest) -> None:
    """Raises OptionError for values that cannot be used."""
    for flag, value, choices in (("method", request.method, METHODS), ("average-over", request.average_over, AVERAGES)):
        if value not in choices:
            raise OptionError(f"--{flag} {value}: choose from {', '.join(choices)}")
    if request.segment_text and request.bpe_codes is None and request.sentencepiece_model is None:
        raise OptionError("--segment-text: nothing says how text is cut; give --bpe-codes or --sentencepiece-model")
    check_seed(request.seed, "--seed")
    scale = request.noise_scale
    if scale is not None and METHODS[request.method].scale is None:
        raise OptionError(f"--noise-scale {scale}: --method {request.method} has no noise; leave it out")
    if scale is not None and not 0 <= scale < 1e10:
        raise OptionError(f"--noise-scale {scale}: a factor of the covariance, 0 to below 1e10 (1: as the old rows)")


def read_checkpoint(path: str) -> dict[str, Any]:
    """The checkpoint; CheckpointError unless it holds a whole model."""
    import torch

    state = load_checkpoint(path)
    weights = state.get("model")
    if not isinstance(weights, dict) or not weights or not all(isinstance(v, torch.Tensor) for v in weights.values()):
        raise CheckpointError(f"{path}: not a fairseq checkpoint (no 'model' in it); name one that fairseq-train wrote")
    if not state.get("cfg") and not state.get("args"):
        raise CheckpointError(f"{path}: it does not say how its model was built (no 'cfg'); name one of fairseq-train")
    for name, kinds in _KINDS.items():
        if not isinstance(state.get(name), (*kinds, type(None))):
            raise CheckpointError(
                f"{path}: its {name!r} is of type {type(state[name]).__name__}, not what fairseq-train writes; it is "
                "damaged, name another checkpoint"
            )
    if "fsdp_metadata" in state:
        raise CheckpointError(f"{path}: a part of a model (--ddp-backend fully_sharded); consolidate the parts first")
    return state


# ----------------------------------------------------------------------------------------------------------------------

#: word -> its pieces
Segmenter = Callable[[str], list[str]]


@dataclass(frozen=True)
class NewWord:
    """One line of the list. pieces: empty if the line has none."""

    text: str
    line: int
    pieces: tuple[str, ...] = ()


def read_words(path: str, symbols: Collection[str]) -> list[NewWord]:
    """Read `word` or `word<TAB>piece piece ...` a line; empty lines are skipped.

    symbols: of the dictionary, and those that the task appends. Raises DataError naming file and line for a word that
    is there already, stands twice, or cannot be a symbol of a dictionary.
    """
    words: dict[str, NewWord] = {}
    present: list[tuple[int, str]] = []
    for number, line in read_lines(path, DataError, "--words", encoding="utf-8-sig"):
        if not line.strip():
            continue
        word, _, pieces = line.partition("\t")
        word = word.strip()
        if word in symbols:
            present.append((number, word))
            continue
        _check(path, number, word)
        if word in words:
            raise DataError(f"{path}:{number}: {word!r} stands in line {words[word].line} already; remove one of them")
        words[word] = NewWord(word, number, tuple(pieces.split()))
    if present:
        number, word = present[0]
        mark = PREFIX.get(detect_style(symbols), "")
        inside = mark in ("▁", "Ġ") and not word.startswith(mark)
        more = f" (and {counted(len(present) - 1, 'other word')}: lines {_few(present[1:])})" if present[1:] else ""
        hint = f"a word at its beginning is written {mark + word!r}; inside of words " if inside else ""
        remedy = f"write {mark} before words, or remove the line" if inside else "remove the line"
        raise DataError(f"{path}:{number}: {hint}the dictionary has {word!r} already{more}; {remedy}")
    if not words:
        raise DataError(f"--words {path}: no word in it; write one new word a line")
    return list(words.values())


def _few(lines: Sequence[tuple[int, str]], shown: int = 20) -> str:
    numbers = ", ".join(str(number) for number, _ in lines[:shown])
    return f"{numbers}, ..." if len(lines) > shown else numbers


def _check(path: str, number: int, word: str) -> None:
    if word.split() != [word]:
        raise DataError(
            f"{path}:{number}: {word!r} is not one word; write one a line, and behind a tab its pieces if you like"
        )
    if is_filler(word):
        raise DataError(f"{path}:{number}: {word!r} is what fairseq calls rows without a meaning; choose another name")


def cut_words(
    path: str, words: list[NewWord], cut: Segmenter | None, symbols: Collection[str], method: str = "subword"
) -> list[list[str]]:
    """The pieces of every word: those in its line, else by `cut`. DataError naming file, line, word and piece."""
    return [_pieces(f"{path}:{word.line}", word, cut, symbols, method) for word in words]


def _pieces(where: str, word: NewWord, cut: Segmenter | None, symbols: Collection[str], method: str) -> list[str]:
    pieces = list(word.pieces or (cut(word.text) if cut is not None else ()))
    if not pieces:
        raise DataError(
            f"{where}: --method {method} needs the pieces of {word.text!r}; write them behind a tab (word<TAB>piece "
            "piece), or give --bpe-codes or --sentencepiece-model"
        )
    for piece in pieces:
        if piece not in symbols:
            raise DataError(
                f"{where}: {piece!r}, a piece of {word.text!r}, is not in the dictionary; write other pieces behind a "
                "tab, or give the codes or the model that the dictionary was made with"
            )
    return pieces
