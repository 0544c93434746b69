"""Binarise processed texts for fairseq, once for each seed, since the seed draws the validation texts.

protocols.py makes CORPUS. For each seed 10 % of the training texts are drawn for validation. Writes
OUTPUT/<seed>/text/{train,valid,test}.{input0,label}, OUTPUT/<seed>/bin/{input0,label}; seeds that are there are kept.
All in one process: two starts of fairseq-preprocess per seed would take longer than all the rest.
"""

from __future__ import annotations

import argparse
import logging
import shutil
from pathlib import Path

import numpy as np
from fairseq import options
from fairseq.tasks import FairseqTask
from fairseq_cli import preprocess
from tqdm import tqdm

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.errors import one_line
from embinit_fairseq.io import read_json, whole_file, whole_folder
from embinit_fairseq.vocab.preparation_record import record_preparation

VALIDATION_SHARE = 0.1


def make_dictionary(corpus: Path, protocol: str, min_count: int, path: Path) -> None:
    """Write all words of train and test (textgcn), or the frequent words of train (inductive)."""
    sets, threshold = (("train", "test"), 1) if protocol == "textgcn" else (("train",), min_count)
    dictionary = FairseqTask.build_dictionary([str(corpus / f"{name}.input0") for name in sets], threshold=threshold)
    with whole_file(path, "w") as file:
        dictionary.save(file)
    if (corpus / "steps.json").is_file():  # fairseq-preprocess copies the record to each seed's folder
        made = read_json(corpus / "steps.json")
        steps, pairs = {path.name: made["steps"]}, {path.name: made["pairs"]}
        record_preparation(path.parent, steps, pairs=pairs, made_by="scripts/textcls/prepare.sh")


def write_texts(corpus: Path, seed: int, folder: Path) -> None:
    """Write the training texts in two parts, both in the order of the corpus, and the test texts."""
    folder.mkdir(parents=True)
    for column in ("input0", "label"):
        lines = (corpus / f"train.{column}").read_text(encoding="utf-8").split("\n")[:-1]
        share = max(1, round(VALIDATION_SHARE * len(lines)))
        drawn = set(np.random.default_rng(seed).permutation(len(lines))[:share].tolist())
        for name, is_valid in (("train", False), ("valid", True)):
            part = [line for number, line in enumerate(lines) if (number in drawn) == is_valid]
            (folder / f"{name}.{column}").write_text("".join(f"{line}\n" for line in part), encoding="utf-8")
        shutil.copy(corpus / f"test.{column}", folder)


def binarise(text: Path, column: str, dictionary: Path, output: Path) -> None:
    """Binarise one column of all sets, as fairseq-preprocess does it."""
    words = ["--only-source", "--srcdict", str(dictionary), "--destdir", str(output / column), "--workers", "1"]
    words += [f"--{name}pref={text / f'{name}.{column}'}" for name in ("train", "valid", "test")]
    preprocess.main(options.get_preprocessing_parser().parse_args(words))


def main() -> None:
    """Make the folders of the seeds that are missing."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="folder that protocols.py made")
    parser.add_argument("--protocol", choices=("textgcn", "inductive"), default="textgcn", help="default: %(default)s")
    parser.add_argument("--min-count", type=int, default=5, help="inductive: words of the dictionary; default: 5")
    parser.add_argument("--seeds", type=int, nargs="+", required=True, help="a folder each: of the validation texts")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    logging.disable(logging.INFO)  # fairseq's page for every seed
    args.output.mkdir(parents=True, exist_ok=True)
    words = args.output / "dict.txt"
    if not words.is_file():
        make_dictionary(args.corpus, args.protocol, args.min_count, words)
    missing = [seed for seed in args.seeds if not (args.output / str(seed)).is_dir()]
    for seed in tqdm(missing, desc="binarising", unit="seed", disable=None):
        with whole_folder(args.output / str(seed)) as folder:
            write_texts(args.corpus, seed, folder / "text")
            binarise(folder / "text", "input0", words, folder / "bin")
            binarise(folder / "text", "label", args.corpus / "labels.txt", folder / "bin")


if __name__ == "__main__":
    with one_line():
        main()
