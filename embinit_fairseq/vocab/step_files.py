"""Describe the files that steps of a preparation need, how users name them, and read them for a step.

option     step           option of the commands   in Python, and fairseq's      copies are called
codes      bpe            --bpe-codes              bpe_codes                     bpe.codes
model      sentencepiece  --sentencepiece-model    sentencepiece_model           sentencepiece.model
tokenizer  huggingface    --tokenizer              none (another option there)   tokenizer.json

expand-vocab and trim-vocab write files next to the codes: words that stay whole (glossary.txt), and the vocabulary to
which a trimmed dictionary restricts text. They are read, hashed and copied with the codes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embinit_fairseq.io import PathLike, sha256
from embinit_fairseq.vocab.codes import VOCABULARY, codes_text, codes_vocabulary, load_sentencepiece, tokenizer_text
from embinit_fairseq.vocab.sentencepiece_model import SENTENCEPIECE_FILE
from embinit_fairseq.vocab.subword_nmt import SUBWORD_NMT_FILES, SubwordNmt, glossary


@dataclass(frozen=True)
class StepFile:
    """The file of a step.

    Args:
        step: the step that reads the file.
        flag: option of the commands that names it.
        name: name of copies and of the file that `embinit prepare` learns.
        argument: its name in Python and among fairseq's options; None if it has none.
    """

    step: str
    flag: str
    name: str
    argument: str | None = None


#: option of a step -> its file
STEP_FILES = {
    "codes": StepFile("bpe", "--bpe-codes", SUBWORD_NMT_FILES[0], "bpe_codes"),
    "model": StepFile("sentencepiece", "--sentencepiece-model", SENTENCEPIECE_FILE, "sentencepiece_model"),
    "tokenizer": StepFile("huggingface", "--tokenizer", "tokenizer.json"),
}
#: the same for the files that fairseq knows -> name of its option
ARGUMENTS = {option: file.argument for option, file in STEP_FILES.items() if file.argument is not None}
#: files that the segmentation of a new dictionary may have
SEGMENTATION_FILES = (*SUBWORD_NMT_FILES, SENTENCEPIECE_FILE)


def given_files(of: Any) -> dict[str, str]:
    """Return option of a step -> path, for the files that a user names.

    Args:
        of: options with attributes `bpe_codes` and `sentencepiece_model`; missing ones are None.
    """
    paths = {option: getattr(of, argument, None) for option, argument in ARGUMENTS.items()}
    return {option: str(path) for option, path in paths.items() if path is not None}


def given_by(option: str) -> str:
    """Return how a user names the file of a step's option, in commands and in Python."""
    file = STEP_FILES[option]
    return file.flag if file.argument is None else f"{file.flag} FILE (from_pretrained: {file.argument}=FILE)"


def contents(paths: Mapping[str, str], symbols: Collection[str]) -> dict[str, Any]:
    """Return option of a step -> content of its file, as `Preparation` needs it.

    Args:
        paths: option of a step -> path.
        symbols: the dictionary's symbols; other words of a glossary belong to the other side.
    """
    content: dict[str, Any] = {"symbols": frozenset(symbols)}
    flags = {option: file.flag for option, file in STEP_FILES.items()}
    if (codes := paths.get("codes")) is not None:
        whole = SubwordNmt(codes, flags["codes"], symbols).whole
        content["codes"] = codes_text(codes, flags["codes"])
        content["glossary"] = glossary(whole) if whole else None
        content["vocabulary"] = None if codes_vocabulary(codes) is None else frozenset(symbols)
    if (tokenizer := paths.get("tokenizer")) is not None:
        content["tokenizer"] = tokenizer_text(tokenizer, flags["tokenizer"])
    if (model := paths.get("model")) is not None:
        with contextlib.suppress(ImportError):  # named when it is used
            load_sentencepiece(model, flags["model"])
        content["model"] = Path(model).read_bytes()
    return content


def hashes(path: PathLike) -> str:
    """Return the hash of a file and of the files that are read with it."""
    return " ".join(sha256(file) for file in files_with(path, ""))


def files_with(path: PathLike, name: str) -> dict[Path, str]:
    """Return a file, and the files read with it (glossary and vocabulary of codes) -> names for copies.

    Args:
        path: path of the file.
        name: name of its copy.
    """
    place, whole = Path(path), SUBWORD_NMT_FILES[1]
    names = {place: name, place.with_name(whole): whole, place.with_name(place.name + VOCABULARY): name + VOCABULARY}
    return {file: copy for file, copy in names.items() if file.is_file()}
