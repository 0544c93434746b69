"""Shards of raw text -> one tokenised sentence a line, a blank line behind each document, and counts of the words.

work/raw/00000.txt -> work/clean/00000/{train.txt,valid.txt,words.txt,stats.json}

From a line of text to tokenised sentences there is one function per step (Ke et al. 2021, appendix B). Web addresses,
e-mail addresses and file names become the symbols <url>, <email>, <file>. On their way through the libraries the
symbols are private-use characters, which nothing splits, joins or changes; such characters of the text itself are
removed first, with everything else that does not print.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

from wikibooks.duplicates import UNITS, read_documents, repeated_units
from wikibooks.pool import run_tasks
from wikibooks.split import MAX_CHARS, PASSAGE_LINES, passages_of, read_records, text_of
from wikibooks.words import write_counts

from embinit_fairseq.errors import one_line
from embinit_fairseq.files import whole_folder
from embinit_fairseq.machine import cores

MIN_CHARS = 20
UNKNOWN = "<unk>"  # fairseq's symbol; also as it stands in WikiText
SYMBOLS = ("<file>", "<email>", "<url>")  # in the order of the authors' dictionary
_CARRIER = {symbol: chr(0xE000 + index) for index, symbol in enumerate((*SYMBOLS, UNKNOWN))}
_SYMBOL = {carrier: symbol for symbol, carrier in _CARRIER.items()}

_WRITTEN = re.compile("|".join(_CARRIER), re.IGNORECASE)
_CLOSING = r"""[^\s<>"'.,;:!?)\]}]"""  # an address does not end in punctuation
# The look-behinds let every run of letters be tried once only: the time is linear in the length of the line.
_PATTERN = re.compile(
    rf"""
      (?P<url>(?:(?:https?|ftp)://|(?<![\w.-])www\.)[^\s<>"]*{_CLOSING})
    | (?<![\w.+-]) (?P<email>[\w.+-]+@(?:[\w-]+\.)+[a-z]{{2,}})
    | (?<![\w@.-]) (?P<domain>(?:[a-z0-9-]+\.)+(?:com|net|org|edu|gov)(?![\w@-])(?:/[^\s<>"]*{_CLOSING})?)
    | (?<![\w.-])  (?P<file>[\w-]{{2,}}(?:\.[\w-]+)*\.(?:
            pdf|docx?|xlsx?|pptx?|rtf|txt|csv|tsv|html?|jpe?g|png|gif|bmp|svg|mp3|mp4|wav|wma|avi|mov|mid|zip|exe|bat|py|cpp
        )(?![\w-]))
    """,
    re.VERBOSE | re.IGNORECASE,
)
_TOO_LONG = re.compile(r"\S{201,}")  # rulers and noise; the libraries' time grows with the square of a word's length
_SYMBOL_OF_GROUP = {"url": "<url>", "domain": "<url>", "email": "<email>", "file": "<file>"}
_HAS_WORD = re.compile(rf"\w|[{''.join(_SYMBOL)}]")


def replace_patterns(text: str) -> str:
    """Addresses and file names -> carriers of their symbols; also symbols that are written out in the text."""
    text = _WRITTEN.sub(lambda match: _CARRIER[match.group().lower()], text)
    if "." in text or "://" in text:
        text = _PATTERN.sub(lambda match: _CARRIER[_SYMBOL_OF_GROUP[match.lastgroup]], text)
    return text


def replace_long_words(text: str) -> str:
    """More than 200 characters without a blank -> the carrier of <unk>."""
    return _TOO_LONG.sub(_CARRIER[UNKNOWN], text)


def restore_symbols(token: str) -> str:
    return _SYMBOL.get(token, token)


def normaliser() -> Callable[[str], str]:
    """Moses' normalisation of punctuation: quotes, dashes, dots, blanks around brackets."""
    from sacremoses import MosesPunctNormalizer

    return MosesPunctNormalizer(lang="en").normalize


def control_remover() -> Callable[[str], str]:
    """Removes what does not print (Unicode's category C); blanks of all kinds become one blank."""
    from sacremoses import MosesPunctNormalizer

    remove = MosesPunctNormalizer(lang="en").remove_control_chars
    return lambda text: remove(" ".join(text.split()))


def sentence_splitter() -> Callable[[str], list[str]]:
    """spaCy's rules for English, which know abbreviations; no model is needed."""
    import spacy

    language = spacy.blank("en")
    language.add_pipe("sentencizer")
    language.max_length = 1 << 30  # the limit is meant for parsers; lines are short enough
    return lambda text: [sentence.text for sentence in language(text).sents]


def tokeniser() -> Callable[[str], list[str]]:
    """Moses' tokens, without its escapes."""
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang="en")
    return lambda text: tokenizer.tokenize(text, escape=False)


class Cleaner:
    """All steps of a line. Make a new one now and then: spaCy remembers every word that it has seen."""

    def __init__(self) -> None:
        try:
            self._printable, self._normalise = control_remover(), normaliser()
            self._sentences, self._tokens = sentence_splitter(), tokeniser()
        except ModuleNotFoundError as error:
            raise SystemExit(f"error: {error.name} is missing: pip install sacremoses spacy") from None

    def __call__(self, line: str) -> list[list[str]]:
        """The sentences of a line as lists of lower-case tokens, without those that have no letter, digit or symbol."""
        text = replace_long_words(self._normalise(replace_patterns(self._printable(line))))
        sentences = [sentence for sentence in self._sentences(text) if _HAS_WORD.search(sentence)]
        return [[restore_symbols(token) for token in self._tokens(sentence.lower())] for sentence in sentences]


# ---- documents -------------------------------------------------------------------------------------------------------

Sentences = list[list[str]]


def without_duplicates(
    documents: Iterator[list[bytes]], repeated: set[int], unit: str
) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
    """(lines that the document had, [(number in the document, line) of what is left of it])."""
    number = 0
    for document in documents:
        lines = list(enumerate(document))
        if unit == "documents":
            yield len(lines), [] if number in repeated else lines
            number += 1
        else:
            yield len(lines), [line for line in lines if number + line[0] not in repeated]
            number += len(lines)


def parts(lines: list[tuple[int, bytes]], passage: int, valid_every: int) -> Iterator[tuple[str, list[bytes]]]:
    """A document, whose first passage has that number, as neighbouring lines of the same split."""

    def split_of(line: tuple[int, bytes]) -> str:
        return "valid" if (passage + line[0] // PASSAGE_LINES) % valid_every == valid_every - 1 else "train"

    for split, group in groupby(lines, split_of):
        yield split, [line for _, line in group]


def characters(sentences: Sentences) -> int:
    """Length of a document of tokens separated by blanks."""
    return sum(len(token) + 1 for sentence in sentences for token in sentence)


class ShardWriter:
    """Writes the documents of one shard and counts what they hold."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.files = {split: (folder / f"{split}.txt").open("w", encoding="utf-8") for split in ("train", "valid")}
        self.words: Counter[str] = Counter()  # of the training text only: the validation text teaches nothing
        self.stats: Counter[str] = Counter()

    def add(self, split: str, sentences: Sentences) -> None:
        length = characters(sentences)
        if not MIN_CHARS <= length <= MAX_CHARS:
            self.stats["documents_out_of_length"] += length > 0
            return
        self.files[split].write("\n".join(map(" ".join, sentences)) + "\n\n")
        words = Counter(token for sentence in sentences for token in sentence)
        found = {"documents": 1, "sentences": len(sentences), "words": sum(words.values())}
        self.stats.update({f"{split}_{what}": number for what, number in found.items()})
        for symbol in (*SYMBOLS, UNKNOWN):
            self.stats[symbol] += words.pop(symbol, 0)
        if split == "train":
            self.words.update(words)

    def close(self) -> None:
        for file in self.files.values():
            file.close()
        write_counts(self.words, self.folder / "words.txt")
        (self.folder / "stats.json").write_text(json.dumps(self.stats) + "\n")


def clean_shard(shard: int, work: Path, output: Path, passage: int, valid_every: int, unit: str) -> None:
    """passage: the number of the shard's first passage."""
    cleaner = Cleaner()
    repeated = set() if unit == "none" else repeated_units(work / "duplicates", shard)
    with whole_folder(output / f"{shard:05}", option="") as folder:
        writer = ShardWriter(folder)
        writer.stats[f"duplicate_{unit}"] += len(repeated)
        raw = read_documents(text_of(work / "raw", shard))
        for size, lines in without_duplicates(raw, repeated, unit):
            for split, group in parts(lines, passage, valid_every):
                texts = [line.decode("utf-8", "ignore") for line in group]
                writer.stats["lines_not_utf8"] += sum(len(t.encode()) != len(g) for t, g in zip(texts, group))
                writer.add(split, [sentence for text in texts for sentence in cleaner(text)])
            passage += passages_of(size)
        writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder with raw/ and duplicates/; gets clean/")
    parser.add_argument("--unit", choices=UNITS, default="lines", help="what was compared (default %(default)s)")
    parser.add_argument("--valid-every", type=int, default=200, help="every N-th passage is for validation")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes (default: one per core)")
    args = parser.parse_args()
    output = args.work / "clean"
    tasks = [
        (record["bytes"], (shard, args.work, output, record["first_passage"], args.valid_every, args.unit))
        for shard, record in enumerate(read_records(args.work / "raw"))
        if not (output / f"{shard:05}").is_dir()
    ]
    if tasks:
        Cleaner()  # a missing library is best reported before anything is done
    run_tasks("cleaning", clean_shard, tasks, args.jobs)


if __name__ == "__main__":
    with one_line():
        main()
