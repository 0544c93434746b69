"""GPT-2's byte-level BPE (Radford et al. 2019), which fairseq's RoBERTa and BART read text with (`--bpe gpt2`).

There `encoder.json` numbers the pieces, and the dictionary's symbols are these numbers in writing (`318`): row r of the
embeddings belongs to the piece whose number is symbol r. The exported tokenizer has the pieces under their rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from embinit_fairseq.bounded import read_json, read_lines
from embinit_fairseq.errors import DataError, counted
from embinit_fairseq.vocab.dictionary import is_filler

FLAG = "--gpt2-bpe"
_FILES = ("encoder.json", "vocab.bpe")
_MASK = "<mask>"


class Gpt2:
    """The files of `folder` beside a dictionary's rows. Raises DataError for files that are damaged or do not fit."""

    def __init__(self, folder: str, rows: Mapping[str, int], where: str) -> None:
        """where: the path of the dictionary."""
        from fairseq.data.encoders.gpt2_bpe_utils import Encoder

        self._rows, places = rows, [Path(folder) / name for name in _FILES]
        if not all(place.is_file() for place in places):
            raise DataError(f"{FLAG} {folder}: it lacks {' or '.join(_FILES)}; give the folder that holds both")
        numbers = read_json(places[0], DataError, remedy="download it again")
        if not isinstance(numbers, dict) or not all(type(number) is int for number in numbers.values()):
            raise DataError(f"{FLAG} {places[0]}: not piece -> number; download it again")
        lines = [line.split() for _, line in read_lines(places[1], DataError, FLAG)][1:]
        self.merges = [(line[0], line[1]) for line in lines if len(line) == 2]
        self._check_rows(folder, numbers, where)
        pieces = {piece: rows[str(number)] for piece, number in numbers.items()}
        others = {symbol: row for symbol, row in rows.items() if row not in set(pieces.values())}
        self.vocabulary = {**others, **pieces}
        used = {piece for merge in self.merges for piece in (*merge, "".join(merge))}
        if len(self.vocabulary) != len(rows) or not used <= pieces.keys():
            raise DataError(f"{FLAG} {folder}: {' and '.join(_FILES)} do not belong together; download both again")
        self._encoder = Encoder(numbers, self.merges)

    def _check_rows(self, folder: str, numbers: Mapping[str, int], where: str) -> None:
        lacking = [piece for piece, number in numbers.items() if str(number) not in self._rows]
        if lacking:
            raise DataError(
                f"{FLAG} {folder}: {counted(len(lacking), 'piece')} ({lacking[0]!r}, say) of {len(numbers):,} have no "
                f"row in {where}, which a tokenizer of transformers cannot say: give the files that the dictionary was "
                f"made with, or leave {FLAG} out"
            )

    def encode(self, line: str) -> list[int]:
        """The rows that fairseq's own encoder, and its hub for <mask>, gives a text."""
        rows: list[int] = []
        for number, part in enumerate(line.split(_MASK)):
            rows += [self._rows[_MASK]] if number else []
            text = part.rstrip() if number < line.count(_MASK) else part
            rows += [self._rows[str(piece)] for piece in self._encoder.encode(text)]
        return rows

    def sample(self, draw: Random, count: int) -> list[str]:
        """Made-up text of its pieces."""
        numbers = sorted(self._encoder.decoder)
        drawn = (draw.choices(numbers, k=draw.randint(1, 16)) for _ in range(count))
        return ["", "  two  blanks ", "Ünknøwn 未知 don't ???", *map(self._encoder.decode, drawn)]

    def tokenizer(self) -> tuple[Any, Any, Any]:
        """What `tokenizers` makes of it: model, what cuts a text before, decoder."""
        from tokenizers import decoders, models, pre_tokenizers

        model = models.BPE(self.vocabulary, self.merges, fuse_unk=False)
        return model, pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()


def is_numbers(symbols: list[str]) -> bool:
    """Does a dictionary hold numbers of pieces?"""
    words = [symbol for symbol in symbols if not symbol.startswith("<") and not is_filler(symbol)]
    return len(words) > 1 and all(word.isascii() and word.isdigit() for word in words)
