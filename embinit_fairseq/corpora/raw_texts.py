"""Read raw text: a sentence per line in one or two languages, or tables with named columns.

The name of a file has its split (`train`; `valid`, `val`, `dev`; `test`) and, as its suffix, its language or kind.
A raw text is one column of one file: a list of lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from embinit_fairseq.corpora.reading import is_table, read_column, read_text, suffix_of
from embinit_fairseq.errors import OptionError
from embinit_fairseq.io import check_is_file

#: name of a split in names of files -> fairseq's
SPLITS = {"train": "train", "valid": "valid", "val": "valid", "dev": "valid", "validation": "valid", "test": "test"}
#: suffixes of files with a text per line whose name has no language
PLAIN = ("", "txt", "text", "raw", *SPLITS)
#: ends of lines for `str.splitlines` and fairseq's readers; here only LF ends a line, and these are spaces
OTHER_ENDS = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
#: name of the column of labels in the data
LABEL = "label"


@dataclass(frozen=True)
class RawText:
    """Describe a column of text.

    Args:
        path: the file.
        split: `train`, `valid`, `valid1`, `test` ...
        column: name in the data: a language, `input0`, `label`, or `` for text in one language.
        field: name of the column in the file; None if the file has one text per line.
    """

    path: Path
    split: str
    column: str
    field: str | None = None

    @property
    def is_label(self) -> bool:
        """Return True for a column of labels."""
        return self.column == LABEL

    def numbered_lines(self) -> Iterator[tuple[int, str]]:
        """Yield (number of the line, text) as in the file."""
        return read_text(self.path) if self.field is None else read_column(self.path, self.field, self.is_label)

    def lines(self) -> Iterator[str]:
        """Yield the texts, each without an end of a line inside."""
        return (OTHER_ENDS.sub(" ", text) for _, text in self.numbered_lines())

    def __str__(self) -> str:
        return f"{self.path}" if self.field is None else f"{self.path} ({self.field})"


@dataclass(frozen=True)
class Columns:
    """Hold the user's options for columns; see `embinit prepare --help`."""

    source_lang: str | None = None
    target_lang: str | None = None
    text_columns: Sequence[str] = ()
    label_column: str | None = None


def find_raw_texts(texts: Sequence[str], columns: Columns) -> list[RawText]:
    """Return the raw texts of the files, in the order of their splits.

    Args:
        texts: files, each as FILE or SPLIT=FILE.
        columns: the columns of tables, and languages.

    Raises:
        OptionError, DataError: a split or a column is unknown, is missing or occurs twice.
    """
    files = [_split_of(text) for text in texts]
    tables = [path for _, path in files if is_table(path)]
    if tables and len(tables) < len(files):
        raise OptionError(f"{tables[0]} is a table, and other files are plain text; give files of one kind")
    raw_texts = _of_tables(files, columns) if tables else _of_lines(files, columns)
    seen: dict[tuple[str, str], RawText] = {}
    for raw_text in raw_texts:
        if (other := seen.setdefault((raw_text.split, raw_text.column), raw_text)) is not raw_text:
            remedy = "put them into one file"
            if raw_text.split != "train":  # fairseq has one training split
                remedy = f"name another, such as {raw_text.split}1={raw_text.path}, or {remedy}"
            if raw_text.field is None and not raw_text.column:
                names = f"{raw_text.split}.de and {raw_text.split}.en (ln -s FILE {raw_text.split}.de)"
                remedy = f"if they are two languages, name them as {names}; else {remedy}"
            raise OptionError(f"{other.path} and {raw_text.path}: both are the split {raw_text.split}; {remedy}")
    return sorted(raw_texts, key=lambda raw_text: ("train valid test".find(raw_text.split[:4]), raw_text.split))


def _split_of(text: str) -> tuple[str, Path]:
    """Return (split, path) of an argument FILE or SPLIT=FILE."""
    named = re.fullmatch(r"(train|valid\d*|test\d*)=(.+)", text)
    path = Path(named[2] if named else text)
    check_is_file(path)
    if named:
        return named[1], path
    splits = {SPLITS[part] for part in re.split(r"[._-]", path.name.lower()) if part in SPLITS}
    if len(splits) != 1:
        raise OptionError(f"{text}: its name must say which split it is; name it so: train={text}, valid=..., test=...")
    return splits.pop(), path


def _of_lines(files: list[tuple[str, Path]], columns: Columns) -> list[RawText]:
    if columns.text_columns or columns.label_column is not None:
        raise OptionError(
            f"--text-columns, --label-column: {files[0][1]} is not .tsv, .csv or .jsonl; save it so, or leave them out"
        )
    languages: dict[str, str] = {}  # in lower case -> as written: fr_XX of mBART, and DE next to de
    for name in (*filter(None, (columns.source_lang, columns.target_lang)), *(suffix_of(path) for _, path in files)):
        languages.setdefault(name.lower(), name)
    langs = list(dict.fromkeys(languages[suffix_of(path).lower()] for _, path in files))
    if len(langs) == 1 or {name.lower() for name in langs} <= {*PLAIN}:
        return [RawText(path, split, "") for split, path in files]
    source = columns.source_lang or next(name for name in langs if name != columns.target_lang)
    target = columns.target_lang or next(name for name in langs if name != source)
    if {source, target} != set(langs) or {name.lower() for name in langs} & set(PLAIN):
        endings = ", ".join(f".{name}" for name in langs)
        raise OptionError(
            f"TEXT: the files end in {endings}; expected two languages, as train.de train.en, or the same ending "
            "(--source-lang and --target-lang name the two)"
        )
    _check_languages(langs)
    raw_texts = [RawText(path, split, languages[suffix_of(path).lower()]) for split, path in files]
    for split in dict.fromkeys(split for split, _ in files):
        if missing := set(langs) - {one.column for one in raw_texts if one.split == split}:
            raise OptionError(
                f"TEXT: the split {split} has no file in {min(missing)}; give both languages, or files of one language "
                "the same ending"
            )
    return sorted(raw_texts, key=lambda one: one.column != source)


def _of_tables(files: list[tuple[str, Path]], columns: Columns) -> list[RawText]:
    texts, label = list(columns.text_columns), columns.label_column
    if not 1 <= len(texts) <= 2:
        raise OptionError("--text-columns: name the column of the text, or two of pairs of texts")
    names = [*texts, *([] if label is None else [label])]
    if len({*names}) < len(names):
        raise OptionError(f"--text-columns, --label-column: {' '.join(names)} has one column twice; name each once")
    if label is not None:
        fields = {**{f"input{at}": text for at, text in enumerate(texts)}, LABEL: label}
    elif len(texts) == 1:
        fields = {"": texts[0]}
    else:
        first, second = (text.rpartition(".")[2] for text in texts)  # translation.de of an object
        languages = (columns.source_lang or first, columns.target_lang or second)
        _check_languages(languages)
        fields = dict(zip(languages, texts))
    return [RawText(path, split, name, field) for split, path in files for name, field in fields.items()]


def _check_languages(names: Sequence[str]) -> None:
    """Raise OptionError unless these are two names from which fairseq's names of files can be made."""
    for name in names:
        if not re.fullmatch(r"[\w-]+", name) or name == LABEL or len({*names}) < len(names):
            raise OptionError(
                f"{' and '.join(names)}: not the names of two languages; name them by --source-lang and --target-lang "
                "(or as the ends of the files), such as de and en"
            )
