"""A text-classification data set in one TSV file -> the processed texts of its official split, by a named protocol.

The file has a line of headings with the columns split, label and text (others are ignored) and may be compressed by
gzip; split is train or test. There is no quoting: a quotation mark is a character like others. Writes
OUTPUT/{train,test}.{input0,label} (a text per line, tokens separated by blanks), OUTPUT/labels.txt, OUTPUT/facts.json.

    textgcn     as Yao et al. 2019 (Text GCN) prepare their data: Kim's clean_str and lower case; stop words are
                removed, and words rarer than --min-count, counted over train AND test. The dictionary has the rest.
    inductive   the same cleaning and stop words, but words are counted over the training texts only; all others, and
                rarer ones, become <unk>. Nothing is learned from the test texts.
"""

from __future__ import annotations

import argparse
import gzip
import re
import statistics
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a checkout, installed or not

from embinit_fairseq import bounded
from embinit_fairseq.errors import DataError, OptionError, one_line
from embinit_fairseq.files import whole_folder, write_json

COLUMNS = ("split", "label", "text")
PROTOCOLS = ("textgcn", "inductive")
LONGEST_LINE = 1 << 22  # bytes; a few megabytes of gzip may unpack to gigabytes

_FOREIGN = re.compile(r"[^A-Za-z0-9(),!?'`]")
_ENDINGS = re.compile(r"(?='s|'ve|'re|'d|'ll|n't)")
_MARKS = re.compile(r"([,!()?])")
_QUOTED = re.compile(r"(['\"])(.+)\1")
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # the first four of every dictionary of fairseq


@dataclass(frozen=True)
class Example:
    """One line of the file; `line` counts from 1."""

    line: int
    split: str
    label: str
    text: str


def read_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of a TSV file, plain or gzip; a byte-order mark is dropped."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; give a TSV file with the columns {', '.join(COLUMNS)}")
    number = 0
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            for number, line in enumerate(
                iter(partial(file.readline, LONGEST_LINE), b""), start=1
            ):  # bytes: "\n" ends it
                if len(line) == LONGEST_LINE:
                    raise DataError(f"{path}, line {number}: longer than {LONGEST_LINE:,} bytes; break or remove it")
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n").split("\t")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, line {number}: {error}; it must be UTF-8 text, plain or gzip") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:  # in what would have become the next lines
        raise DataError(f"{path}, after line {number}: {error}; it must be UTF-8 text, plain or gzip") from error


def read_examples(path: Path) -> list[Example]:
    """All examples in the order of the file; raises DataError for a file that is not as it should be."""
    lines = read_lines(path)
    heading = next(lines, (1, [""]))[1]
    _check_heading(path, heading)
    places = [heading.index(name) for name in COLUMNS]
    examples = []
    for number, fields in lines:
        if len(fields) != len(heading):
            raise DataError(f"{path}, line {number}: {len(fields)} fields, but {len(heading)} columns in line 1")
        examples.append(_checked(path, Example(number, *(fields[place].strip() for place in places))))
    _check_splits(path, examples)
    _check_labels(path, examples)
    return examples


def _short(text: str) -> str:
    """For a message: a file that is no table may be one line."""
    return text if len(text) <= 80 else f"{text[:80]}..."


def _check_heading(path: Path, heading: list[str]) -> None:
    if any("\r" in name for name in heading):
        raise DataError(
            f"{path}, line 1: a carriage return inside the line; lines must end with a line feed: convert it, for "
            "example with tr '\\r' '\\n'"
        )
    missing = [name for name in COLUMNS if name not in heading]
    if missing:
        raise DataError(
            f"{path}, line 1: no column {', '.join(missing)} (found: {_short(', '.join(heading))}); the first line "
            f"must name the columns {', '.join(COLUMNS)}, separated by tabs"
        )
    for name in COLUMNS:
        if heading.count(name) > 1:
            raise DataError(f"{path}, line 1: {heading.count(name)} columns {name}; rename all but one of them")


def _checked(path: Path, example: Example) -> Example:
    where = f"{path}, line {example.line}"
    if example.split not in ("train", "test"):
        raise DataError(
            f"{where}: the split {_short(example.split)!r} must be train or test (validation texts are drawn)"
        )
    if not example.label or len(example.label.split()) > 1:
        raise DataError(f"{where}: the label {_short(example.label)!r} must be one word; write _ for blanks")
    if example.label in _SPECIAL:
        raise DataError(f"{where}: the label {example.label} is a symbol of fairseq's own; give it another name")
    if not example.text:
        raise DataError(f"{where}: the text is empty; remove the line, or give its text")
    return example


def _check_splits(path: Path, examples: list[Example]) -> None:
    trained = {example.label for example in examples if example.split == "train"}
    if sum(example.split == "train" for example in examples) < 2:
        raise DataError(f"{path}: fewer than two lines with the split train; one is to learn from, one to validate")
    if all(example.split == "train" for example in examples):
        raise DataError(f"{path}: no line with the split test; results are those of the test texts")
    for example in examples:
        if example.label not in trained:
            raise DataError(
                f"{path}, line {example.line}: the label {_short(example.label)} is in no training text; remove the "
                "line, or add such texts to the split train"
            )


def _check_labels(path: Path, examples: list[Example]) -> None:
    labels = {example.label for example in examples}
    if len(labels) == 1:
        raise DataError(f"{path}: all texts have the label {_short(*labels)}; there is nothing to learn from one class")
    for example in examples:
        quoted = _QUOTED.fullmatch(example.label)
        if quoted and quoted[2] in labels:
            raise DataError(
                f"{path}, line {example.line}: the label {_short(example.label)} beside {_short(quoted[2])}; quotation "
                "marks are characters like others here: remove them, or, if these are two classes, choose other names"
            )


def clean_str(text: str) -> str:
    """Tokens as Kim 2014 makes them of English text, separated by blanks; lower case."""
    text = _ENDINGS.sub(" ", _FOREIGN.sub(" ", text))
    return " ".join(_MARKS.sub(r" \1 ", text).split()).lower()


def stop_words(choice: str) -> frozenset[str]:
    """choice: spaCy's English list, none, or a file with words separated by white space."""
    if choice == "none":
        return frozenset()
    if choice == "spacy":
        try:
            from spacy.lang.en.stop_words import STOP_WORDS
        except ModuleNotFoundError as error:
            raise OptionError(
                "the stop words are spaCy's: pip install spacy, or give --stop-words FILE or none"
            ) from error
        return frozenset(STOP_WORDS)
    if not Path(choice).is_file():
        raise OptionError(f"--stop-words {choice}: no such file; give spacy, none, or a file with words")
    return frozenset(
        word for _, line in bounded.read_lines(choice, OptionError, "--stop-words") for word in line.split()
    )


def process(examples: list[Example], protocol: str, min_count: int, stopping: frozenset[str], clean: bool) -> list[str]:
    """The texts, cleaned and without the words that the protocol removes, in the order of the examples."""
    texts = [(clean_str(example.text) if clean else example.text).split() for example in examples]
    counts = Counter(word for text in texts for word in text)
    rarest = min_count if protocol == "textgcn" else 1  # inductive: the dictionary leaves out what is rare
    return [" ".join(word for word in text if counts[word] >= rarest and word not in stopping) for text in texts]


def check_texts(args: argparse.Namespace, examples: list[Example], texts: list[str]) -> None:
    """Raises DataError if no words are left to learn from. args: the options; texts: processed examples."""
    lengths = [len(text.split()) for text in texts]
    trained = Counter(word for each, text in zip(examples, texts) if each.split == "train" for word in text.split())
    fewest = 1 if args.protocol == "textgcn" else args.min_count  # the dictionary's, of words that process() has kept
    if max(lengths) > 1 and max(trained.values(), default=0) >= fewest:
        return
    if not any(lengths):
        what = "all texts are empty"
    elif max(lengths) < 2:
        what = "no text has more than one word"
    elif not trained:
        what = "all training texts are empty"
    else:
        what = f"no word occurs {fewest} times in the training texts"
    remedies = ["give longer texts"]
    if not args.no_clean:
        remedies.append("--no-clean with texts that are tokens (clean_str keeps Latin letters only)")
    if args.min_count > 1:
        remedies.append(f"a lower --min-count than {args.min_count}")
    if args.stop_words != "none":
        remedies.append("--stop-words none")
    cleaned = "" if args.no_clean else "after cleaning, "
    raise DataError(f"{args.data}: {what} {cleaned}without stop words and rare words; {', or '.join(remedies)}")


def write_corpus(examples: list[Example], texts: list[str], folder: Path) -> dict[str, float]:
    """Write the files into an empty folder; returns the facts about them that are said aloud."""
    for split in ("train", "test"):
        chosen = [(example.label, text) for example, text in zip(examples, texts) if example.split == split]
        (folder / f"{split}.label").write_text("".join(f"{label}\n" for label, _ in chosen), encoding="utf-8")
        (folder / f"{split}.input0").write_text("".join(f"{text}\n" for _, text in chosen), encoding="utf-8")
    labels = sorted({example.label for example in examples})
    (folder / "labels.txt").write_text("".join(f"{label} 1\n" for label in labels), encoding="utf-8")
    lengths = [len(text.split()) for text in texts]
    facts = {
        "train": sum(example.split == "train" for example in examples),
        "test": sum(example.split == "test" for example in examples),
        "labels": len(labels),
        "mean_length": round(statistics.fmean(lengths), 2),
        "longest": max(lengths),
        "empty": lengths.count(0),
    }
    write_json(folder / "facts.json", facts)
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the TSV file")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="textgcn", help="default: %(default)s")
    parser.add_argument("--min-count", type=int, default=5, help="rarer words are removed, or become <unk>; default: 5")
    parser.add_argument("--stop-words", default="spacy", help="spacy (default), none, or a file with words")
    parser.add_argument("--no-clean", action="store_true", help="the texts are tokens already: leave them as they are")
    parser.add_argument("--output", type=Path, required=True, help="folder to make")
    args = parser.parse_args()
    if args.min_count < 1:
        raise OptionError(f"--min-count {args.min_count}: give a number from 1")
    examples, stopping = read_examples(args.data), stop_words(args.stop_words)
    texts = process(examples, args.protocol, args.min_count, stopping, not args.no_clean)
    check_texts(args, examples, texts)
    with whole_folder(args.output) as folder:
        facts = write_corpus(examples, texts, folder)
    print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items()), file=sys.stderr)


if __name__ == "__main__":
    with one_line():
        main()
