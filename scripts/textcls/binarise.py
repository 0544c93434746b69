"""Binarise processed texts for fairseq, once for each seed, since the seed draws the validation texts.

CORPUS is what corpus.py made. For each seed 10 % of the training texts are drawn for validation. Writes
OUTPUT/<seed>/text/{train,valid,test}.{input0,label}, OUTPUT/<seed>/bin/{input0,label}; seeds that are there are kept.
All in one process: two starts of fairseq-preprocess per seed would take longer than all the rest.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a checkout, installed or not

from embinit_fairseq.errors import one_line
from embinit_fairseq.io import whole_file, whole_folder

PROTOCOLS = ("textgcn", "inductive")
COLUMNS = ("input0", "label")
SETS = ("train", "valid", "test")
VALIDATION_SHARE = 0.1


def make_dictionary(corpus: Path, protocol: str, min_count: int, path: Path) -> None:
    """Write all words of train and test (textgcn), or the frequent words of train (inductive)."""
    from fairseq.tasks import FairseqTask

    sets = ("train", "test") if protocol == "textgcn" else ("train",)
    threshold = 1 if protocol == "textgcn" else min_count
    dictionary = FairseqTask.build_dictionary([str(corpus / f"{name}.input0") for name in sets], threshold=threshold)
    with whole_file(path, "w") as file:
        dictionary.save(file)


def draw_validation(size: int, seed: int) -> set[int]:
    """Return the numbers of the training texts to validate with."""
    share = max(1, round(VALIDATION_SHARE * size))
    return set(np.random.default_rng(seed).permutation(size)[:share].tolist())


def write_texts(corpus: Path, seed: int, folder: Path) -> None:
    """Write the training texts in two parts, both in the order of the corpus, and the test texts."""
    folder.mkdir(parents=True)
    for column in COLUMNS:
        lines = (corpus / f"train.{column}").read_text(encoding="utf-8").split("\n")[:-1]
        drawn = draw_validation(len(lines), seed)
        for name, wanted in (("train", False), ("valid", True)):
            kept = [line for number, line in enumerate(lines) if (number in drawn) == wanted]
            (folder / f"{name}.{column}").write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        shutil.copy(corpus / f"test.{column}", folder)


def binarise(text: Path, column: str, dictionary: Path, output: Path) -> None:
    """Binarise one column of all sets, as fairseq-preprocess does it."""
    from fairseq import options
    from fairseq_cli import preprocess

    words = ["--only-source", "--srcdict", str(dictionary), "--destdir", str(output), "--workers", "1"]
    words += [word for name in SETS for word in (f"--{name}pref", str(text / f"{name}.{column}"))]
    preprocess.main(options.get_preprocessing_parser().parse_args(words))


def make_seed(corpus: Path, seed: int, words: Path, output: Path) -> None:
    """Write OUTPUT/<seed>."""
    with whole_folder(output / str(seed)) as folder:
        write_texts(corpus, seed, folder / "text")
        binarise(folder / "text", "input0", words, folder / "bin" / "input0")
        binarise(folder / "text", "label", corpus / "labels.txt", folder / "bin" / "label")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="folder that corpus.py made")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="textgcn", help="default: %(default)s")
    parser.add_argument("--min-count", type=int, default=5, help="inductive: words of the dictionary; default: 5")
    parser.add_argument("--seeds", type=int, nargs="+", required=True, help="a folder each: of the validation texts")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    missing = [seed for seed in args.seeds if not (args.output / str(seed)).is_dir()]
    if not missing:
        return
    logging.disable(logging.INFO)  # fairseq's page for every seed
    args.output.mkdir(parents=True, exist_ok=True)
    words = args.output / "dict.txt"
    if not words.is_file():
        make_dictionary(args.corpus, args.protocol, args.min_count, words)
    for seed in tqdm(missing, desc="binarising", unit="seed", disable=None):
        make_seed(args.corpus, seed, words, args.output)


if __name__ == "__main__":
    with one_line():
        main()
