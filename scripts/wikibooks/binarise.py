"""Binarise encoded shards for fairseq-train, as fairseq-preprocess would binarise all of them in one file.

fairseq-preprocess itself holds every sentence's length and position as Python objects, about 80 bytes per line. Here
its binariser works on one shard at a time, in several processes, and the files of the shards are joined. The
dictionary begins with the three symbols, as that of TUPE's code does, whether they occur or not.

work/encoded/*/{train,valid,symbols}.txt -> bin/{dict.txt,train.bin,train.idx,valid.bin,valid.idx}
"""

from __future__ import annotations

import logging
import shutil
import struct
from pathlib import Path

import numpy as np

logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)  # every process would ask for tensorboardX
from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer  # noqa: E402
from fairseq.data import Dictionary  # noqa: E402
from wikibooks.cleaning import SYMBOLS  # noqa: E402
from wikibooks.encode import text_bytes  # noqa: E402
from wikibooks.pool import finished_shards, run_tasks  # noqa: E402
from wikibooks.words import read_counts  # noqa: E402

from embinit_fairseq.io import whole_folder  # noqa: E402

#: bytes of an index before the number of sentences: magic, version, code of the number's type
_HEADER = 18
SPLITS = ("train", "valid")


def binarise(work: Path, output: Path, vocabulary: int, jobs: int) -> int:
    """Write `output`; return the number of lines of its dictionary.

    Args:
        work: folder with encoded/; binary/ is written there.
        output: folder for fairseq-train.
        vocabulary: symbols of the dictionary, with fairseq's own four.
        jobs: processes.
    """
    encoded, binary = finished_shards(work / "encoded"), work / "binary"
    with whole_folder(output, force=True) as folder:
        dictionary = folder / "dict.txt"
        write_dictionary([shard / "symbols.txt" for shard in encoded], dictionary, vocabulary)
        missing = [shard for shard in encoded if not (binary / shard.name).is_dir()]
        tasks = [(text_bytes(shard), (shard, binary, dictionary)) for shard in missing]
        run_tasks("binarising", binarise_shard, tasks, jobs)
        for split in SPLITS:
            join_shards([binary / shard.name for shard in encoded], split, folder)
        with open(dictionary, encoding="utf-8") as lines:
            return sum(1 for _ in lines)


def write_dictionary(counts: list[Path], path: Path, size: int) -> None:
    """Write the most frequent symbols, `size` with fairseq's own four, padded to a multiple of eight."""
    dictionary = Dictionary(extra_special_symbols=SYMBOLS)
    dictionary.count = [0] * len(dictionary)  # extra symbols are counted once when they are added
    for shard in counts:
        for symbol, count in read_counts(shard):
            dictionary.add_symbol(symbol, count)
    dictionary.finalize(nwords=size, padding_factor=8)
    # Dictionary.save would leave the extra symbols out, and every other symbol's number would be wrong by three.
    own = dictionary.unk() + 1
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{s} {n}\n" for s, n in zip(dictionary.symbols[own:], dictionary.count[own:]))


def binarise_shard(shard: Path, output: Path, dictionary: Path) -> None:
    """Write the binary files of one shard."""
    symbols = Dictionary.load(str(dictionary))
    binariser = VocabularyDatasetBinarizer(symbols, append_eos=True)
    with whole_folder(output / shard.name, option="") as folder:
        for split in SPLITS:
            text = str(shard / f"{split}.txt")
            FileBinarizer.multiprocess_dataset(text, "mmap", binariser, str(folder / split), vocab_size=len(symbols))


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
        for index, length in zip(indices, lengths):  # sentences' lengths, then where they begin
            file.write(index.read_bytes()[_HEADER + 8 :][: 4 * length])
        start = 0
        for shard, index, length in zip(shards, indices, lengths):
            begins = np.frombuffer(index.read_bytes(), dtype="<i8", offset=_HEADER + 8 + 4 * length)
            file.write((begins + start).tobytes())
            start += (shard / f"{split}.bin").stat().st_size
