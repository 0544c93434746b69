"""Segment text with codes of subword-nmt; extend them by words that stay whole, or take subwords away.

The codes stay. New words are a glossary: `apply-bpe --glossaries` takes regular expressions and isolates their matches
inside longer words, too (`cat` in `category`); an expression that is anchored at both ends matches whole words only.
Further merges would join the ends of longer words, too.

Merges that make a removed subword are steps to longer ones. A vocabulary next to the codes splits removed subwords,
merge by merge, until all parts are in the vocabulary (`apply-bpe --vocabulary`); other words are segmented as before.
"""

from __future__ import annotations

import functools
import io
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from subword_nmt.apply_bpe import BPE, recursive_split

from embinit_fairseq.errors import DataError
from embinit_fairseq.vocab.codes import VOCABULARY, codes_text, codes_vocabulary
from embinit_fairseq.vocab.subword_styles import CONTINUES

#: codes, words that stay whole, and subwords that text may have, as `write` names them
SUBWORD_NMT_FILES = ("bpe.codes", "glossary.txt", f"bpe.codes{VOCABULARY}")
_ARGUMENT = 128 * 1024 - 1  #: bytes of one argument of a command (Linux)


class SubwordNmt:
    """Segment with BPE codes. Next to them may be words that stay whole, and the vocabulary of a trimmed model.

    Args:
        path: the codes.
        flag: option that names the codes, for messages.
        symbols: the dictionary's symbols; other words of the glossary belong to the other side. None: all words stay.
        vocabulary: the subwords that text may have; None for those next to the codes, or all.
    """

    kind, option = "subword-nmt", "codes"

    def __init__(
        self,
        path: str,
        flag: str = "--bpe-codes",
        symbols: Collection[str] | None = None,
        vocabulary: frozenset[str] | None = None,
    ) -> None:
        self.path, self.flag = path, flag
        words = _read_glossary(Path(path).with_name(SUBWORD_NMT_FILES[1]))
        self.whole = [word for word in words if symbols is None or word in symbols]
        self.vocabulary = codes_vocabulary(path) if vocabulary is None else vocabulary
        self._bpe = read_codes(path, flag, glossary(self.whole) if self.whole else None, self.vocabulary)

    def segment(self, text: str) -> list[str]:
        """Return the subwords of a sentence."""
        return self._bpe.process_line(text).split()

    symbols_of = segment

    def segment_symbol(self, symbol: str) -> list[str]:
        """Return the subwords of a word; none for a symbol that ends with @@, which is not a whole word."""
        return [] if symbol.endswith(CONTINUES) else self.segment(symbol)

    def split(self, symbol: str) -> list[str]:
        """Return the subwords that replace this one, which the codes alone would make."""
        if not symbol.endswith(CONTINUES) or symbol in (self.vocabulary or {symbol}):
            return self.segment_symbol(symbol) or [symbol]
        merges = self._bpe.bpe_codes_reverse
        parts = recursive_split(symbol.removesuffix(CONTINUES), merges, self.vocabulary, CONTINUES, final=False)
        return [part + CONTINUES for part in parts]

    def surface(self, symbol: str) -> str:
        """Return the characters of a symbol."""
        return symbol.removesuffix(CONTINUES)

    def join(self, subwords: Sequence[str]) -> str:
        """Spell subwords as one; the mark at the end stays."""
        return " ".join(subwords).replace(f"{CONTINUES} ", "")

    def text_of(self, symbol: str) -> str:
        """Return a symbol as text has it."""
        return symbol

    def makes(self, symbol: str) -> bool:
        """Return True if the symbol can be a subword of a text."""
        return symbol in self.made

    def is_unknown(self, symbol: str) -> bool:
        """Return False: unknown characters are single symbols here."""
        return False

    @functools.cached_property
    def made(self) -> set[str]:
        """Return the subwords that the codes join, and the words that stay whole."""
        merged = {"".join(pair) for pair in self._bpe.bpe_codes}
        ends = {text.removesuffix("</w>") for text in merged if text.endswith("</w>") or self._bpe.version == (0, 1)}
        made = {*self.whole, *ends, *(text + CONTINUES for text in merged if not text.endswith("</w>"))}
        return made if self.vocabulary is None else made & self.vocabulary

    def obstacle(self, word: str) -> str | None:
        """Return why a new word cannot be one subword, with a remedy; None if it can."""
        ends = f"it ends with {CONTINUES}, which is no whole word; write one, or leave it out"
        return ends if word.endswith(CONTINUES) else None

    def is_word(self, subwords: Sequence[str], at: int) -> bool:
        """Return True if `subwords[at]`, which ends a word, is the whole word."""
        return at == 0 or not subwords[at - 1].endswith(CONTINUES)

    def restricted(self, symbols: frozenset[str]) -> SubwordNmt:
        """Return the segmentation that makes no subwords but these, and single characters."""
        if self._bpe.version == (0, 1):
            raise DataError(
                f"{self.flag} {self.path}: codes of version 0.1, whose merges apply-bpe --vocabulary cannot undo; "
                f"leave {self.flag} out"
            )
        return SubwordNmt(self.path, self.flag, symbols, symbols)

    def write(self, words: Sequence[str], folder: Path) -> SubwordNmt:
        """Write the codes and a glossary with `words`; raise DataError if it is too long for a command line."""
        whole = [*self.whole, *words]
        expression = glossary(whole)
        if (size := len(expression.encode())) > _ARGUMENT:
            raise DataError(
                f"--words: a glossary of {size:,} bytes, but apply-bpe takes it as an argument, which has at most "
                f"{_ARGUMENT:,}; add fewer words, or leave {self.flag} out and segment the text by other means"
            )
        codes, words_file, vocabulary = (folder / name for name in SUBWORD_NMT_FILES)
        codes.write_bytes(codes_text(self.path, self.flag).encode("utf-8"))
        if whole:
            words_file.write_bytes(f"{expression}\n".encode())
        if self.vocabulary is not None:
            subwords = sorted({*self.vocabulary, *words})
            vocabulary.write_bytes("".join(f"{subword} 1\n" for subword in subwords).encode("utf-8"))
        return SubwordNmt(str(codes))

    def command(self, folder: str) -> str:
        """Return the shell command that segments a text with the files in `folder`."""
        codes, words, vocabulary = (shlex.quote(str(Path(folder) / name)) for name in SUBWORD_NMT_FILES)
        options = [f'--glossaries "$(cat {words})"'] if self.whole else []
        options += [] if self.vocabulary is None else [f"--vocabulary {vocabulary}"]
        return " ".join(["subword-nmt apply-bpe --codes", codes, *options, "< TEXT > PIECES"])


def read_codes(
    path: str, flag: str = "--bpe-codes", glossary: str | None = None, vocabulary: frozenset[str] | None = None
) -> Any:
    """Return subword-nmt's BPE for a file of codes (see `codes_text`).

    Args:
        path: the codes.
        flag: option that names them, for messages.
        glossary: regular expression of the words that stay whole.
        vocabulary: the subwords that text may have; None for all.
    """
    return BPE(io.StringIO(codes_text(path, flag)), vocab=vocabulary, glossaries=[glossary] if glossary else None)


def glossary(words: Iterable[str]) -> str:
    """Return a regular expression for --glossaries that matches these words and nothing inside longer ones."""
    return f"^(?:{'|'.join(map(re.escape, words))})$"


def _read_glossary(path: Path) -> list[str]:
    """Return the words of a glossary that `SubwordNmt.write` wrote; none if there is no file."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8-sig", errors="replace").strip()
    words = [re.sub(r"\\(.)", r"\1", word) for word in re.findall(r"(?:\\.|[^\\|])+", text[4:-2])]
    if glossary(words) != text:
        raise DataError(
            f"{path}: is next to --bpe-codes, but expand-vocab did not write it; move it, or copy the codes to "
            "another folder"
        )
    return words
