"""Binarise encoded shards for fairseq-train, as fairseq-preprocess would binarise all of them in one file.

fairseq-preprocess holds every sentence's length and position as Python objects, about 80 bytes per line. Here its
binariser works on one shard at a time, and the files of neighbouring shards are joined to parts. fairseq reads one part
per epoch (`fairseq-train bin.00:bin.01`), validates on the first, and holds the index of one part in memory.

work/encoded/*/{train,valid}.txt -> work/binary/*/{train,valid}.{bin,idx} -> bin, or bin.00 bin.01 ...
"""

from __future__ import annotations

import logging
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from shards.counts import add_up
from shards.tasks import Task, shard_files

from embinit_fairseq.io import whole_file, whole_folder

#: bytes of an index before the number of sentences: magic, version, code of the number's type
_HEADER = 18


def write_dictionary(encoded: Path, path: Path, size: int | None, special: Sequence[str] = ()) -> None:
    """Write the most frequent symbols, padded to a multiple of eight with fairseq's own four.

    Args:
        encoded: folder of the encoded shards, which have their counts in symbols.txt.
        path: dict.txt.
        size: number of symbols with fairseq's own four; None: all.
        special: symbols that come first, whether they occur or not, as in TUPE's code.
    """
    from fairseq.data import Dictionary

    dictionary = Dictionary(extra_special_symbols=special)
    dictionary.count = [0] * len(dictionary)  # extra symbols are counted once when they are added
    for symbol, count in add_up(shard_files(encoded, "symbols.txt")).items():
        dictionary.add_symbol(symbol, count)
    dictionary.finalize(nwords=-1 if size is None else size, padding_factor=8)
    # Dictionary.save would leave the extra symbols out, and every other symbol's number would be wrong by three.
    own = dictionary.unk() + 1
    with whole_file(path, "w") as file:
        file.writelines(f"{s} {n}\n" for s, n in zip(dictionary.symbols[own:], dictionary.count[own:]))


def binarise_shard(shard: Path, output: Path, dictionary: Path, texts: dict[str, str]) -> None:
    """Write the binary files of one shard. texts: name of a binary file -> name of its text in the shard."""
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)  # it asks for tensorboardX
    from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer
    from fairseq.data import Dictionary

    symbols = Dictionary.load(str(dictionary))
    binariser = VocabularyDatasetBinarizer(symbols, append_eos=True)
    with whole_folder(output, option="") as folder:
        for name, text in texts.items():
            binary = str(folder / name)
            FileBinarizer.multiprocess_dataset(str(shard / text), "mmap", binariser, binary, vocab_size=len(symbols))


def parts_of(shards: Sequence[Path], part_bytes: float) -> list[list[Path]]:
    """Return the shards of each part: neighbours with at least `part_bytes` of training data; the last has the rest."""
    parts: list[list[Path]] = [[]]
    size = 0
    for shard in shards:
        if size >= part_bytes:
            parts.append([])
            size = 0
        parts[-1].append(shard)
        size += sum(path.stat().st_size for path in shard.glob("train*.bin"))
    return parts


def join_tasks(
    shards: Sequence[Path], output: Path, dictionaries: dict[str, Path], names: Sequence[str], part_bytes: float
) -> list[Task]:
    """Return a task per part; one part is the folder `output`, several are output.00, output.01 ...

    Args:
        shards: folders of binary files.
        output: folder for fairseq-train.
        dictionaries: name in the folder -> file.
        names: binary files without ending; files that do not begin with `train` are of the first part alone.
        part_bytes: training data of a part.
    """
    parts = parts_of(shards, part_bytes)
    tasks = []
    for number, part in enumerate(parts):
        folder = output if len(parts) == 1 else output.with_name(f"{output.name}.{number:02}")
        files = {
            name: part if name.startswith("train") else list(shards)
            for name in names
            if number == 0 or name.startswith("train")
        }
        tasks.append(Task(folder, join_part, (folder, dictionaries, files)))
    return tasks


def join_part(output: Path, dictionaries: dict[str, Path], files: dict[str, list[Path]]) -> None:
    """Write one part. files: name -> shards whose files of that name are joined."""
    with whole_folder(output, option="") as folder:
        for name, path in dictionaries.items():
            shutil.copy(path, folder / name)
        for name, shards in files.items():
            join_shards(shards, name, folder)


def join_shards(shards: list[Path], split: str, output: Path) -> None:
    """Write the .bin and .idx files of the shards, in this order, as one."""
    with open(output / f"{split}.bin", "wb") as file:
        for shard in shards:
            with open(shard / f"{split}.bin", "rb") as part:
                shutil.copyfileobj(part, file)
    indices = [shard / f"{split}.idx" for shard in shards]
    lengths = [struct.unpack("<Q", index.read_bytes()[_HEADER : _HEADER + 8])[0] for index in indices]
    with open(output / f"{split}.idx", "wb") as file:
        file.write(indices[0].read_bytes()[:_HEADER] + struct.pack("<Q", sum(lengths)))
        for index, length in zip(indices, lengths):  # lengths of sentences, then their places
            file.write(index.read_bytes()[_HEADER + 8 :][: 4 * length])
        start = 0
        for shard, index, length in zip(shards, indices, lengths):
            begins = np.frombuffer(index.read_bytes(), dtype="<i8", offset=_HEADER + 8 + 4 * length)
            file.write((begins + start).tobytes())
            start += (shard / f"{split}.bin").stat().st_size
