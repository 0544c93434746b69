"""Prepare text for masked-language-model pre-training; `prepare.sh` says what the steps do and take.

Every step works on shards of the text, and its output is below work/:

    raw/00000/00000.txt      documents as they are, after each a blank line         split
    duplicates/              lines (or documents) that occurred before              duplicates
    clean/00000/train.txt    one tokenised sentence per line; words.txt: counts     cleaning
    words/bpe.txt            the most frequent words of the training text           counts
    bpe.codes (in OUTPUT)    merges                                                 subword-nmt
    encoded/00000/train.txt  subwords; symbols.txt: counts                          encode
    dict.txt                 the most frequent subwords                             binary
    binary/00000/train.bin   what fairseq-train reads                               binary
    OUTPUT/bin               the shards joined; or OUTPUT/bin.00, OUTPUT/bin.01 ...
"""

from __future__ import annotations

import argparse
from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from shards.tasks import Executor, Step, Task, finished_shards, once, shard_files

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.corpora.binary import count
from embinit_fairseq.errors import OptionError, one_line
from embinit_fairseq.io import read_json, write_json
from embinit_fairseq.vocab.cleaning import SYMBOLS
from embinit_fairseq.vocab.preparation_options import parse_steps
from embinit_fairseq.vocab.preparation_record import record_preparation

SPLITS = ("train", "valid")


def prepare(args: argparse.Namespace) -> None:
    """Run the steps that are not done yet."""
    from wikibooks import cleaning, split

    executor = Executor.from_arguments(args, args.output / "work" / "logs")
    cleaning.check_libraries(args.duplicates)  # before the work begins
    if not (args.output / "work" / "shards.json").exists():
        for path in args.input:
            split.check_input(path)
    if executor.run(steps(args)):
        print("\n".join(in_words(read_json(args.output / "report.json"))))
    else:
        print(f"submitted; {args.output / 'report.json'} is written at the end")


def steps(args: argparse.Namespace) -> list[Step]:
    """Return the steps from text to `bin`."""
    # Worker processes import this file: what a step needs is imported when the steps are made.
    from shards import binary, counts
    from wikibooks import cleaning, duplicates, encode, near, split

    output, work = args.output, args.output / "work"
    words, symbols, codes = work / "word_counts", work / "symbol_counts", output / "bpe.codes"
    inputs = [path.resolve() for path in args.input]
    return [
        Step("shards", partial(split.split_tasks, inputs, work / "raw", int(args.shard_mb * 1e6))),
        once("number", work / "shards.json", split.number, work / "raw", work / "shards.json", args.valid_every),
        *(near.steps(work) if args.duplicates == "near" else duplicates.steps(work, args.duplicates)),
        Step("cleaning", partial(cleaning.clean_tasks, work, args.duplicates, args.valid_every)),
        *counts.merge_steps("count words", partial(shard_files, work / "clean", "words.txt"), words),
        once(
            *("choose words", work / "words", counts.choose, counts.merged_file(words), work / "words"),
            *(args.frequent_types, args.bpe_words),
        ),
        once("learn merges", codes, counts.learn_merges, work / "words" / "bpe.txt", args.bpe_merges, codes),
        Step("encoding", partial(encode.encode_tasks, work, codes)),
        *counts.merge_steps("count subwords", partial(shard_files, work / "encoded", "symbols.txt"), symbols),
        once(
            *("dictionary", work / "dict.txt", binary.write_dictionary, counts.merged_file(symbols)),
            *(work / "dict.txt", args.vocabulary, SYMBOLS),
        ),
        Step("binarising", partial(binary_tasks, work)),
        Step("joining", partial(join_tasks, work, output / "bin", args.part_gb * 1e9)),
        once("report", output / "report.json", report, work, codes, output / "report.json"),
    ]


def binary_tasks(work: Path) -> list[Task]:
    """Return a task per shard. OptionError if nothing is left for validation."""
    from shards.binary import binarise_shard
    from wikibooks.encode import text_bytes

    if not sum_up(work)["encoded"].get("valid_sentences"):
        raise OptionError("nothing was left for validation: give more text, or a smaller VALID_EVERY")
    texts = {split: f"{split}.txt" for split in SPLITS}
    tasks = []
    for shard in finished_shards(work / "encoded"):
        output = work / "binary" / shard.name
        tasks.append(Task(output, binarise_shard, (shard, output, work / "dict.txt", texts), text_bytes(shard)))
    return tasks


def join_tasks(work: Path, output: Path, part_bytes: float) -> list[Task]:
    """Return a task per part of the data."""
    from shards import binary

    return binary.join_tasks(
        finished_shards(work / "binary"), output, {"dict.txt": work / "dict.txt"}, SPLITS, part_bytes
    )


def report(work: Path, codes: Path, output: Path) -> None:
    """Write the sums of all shards with the numbers of symbols and of parts; into each part, how text was prepared."""
    with open(work / "dict.txt", encoding="utf-8") as lines:
        dictionary = sum(1 for _ in lines)
    parts = sorted(path.parent for path in output.parent.glob("bin*/dict.txt"))
    for part in parts:
        record_preparation(
            part,
            {"dict.txt": parse_steps("wikibooks,bpe")},
            {"codes": codes},
            {"dict.txt": prepared_lines(work, codes)},
            "scripts/wikibooks/prepare.sh",
        )
    binary = {split: sum_binary(work, split) for split in SPLITS}
    write_json(output, sum_up(work) | {"dictionary": dictionary, "parts": len(parts), "binary": binary})


def sum_binary(work: Path, split: str) -> dict[str, int]:
    """Return the numbers of symbols that training reads, and of <unk> among them: the dictionary has been cut."""
    shards = [count(shard / split) for shard in finished_shards(work / "binary")]
    return {"tokens": sum(shard.tokens for shard in shards), "unknown": sum(shard.unknown for shard in shards)}


def prepared_lines(work: Path, codes: Path) -> list[tuple[str, str]]:
    """Return a few raw lines with their symbols as the steps `cleaning` and `encoding` make them."""
    from wikibooks.cleaning import cleaner
    from wikibooks.duplicates import read_documents
    from wikibooks.encode import Encoder

    first = min((work / "raw").glob("*/*.txt"))
    documents = islice(read_documents(first), 20)
    raw = [line.decode("utf-8", "ignore") for document in documents for line in document][:20]
    prepare, encode = cleaner(), Encoder(codes, None)
    return [(line, " ".join(encode(word) for words in prepare.sentences(line) for word in words)) for line in raw]


def sum_up(work: Path) -> dict[str, Any]:
    """Return {"raw": ..., "clean": ..., "encoded": ..., "words": ...}: numbers over all shards."""
    raw: Counter[str] = Counter()
    for shard in read_json(work / "shards.json"):
        raw.update({key: shard[key] for key in ("bytes", "lines", "too_long")})
    sums: dict[str, Any] = {"raw": dict(raw)}
    for stage in ("clean", "encoded"):
        total: Counter[str] = Counter()
        for path in sorted((work / stage).glob("[0-9]*/stats.json")):
            total.update(read_json(path))
        sums[stage] = dict(sorted(total.items()))
    sums["words"] = read_json(work / "words" / "stats.json")
    return sums


def in_words(sums: dict[str, Any]) -> list[str]:
    """Return a line for each part of the report."""
    clean, encoded, words = sums["clean"], sums["encoded"], sums["words"]
    left_out = [(key, number) for key, number in clean.items() if key in ("duplicate_lines", "duplicate_documents")]
    left_out += [("lines of more than 1,000,000 characters", sums["raw"]["too_long"])]
    left_out += [("documents out of length", clean.get("documents_out_of_length", 0))]
    lines = [f"input: {sums['raw']['bytes'] / 1e6:,.1f} MB of text, {sums['raw']['lines']:,} lines"]
    lines += ["left out: " + ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in left_out)]
    if clean["lines_not_utf8"]:
        lines += [f"{clean['lines_not_utf8']:,} lines were not UTF-8: these bytes were removed; check the input"]
    lines += [f"{words['word_types']:,} word types in training, {words['frequent_types']:,} of them kept"]
    for split in ("train", "valid"):
        share = 100 * sums["binary"][split]["unknown"] / max(sums["binary"][split]["tokens"], 1)
        lines += [
            f"{split}: {encoded[f'{split}_documents']:,} documents, {encoded[f'{split}_sentences']:,} sentences, "
            f"{encoded[f'{split}_tokens']:,} subwords ({share:.2f} % <unk>)"
        ]
    return [*lines, f"dictionary: {sums['dictionary']:,} symbols besides fairseq's four and <mask>"]


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path, nargs="+", help="files with text")
    parser.add_argument("--output", type=Path, required=True, help="folder for work/, bin/, bpe.codes, report.json")
    parser.add_argument("--duplicates", choices=("lines", "documents", "near", "none"), required=True)
    parser.add_argument("--frequent-types", type=float, required=True, help="share of the word types that are kept")
    parser.add_argument("--bpe-merges", type=int, required=True)
    parser.add_argument("--bpe-words", type=int, required=True, help="most frequent words to learn merges from")
    parser.add_argument("--vocabulary", type=int, required=True, help="symbols, with fairseq's own four")
    parser.add_argument("--valid-every", type=int, required=True, help="every N-th passage is for validation")
    parser.add_argument("--shard-mb", type=float, required=True)
    parser.add_argument("--part-gb", type=float, required=True, help="training data of a part of bin")
    Executor.add_arguments(parser)
    prepare(parser.parse_args())


if __name__ == "__main__":
    with one_line():
        main()
