"""Segmenting words by a Hugging Face directory's own tokenizer, for words without a row of their own."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import OptionError, VectorFileError
from embinit_fairseq.vectors.hf_files import read_optional_json
from embinit_fairseq.vectors.hf_vocab import SENTENCEPIECE_FILES, Vocabulary, load_sentencepiece

#: A word -> the rows of its pieces, unknown pieces left out.
Segmenter = Callable[[str], "list[int]"]


def segmenter(directory: Path, vocabulary: Vocabulary) -> Segmenter:
    """The tokenizer that belongs to `vocabulary`; OptionError if the directory does not hold one."""
    unknown = vocabulary.specials.get("unk")
    if vocabulary.file.name == "tokenizer.json":
        return _fast(vocabulary.file, _load_tokenizer(vocabulary.file), vocabulary.markers, unknown)
    if vocabulary.file.name == "vocab.txt":
        return _wordpiece(directory, vocabulary.rows, unknown)
    if vocabulary.file.name in SENTENCEPIECE_FILES:
        processor = load_sentencepiece(vocabulary.file)
        rows = vocabulary.rows
        return lambda word: [
            rows[piece] for piece in processor.encode(_text(word), out_type=str) if rows.get(piece, unknown) != unknown
        ]
    if vocabulary.markers == "bytelevel":
        return _fast(vocabulary.file, _bytelevel_tokenizer(directory), vocabulary.markers, unknown)
    raise OptionError(
        f"{directory}: words cannot be composed (--embed-init-oov subword): {vocabulary.file.name} lists pieces but "
        "not how to cut words; save tokenizer.json beside it, or choose another --embed-init-oov"
    )


def _text(word: str) -> str:
    """The word without lone surrogates, which are no text."""
    return word.encode("utf-8", "ignore").decode("utf-8")


def _tokenizers(file: Path) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise VectorFileError(f"{file}: segmenting words by it needs a package: pip install tokenizers") from error
    return tokenizers


def _load_tokenizer(file: Path) -> Any:
    tokenizers = _tokenizers(file)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise VectorFileError(
            f"{file}: the tokenizers package cannot read it ({error}); download it again or: pip install -U tokenizers"
        ) from error
    tokenizer.no_padding()  # both may be stored in the file
    tokenizer.no_truncation()
    return tokenizer


def _bytelevel_tokenizer(directory: Path) -> Any:
    """GPT-2's tokenizer from vocab.json and merges.txt."""
    merges = directory / "merges.txt"
    tokenizers = _tokenizers(merges)
    try:
        model = tokenizers.models.BPE.from_file(str(directory / "vocab.json"), str(merges))
    except Exception as error:  # the library raises plain Exception
        raise VectorFileError(f"{merges}: not BPE merges that fit vocab.json ({error}); download it again") from error
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def _fast(file: Path, tokenizer: Any, markers: str, unknown: int | None) -> Segmenter:
    # A word inside a text follows a blank, and byte-level tokenizers give that blank to the word.
    prefix = " " if markers == "bytelevel" else ""

    def cut(word: str) -> list[int]:
        try:  # one at a time: encode_batch starts threads, which forked data loaders do not survive
            rows = tokenizer.encode(prefix + word, add_special_tokens=False).ids
        except (TypeError, UnicodeError):  # lone surrogates are no text
            return []
        except Exception as error:  # the library raises plain Exception
            raise VectorFileError(f"{file}: it cannot cut {word!r} ({error}); save the tokenizer again") from error
        return [row for row in rows if row != unknown]

    return cut


def _wordpiece(directory: Path, rows: dict[str, int], unknown: int | None) -> Segmenter:
    """BERT's rule: punctuation stands alone, then the longest piece first; a rest without piece spoils its word."""
    lower = _lower_cased(directory, rows)

    def cut(word: str) -> list[int]:
        if lower:
            word = "".join(c for c in unicodedata.normalize("NFD", word.lower()) if unicodedata.category(c) != "Mn")
        return [row for part in _split(word) for row in _longest_first(part, rows) if row != unknown]

    return cut


def _lower_cased(directory: Path, rows: dict[str, int]) -> bool:
    """Whether the tokenizer lower-cases: as declared, else judged by the vocabulary."""
    declared = read_optional_json(directory / "tokenizer_config.json").get("do_lower_case")
    if isinstance(declared, bool):
        return declared
    return not any(token[:1].isupper() and token.isalpha() for token in rows)


def _split(word: str) -> list[str]:
    """Words and single punctuation marks."""
    parts: list[str] = [""]
    for character in word:
        if character.isspace():
            parts.append("")
        elif _is_punctuation(character):
            parts += [character, ""]
        else:
            parts[-1] += character
    return [part for part in parts if part]


def _is_punctuation(character: str) -> bool:
    """BERT counts all ASCII signs, `$` and `^` too."""
    return unicodedata.category(character).startswith("P") or (character.isascii() and not character.isalnum())


def _longest_first(part: str, rows: dict[str, int]) -> list[int]:
    found: list[int] = []
    begin = 0
    while begin < len(part):
        prefix = "##" if begin else ""
        ends = range(len(part), begin, -1)
        end = next((end for end in ends if prefix + part[begin:end] in rows), None)
        if end is None:
            return []
        found.append(rows[prefix + part[begin:end]])
        begin = end
    return found
