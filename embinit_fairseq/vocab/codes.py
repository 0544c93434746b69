"""Read the codes of BPE of subword-nmt, fastBPE and Hugging Face, models of sentencepiece, and tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embinit_fairseq.errors import DataError
from embinit_fairseq.io import PathLike, check_is_file, read_lines
from embinit_fairseq.vocab.subword_styles import PREFIX


def codes_text(path: str, flag: str = "--bpe-codes") -> str:
    """Read BPE codes and return them as subword-nmt writes them: `#version: 0.2`, then a pair of subwords per line.

    fastBPE has no version and a count after each pair, Hugging Face a longer first line; a tab separates as a space.
    If no line says the version, the pairs show it: in 0.1 the end of a word, `</w>`, is a subword of its own.

    Raises:
        DataError: a line is not a pair, or the file holds something else: byte-level merges, subwords and counts.
    """
    version, pairs, blank = "", [], 0
    for number, line in read_lines(path, DataError, flag):
        pair = line.strip("\r\n\t ").replace("\t", " ").split(" ")
        if number == 1 and pair[0] == "#version:":
            version = pair[1] if pair[1:] else ""
            continue
        pair = pair[:2] if len(pair) == 3 and pair[2].isdecimal() else pair
        if pair != [""] and (blank or len(pair) != 2):
            where, shown = (blank, "an empty line") if blank else (number, repr(line[:60]))
            raise DataError(
                f"{flag} {path}:{where}: found {shown}, expected two subwords; give the codes of subword-nmt or fastBPE"
            )
        blank = blank or (number if pair == [""] else 0)
        pairs += [pair] if pair != [""] else []
    has_ends = any(subword.endswith("</w>") for pair in pairs for subword in pair)
    if not version:
        version = "0.2" if has_ends and not any(right == "</w>" for _, right in pairs) else "0.1"
    for kind, (holds, remedy) in {
        "no pair": (not pairs, "give the file that learn-bpe wrote"),
        f"version {version}": (version not in ("0.1", "0.2"), "give codes of version 0.1 or 0.2"),
        "subwords with their counts": (all(right.isdecimal() for _, right in pairs), "give the codes, not the counts"),
        "byte-level merges": (not has_ends and any("Ġ" in pair[0] for pair in pairs), "see --gpt2-bpe of export-hf"),
        "merges of sentencepiece": (
            not has_ends and any(PREFIX["sentencepiece"] in pair[0] for pair in pairs),
            "give its model",
        ),
    }.items():
        if holds:
            raise DataError(f"{flag} {path}: found {kind}, expected pairs that join to words ending in </w>; {remedy}")
    return "\n".join([f"#version: {version}", *map(" ".join, pairs), ""])


#: `bpe.codes` + this: one subword and its count per line; text may have these subwords only (written by `trim-vocab`).
#: fairseq's `--bpe subword_nmt` reads the file by the fix `bpe_vocabularies` of fairseq_compat.
VOCABULARY = ".vocabulary"


def codes_vocabulary(path: str) -> frozenset[str] | None:
    """Return the subwords that text may have if it is segmented with the codes `path`; None without that file.

    Raises:
        DataError: a line is not a subword and its count.
    """
    file, subwords = Path(path + VOCABULARY), set()
    if not file.exists():
        return None
    for number, line in read_lines(file, DataError):
        subword, _, count = line.rpartition(" ")
        if not subword or not count.isdecimal():
            raise DataError(
                f"{file}:{number}: found {line[:60]!r}, expected a subword, a space and a count (as get-vocab of "
                "subword-nmt writes them)"
            )
        subwords.add(subword)
    return frozenset(subwords)


def load_sentencepiece(file: PathLike, flag: str = "") -> Any:
    """Return the processor of a sentencepiece model; raise DataError, with the flag, if it cannot be read."""
    import sentencepiece

    check_is_file(file, flag)
    try:
        return sentencepiece.SentencePieceProcessor(model_file=str(file))
    except Exception as error:  # a damaged model raises RuntimeError, TypeError and others
        raise DataError(f"{flag} {file}: not a sentencepiece model ({error}); give the model of the text") from error


#: remedy for a folder or a file without tokenizer.json
WRITE_TOKENIZER = (
    'write a folder with tokenizer.json and give that: python -c "from transformers import AutoTokenizer; '
    "AutoTokenizer.from_pretrained('OLD').save_pretrained('NEW')\""
)


def tokenizer_text(file: PathLike, flag: str = "--tokenizer") -> str:
    """Return the text of a tokenizer.json; raise DataError, with the flag, if it is something else."""
    check_is_file(file, flag, remedy=WRITE_TOKENIZER)
    try:
        text = Path(file).read_text(encoding="utf-8")
        from tokenizers import Tokenizer

        Tokenizer.from_str(text)
    except ImportError:  # named when it is used
        pass
    except Exception as error:  # the library raises no narrower class
        raise DataError(f"{flag} {file}: not a tokenizer.json ({str(error)[:100]}); {WRITE_TOKENIZER}") from error
    return text
