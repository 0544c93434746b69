"""Text files of a task -> fairseq's binary data: OUTPUT/{input0,input1,label}, with one import of fairseq for all.

TEXT holds <set>.input0 (and <set>.input1), LABELS <set>.label.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from fairseq import options
from fairseq.tasks import FairseqTask
from fairseq_cli import preprocess


def binarise(folder: Path, column: str, sets: list[str], dictionary: Path, output: Path) -> None:
    """One column of all sets with a given dictionary, as fairseq-preprocess does it."""
    words = ["--only-source", "--srcdict", str(dictionary), "--destdir", str(output), "--workers", "1"]
    words += ["--trainpref", str(folder / f"{sets[0]}.{column}")]
    words += ["--validpref", ",".join(str(folder / f"{name}.{column}") for name in sets[1:])]
    preprocess.main(options.get_preprocessing_parser().parse_args(words))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="folder with the encoded sentences")
    parser.add_argument("--labels", type=Path, required=True, help="folder with the labels")
    parser.add_argument("--sets", nargs="+", required=True, help="the training set, then those for validation")
    parser.add_argument("--inputs", type=int, required=True, help="sentences in an example")
    parser.add_argument("--classes", nargs="*", default=[], help="labels in the order of the classes; none: numbers")
    parser.add_argument("--dict", type=Path, help="dictionary of the sentences")
    parser.add_argument("--min-count", type=int, default=1, help="without --dict: rarer symbols become <unk>")
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    args.output.mkdir(parents=True)
    columns, dictionary = [f"input{number}" for number in range(args.inputs)], args.dict
    made = args.output / "dict.txt"
    if dictionary is None:  # one for both sentences of a pair
        texts = [str(args.text / f"{args.sets[0]}.{column}") for column in columns]
        FairseqTask.build_dictionary(texts, threshold=args.min_count).save(str(made))
        dictionary = made
    for column in columns:
        binarise(args.text, column, args.sets, dictionary, args.output / column)
    if args.classes:
        # a given dictionary keeps the classes in GLUE's order, whatever label is more frequent
        made.write_text("".join(f"{label} 1\n" for label in args.classes), encoding="utf-8")
        binarise(args.labels, "label", args.sets, made, args.output / "label")
    else:
        (args.output / "label").mkdir()
        for name in args.sets:
            shutil.copy(args.labels / f"{name}.label", args.output / "label" / f"{name}.label")
    made.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
