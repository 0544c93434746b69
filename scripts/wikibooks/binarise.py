"""Sub-words -> the data folder that fairseq-train reads: what fairseq-preprocess would make of all shards in one file.

fairseq-preprocess itself holds every sentence's length and position as Python objects, about 80 bytes a line. Here its
binariser works on one shard at a time, in several processes, and the shards' files are put together piece by piece.
The dictionary begins with the three symbols, as that of the authors' code does, whether they occur or not.

work/encoded/*/{train,valid,symbols}.txt -> bin/{dict.txt,train.bin,train.idx,valid.bin,valid.idx}, report.json

The report has sums over all shards of what the text held, what was left out, and what the data hold.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import struct
from collections import Counter
from pathlib import Path

import numpy as np

logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)  # every process would ask for tensorboardX
from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer  # noqa: E402
from fairseq.data import Dictionary  # noqa: E402
from wikibooks.cleaning import SYMBOLS  # noqa: E402
from wikibooks.encode import text_bytes  # noqa: E402
from wikibooks.pool import finished_shards, run_tasks  # noqa: E402
from wikibooks.split import read_records  # noqa: E402
from wikibooks.words import read_counts  # noqa: E402

from embinit_fairseq.errors import one_line  # noqa: E402
from embinit_fairseq.files import whole_folder, write_json  # noqa: E402
from embinit_fairseq.machine import cores  # noqa: E402

_HEADER = 18  # bytes of an index before the number of sentences: magic, version, code of the number's type
SPLITS = ("train", "valid")


def write_dictionary(counts: list[Path], path: Path, size: int) -> None:
    """The most frequent symbols, `size` with fairseq's own four, filled up to a multiple of eight."""
    dictionary = Dictionary(extra_special_symbols=SYMBOLS)
    dictionary.count = [0] * len(dictionary)  # it counts a symbol when it is told of it
    for each in counts:
        for symbol, count in read_counts(each):
            dictionary.add_symbol(symbol, count)
    dictionary.finalize(nwords=size, padding_factor=8)
    # Dictionary.save would leave the extra symbols out, and every other symbol's number would be wrong by three.
    own = dictionary.unk() + 1
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{s} {n}\n" for s, n in zip(dictionary.symbols[own:], dictionary.count[own:]))


def binarise_shard(shard: Path, output: Path, dictionary: Path) -> None:
    symbols = Dictionary.load(str(dictionary))
    binariser = VocabularyDatasetBinarizer(symbols, append_eos=True)
    with whole_folder(output / shard.name, option="") as folder:
        for split in SPLITS:
            text = str(shard / f"{split}.txt")
            FileBinarizer.multiprocess_dataset(text, "mmap", binariser, str(folder / split), vocab_size=len(symbols))


def join_shards(shards: list[Path], split: str, output: Path) -> None:
    """The shards' .bin and .idx files, in this order, as one."""
    with open(output / f"{split}.bin", "wb") as file:
        for shard in shards:
            with open(shard / f"{split}.bin", "rb") as part:
                shutil.copyfileobj(part, file)
    indices = [shard / f"{split}.idx" for shard in shards]
    lengths = [struct.unpack("<Q", each.read_bytes()[_HEADER : _HEADER + 8])[0] for each in indices]
    with open(output / f"{split}.idx", "wb") as file:
        file.write(indices[0].read_bytes()[:_HEADER] + struct.pack("<Q", sum(lengths)))
        for index, length in zip(indices, lengths):  # sentences' lengths, then where they begin
            file.write(index.read_bytes()[_HEADER + 8 :][: 4 * length])
        start = 0
        for shard, index, length in zip(shards, indices, lengths):
            begins = np.frombuffer(index.read_bytes(), dtype="<i8", offset=_HEADER + 8 + 4 * length)
            file.write((begins + start).tobytes())
            start += (shard / f"{split}.bin").stat().st_size


def collect(work: Path) -> dict:
    """{"raw": ..., "clean": ..., "words": ..., "encoded": ...}: sums over the shards."""
    raw: Counter[str] = Counter()
    for record in read_records(work / "raw"):
        raw.update({key: record[key] for key in ("bytes", "lines", "too_long")})
    sums = {"raw": dict(raw)}
    for stage in ("clean", "encoded"):
        found: Counter[str] = Counter()
        for path in sorted((work / stage).glob("[0-9]*/stats.json")):
            found.update(json.loads(path.read_text()))
        sums[stage] = dict(sorted(found.items()))
    sums["words"] = json.loads((work / "words" / "stats.json").read_text())
    return sums


def sentences(sums: dict) -> list[str]:
    """One line for each part of the data."""
    clean, encoded, words = sums["clean"], sums["encoded"], sums["words"]
    lines = [f"input: {sums['raw']['bytes'] / 1e6:,.1f} MB of text, {sums['raw']['lines']:,} lines"]
    duplicates = [(key, number) for key, number in clean.items() if key in ("duplicate_lines", "duplicate_documents")]
    left_out = [*duplicates, ("lines of more than 1,000,000 characters", sums["raw"]["too_long"])]
    left_out += [("documents out of length", clean.get("documents_out_of_length", 0))]
    lines += ["left out: " + ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in left_out)]
    if clean["lines_not_utf8"]:
        lines += [f"{clean['lines_not_utf8']:,} lines were not UTF-8: the bytes concerned are gone; check the input"]
    lines += [f"{words['word_types']:,} word types in training, {words['frequent_types']:,} of them kept"]
    for split in ("train", "valid"):
        count = {key: encoded[f"{split}_{key}"] for key in ("documents", "sentences", "tokens", "unknown")}
        share = 100 * count["unknown"] / max(count["tokens"], 1)
        lines += [
            f"{split}: {count['documents']:,} documents, {count['sentences']:,} sentences, "
            f"{count['tokens']:,} sub-words ({share:.2f} % <unk>)"
        ]
    return [*lines, f"dictionary: {sums['dictionary']:,} symbols beside fairseq's four and <mask>"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder with encoded/; gets binary/")
    parser.add_argument("--vocabulary", type=int, default=32768, help="symbols in all (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes (default: one per core)")
    parser.add_argument("output", type=Path, help="folder for bin/ and report.json")
    args = parser.parse_args()
    sums = collect(args.work)
    if not sums["encoded"].get("valid_sentences"):
        raise SystemExit("error: nothing was left for validation: give more text, or a smaller VALID_EVERY")
    encoded, binary = finished_shards(args.work / "encoded"), args.work / "binary"
    with whole_folder(args.output / "bin", force=True, option="") as folder:
        dictionary = folder / "dict.txt"
        write_dictionary([shard / "symbols.txt" for shard in encoded], dictionary, args.vocabulary)
        missing = [shard for shard in encoded if not (binary / shard.name).is_dir()]
        tasks = [(text_bytes(shard), (shard, binary, dictionary)) for shard in missing]
        run_tasks("binarising", binarise_shard, tasks, args.jobs)
        for split in SPLITS:
            join_shards([binary / shard.name for shard in encoded], split, folder)
        with open(dictionary, encoding="utf-8") as lines:
            sums["dictionary"] = sum(1 for _ in lines)
    write_json(args.output / "report.json", sums)
    print("\n".join(sentences(sums)))


if __name__ == "__main__":
    with one_line():
        main()
