"""The dictionary of the TUPE authors' code as one that fairseq reads with the same ids.

Theirs has seven special symbols, fairseq's four; neither is written to `dict.txt`. So the file needs the other three as
its first lines. Both count `<mask>` only after the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import DataError, OptionError

_SHARED = ("<s>", "<pad>", "</s>", "<unk>")
#: What their dictionary has after fairseq's four.
MORE_SPECIALS = ("<file>", "<email>", "<url>")
_OVERWRITE = "#fairseq:overwrite"


@dataclass(frozen=True)
class ConvertedDictionary:
    """text: of fairseq's dict.txt. num_symbols: with specials and `<mask>`. added: lines put at its head, 0 or 3."""

    text: str
    num_symbols: int
    added: int


def convert_dictionary(path: str, num_symbols: int) -> ConvertedDictionary:
    """Their `dict.txt` for a checkpoint with `num_symbols` rows; a file that is converted already stays as it is.

    The number of rows decides. DataError, naming file and line, for a file that is malformed or does not fit.
    """
    entries = read_entries(path)
    theirs = _with_flags([*((symbol, 1) for symbol in MORE_SPECIALS), *entries])
    if theirs.num_symbols == num_symbols:
        return theirs
    if tuple(symbol for symbol, _ in entries[:3]) == MORE_SPECIALS:
        converted = _with_flags(entries)
        if converted.num_symbols == num_symbols:
            return ConvertedDictionary(converted.text, num_symbols, added=0)
    raise DataError(
        f"{path}: {len(entries)} lines make {theirs.num_symbols} symbols (seven specials, the lines, <mask>), but the "
        f"checkpoint has {num_symbols} rows; give --dict the dict.txt of the data it was trained with"
    )


def _with_flags(entries: Sequence[tuple[str, int]]) -> ConvertedDictionary:
    """The lines for fairseq. Of a symbol that stands twice the last counts in their code; fairseq asks for a flag."""
    seen, lines = set(_SHARED), []
    for symbol, count in entries:
        lines.append(f"{symbol} {count} {_OVERWRITE}\n" if symbol in seen else f"{symbol} {count}\n")
        seen.add(symbol)
    mask = int("<mask>" not in seen)
    return ConvertedDictionary("".join(lines), len(_SHARED) + len(lines) + mask, len(MORE_SPECIALS))


def dictionary_files(words: str, task: Mapping[str, Any], labels: str | None) -> dict[str, str]:
    """Where fairseq's task looks for dictionaries: name below the data folder -> text. labels: path of theirs.

    Raises OptionError for labels of a model that predicts no classes.
    """
    files = {"dict.txt": words}
    fine_tuned = task["_name"] == "sentence_prediction"
    if fine_tuned:
        files["input0/dict.txt"] = words
    if fine_tuned and not task["regression_target"]:
        files["label/dict.txt"] = convert_labels(labels, task["num_classes"])
    elif labels is not None:
        raise OptionError(f"--label-dict {labels}: this model predicts no classes; leave it out")
    return files


def convert_labels(path: str | None, num_classes: int) -> str:
    """`label/dict.txt` for fairseq: class k is line k, as in their code. Without a file the classes get made-up names.

    Raises DataError for a file with fewer labels than the head has classes, or with more (fillers do not count).
    """
    if path is None:
        return "".join(f"class{number} 1\n" for number in range(num_classes))
    entries = read_entries(path)
    labels = sum(not symbol.startswith("madeupword") for symbol, _ in entries)
    if not labels <= num_classes <= len(entries):
        raise DataError(
            f"{path}: {labels} labels, but the classification head has {num_classes} classes; give --label-dict "
            "the label/dict.txt of the data the checkpoint was fine-tuned with"
        )
    return _with_flags(entries).text


def read_entries(path: str) -> list[tuple[str, int]]:
    """The (symbol, count) lines of a `dict.txt`; DataError if it is malformed."""
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}; copy the dictionary again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    entries = []
    lines = text.replace("\r\n", "\n").split("\n")
    for number, line in enumerate(lines, 1):
        if number == len(lines) and not line:
            break  # behind the last newline
        symbol, _, count = line.removesuffix(f" {_OVERWRITE}").rpartition(" ")
        if not symbol or not count.isascii() or not count.isdecimal():
            raise DataError(f"{path}:{number}: not '<symbol> <count>' ({line[:40]!r}); is this a dict.txt?")
        entries.append((symbol, int(count)))
    if not entries:
        raise DataError(f"{path}: no symbol in it; give the dict.txt of the data the checkpoint was trained with")
    return entries
