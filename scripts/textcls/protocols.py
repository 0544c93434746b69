"""Process the texts of a text-classification data set in one TSV file, by a named protocol.

The file has a line of headings with the columns split, label and text (others are ignored) and may be compressed by
gzip; split is train or test. There is no quoting: a quotation mark is a character like others. Writes
OUTPUT/{train,test}.{input0,label} (a text per line, tokens separated by spaces), OUTPUT/labels.txt, OUTPUT/facts.json,
and OUTPUT/steps.json: how raw text becomes tokens, with some raw texts, for the record next to the dictionary.

    textgcn     as Yao et al. 2019 (Text GCN) prepare their data: Kim's clean_str and lower case; stop words are
                removed, and words rarer than --min-count, counted over train AND test. The dictionary has the rest.
    inductive   the same cleaning and stop words, but words are counted over the training texts only; all others, and
                rarer ones, become <unk>. Nothing is learned from the test texts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tsv import read_rows

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.errors import DataError, OptionError, one_line
from embinit_fairseq.io import read_lines, whole_folder, write_json
from embinit_fairseq.vocab.preparation_steps import Preparation


class Example(NamedTuple):
    """A line of the file."""

    split: str
    label: str
    text: str


def read_examples(path: Path) -> list[Example]:
    """Return all examples in the order of the file; DataError names a malformed line."""
    rows = read_rows(path)
    heading = next(rows, (1, [""]))[1]
    if missing := [name for name in Example._fields if name not in heading]:
        raise DataError(
            f"{path}, line 1: no column {', '.join(missing)} (found: {', '.join(heading)[:80]}); the first line must "
            f"name the columns {', '.join(Example._fields)}, separated by tabs"
        )
    places = [heading.index(name) for name in Example._fields]
    examples = []
    for number, fields in rows:
        where = f"{path}, line {number}"
        if len(fields) != len(heading):
            raise DataError(f"{where}: {len(fields)} fields, but {len(heading)} columns in line 1")
        example = Example(*(fields[place].strip() for place in places))
        if example.split not in ("train", "test"):
            raise DataError(f"{where}: the split {example.split[:80]!r} must be train or test")
        if len(example.label.split()) != 1:
            raise DataError(f"{where}: the label {example.label[:80]!r} must be one word; write _ for spaces")
        examples.append(example)
    trained, tested = ({line.label for line in examples if line.split == split} for split in ("train", "test"))
    if not tested or not tested <= trained or len(trained) < 2:
        missing = "".join(f"; {label[:80]} is missing" for label in sorted(tested - trained))
        raise DataError(
            f"{path}: expected test lines, and training lines of at least two labels (found: {len(trained)}), among "
            f"them all labels of the test lines{missing}"
        )
    return examples


def stop_words(choice: str) -> frozenset[str]:
    """Return the words of spaCy's English list, of a file, or none."""
    if choice == "none":
        return frozenset()
    if choice == "spacy":
        try:
            from spacy.lang.en.stop_words import STOP_WORDS
        except ModuleNotFoundError as error:
            remedy = "pip install spacy, or give --stop-words FILE or none"
            raise OptionError(f"the stop words are spaCy's: {remedy}") from error
        return frozenset(STOP_WORDS)
    return frozenset(word for _, line in read_lines(choice, OptionError, "--stop-words") for word in line.split())


def process(examples: list[Example], protocol: str, min_count: int, stopping: frozenset[str], clean: bool) -> list[str]:
    """Return the texts of the examples, cleaned and without the words that the protocol removes."""
    prepare = Preparation([{"step": "kim"}] if clean else [])
    texts = [prepare(example.text) for example in examples]
    counts = Counter(word for text in texts for word in text)
    rarest = min_count if protocol == "textgcn" else 1  # inductive: the dictionary leaves out rare words
    return [" ".join(word for word in text if counts[word] >= rarest and word not in stopping) for text in texts]


def steps_of(protocol: str, stopping: frozenset[str], clean: bool) -> list[dict[str, object]]:
    """Return the steps of `process` as a preparation; words of the dictionary are the frequent ones."""
    steps: list[dict[str, object]] = [{"step": "kim"}] if clean else []
    steps += [{"step": "without", "words": sorted(stopping)}] if stopping else []
    return [*steps, {"step": "known"}] if protocol == "textgcn" else steps


def write_corpus(examples: list[Example], texts: list[str], folder: Path) -> dict[str, float]:
    """Write the files into an empty folder; return facts about them."""
    for split in ("train", "test"):
        chosen = [(example.label, text) for example, text in zip(examples, texts) if example.split == split]
        for column, lines in zip(("label", "input0"), zip(*chosen)):
            (folder / f"{split}.{column}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
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
    """Write the corpus."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the TSV file")
    parser.add_argument("--protocol", choices=("textgcn", "inductive"), default="textgcn", help="default: %(default)s")
    parser.add_argument("--min-count", type=int, default=5, help="rarer words are removed, or become <unk>; default: 5")
    parser.add_argument("--stop-words", default="spacy", help="spacy (default), none, or a file with words")
    parser.add_argument("--no-clean", action="store_true", help="the texts are tokens already: leave them as they are")
    parser.add_argument("--output", type=Path, required=True, help="folder to make")
    args = parser.parse_args()
    examples, stopping = read_examples(args.data), stop_words(args.stop_words)
    texts = process(examples, args.protocol, args.min_count, stopping, not args.no_clean)
    if max(len(text.split()) for example, text in zip(examples, texts) if example.split == "train") < 2:
        raise DataError(
            f"{args.data}: no training text has more than one word after cleaning, without stop words and rare words; "
            f"give longer texts, --no-clean (Kim's words have Latin letters only), a lower --min-count than "
            f"{args.min_count}, or --stop-words none"
        )
    with whole_folder(args.output) as folder:
        facts = write_corpus(examples, texts, folder)
        pairs = [(example.text, text) for example, text in zip(examples, texts) if text][:20]
        steps = steps_of(args.protocol, stopping, not args.no_clean)
        write_json(folder / "steps.json", {"steps": steps, "pairs": pairs})
    print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items()), file=sys.stderr)


if __name__ == "__main__":
    with one_line():
        main()
