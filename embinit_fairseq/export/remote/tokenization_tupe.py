"""Text to the ids of a fairseq dictionary, with the sub-words of subword-nmt (Sennrich et al. 2016). Plain Python.

vocab.txt: a symbol a line, line n is row n of the embeddings. bpe.codes: the merges, best first. Text must be prepared
as that of the training was (lower case, tokens separated by blanks, and so on): no more than sub-words are made here.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizer

_END = "</w>"  # of a word, in the codes
_WHOLE = re.compile(r"<\w+>$")  # symbols such as <url> are no text and stay in one piece


class TupeTokenizer(PreTrainedTokenizer):
    """`low er` is written `low@@ er`. before, between: symbols in front of a sentence, and of the second of a pair."""

    vocab_files_names = {"vocab_file": "vocab.txt", "codes_file": "bpe.codes"}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(
        self,
        vocab_file: str,
        codes_file: str,
        before: list[str] | None = None,
        between: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self.files = {"vocab.txt": str(vocab_file), "bpe.codes": str(codes_file)}
        self.symbols = Path(vocab_file).read_bytes().decode("utf-8").removesuffix("\n").split("\n")
        self.row_of = {symbol: row for row, symbol in enumerate(self.symbols)}
        self.whole = {symbol for symbol in self.symbols if _WHOLE.match(symbol)}
        self.ranks, self.splits_end = _read_codes(codes_file)
        self.known: dict[str, list[str]] = {}
        self.before, self.between = before or [], between or []
        super().__init__(before=self.before, between=self.between, **kwargs)

    @property
    def vocab_size(self) -> int:
        """Rows of the embeddings."""
        return len(self.symbols)

    def get_vocab(self) -> dict[str, int]:
        """Symbol -> row."""
        return {**self.row_of, **self.added_tokens_encoder}

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return [piece for word in text.split() for piece in self._pieces(word)]

    def _pieces(self, word: str) -> list[str]:
        if word in self.whole:
            return [word]
        if word not in self.known:
            *pieces, last = self._merge(word)
            self.known[word] = [f"{piece}@@" for piece in pieces] + [last]
        return self.known[word]

    def _merge(self, word: str) -> list[str]:
        """Characters, of which the neighbours with the best rank become one until none has a rank."""
        if len(word) == 1:
            return [word]
        pieces = [*word, _END] if self.splits_end else [*word[:-1], word[-1] + _END]
        while len(pieces) > 1:
            best = min(zip(pieces, pieces[1:]), key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            pieces = _joined(pieces, best)
        return pieces[:-1] if pieces[-1] == _END else [*pieces[:-1], pieces[-1].removesuffix(_END)]

    def _convert_token_to_id(self, token: str) -> int:
        return self.row_of.get(token, self.row_of["<unk>"])

    def _convert_id_to_token(self, index: int) -> str:
        return self.symbols[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Words put together again."""
        return (" ".join(tokens) + " ").replace("@@ ", "").rstrip()

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """`<s> A </s>`, of a pair `<s> A </s> </s> B </s>`: `before`, A, </s>, `between`, B, </s>."""
        before, between = ([self.row_of[symbol] for symbol in symbols] for symbols in (self.before, self.between))
        end = [self.eos_token_id]
        return before + token_ids_0 + end + ([] if token_ids_1 is None else between + token_ids_1 + end)

    def get_special_tokens_mask(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        """1 for a special symbol, 0 for text."""
        if already_has_special_tokens:
            return [int(index in self.all_special_ids) for index in token_ids_0]
        pair = [] if token_ids_1 is None else [1] * len(self.between) + [0] * len(token_ids_1) + [1]
        return [1] * len(self.before) + [0] * len(token_ids_0) + [1] + pair

    def create_token_type_ids_from_sequences(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """Zeros: the model has no segments."""
        return [0] * len(self.build_inputs_with_special_tokens(token_ids_0, token_ids_1))

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        """Copy both files; returns where they are."""
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        saved = []
        for name, path in self.files.items():
            target = Path(save_directory) / (prefix + name)
            if target.resolve() != Path(path).resolve():
                shutil.copyfile(path, target)
            saved.append(str(target))
        return tuple(saved)


def _read_codes(path: str) -> tuple[dict[tuple[str, str], int], bool]:
    """Pair -> rank; is the end of a word a symbol of its own, as before version 0.2?"""
    lines = Path(path).read_bytes().decode("utf-8").rstrip("\n").split("\n")
    has_version = lines[0].startswith("#version:")
    ranks: dict[tuple[str, str], int] = {}
    for line in lines[has_version:]:
        left, right = line.strip("\r\n ").split(" ")
        ranks.setdefault((left, right), len(ranks))
    return ranks, not has_version or lines[0].split()[-1] == "0.1"


def _joined(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    """Every occurrence of the pair as one piece, from the left."""
    tokens: list[str] = []
    at = 0
    while at < len(pieces):
        width = 2 if tuple(pieces[at : at + 2]) == pair else 1
        tokens.append("".join(pieces[at : at + width]))
        at += width
    return tokens
