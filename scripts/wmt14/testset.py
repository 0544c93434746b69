"""Read newstest2014 and write its raw text, the reference of BLEU, and its pieces.

The raw text is that of sacrebleu's test set wmt14/full.
"""

from __future__ import annotations

import html
import sys
from pathlib import Path

from wmt14.clean import cleaner
from wmt14.encode import piece_encoder
from wmt14.sgm import read_pair, same_length, utf8_lines

from embinit_fairseq.io import read_json, whole_folder, write_text

#: sentences of newstest2014 as released after the evaluation, in both pairs
SENTENCES = 3003


def read_text(path: Path) -> list[str]:
    """Return the lines of a plain text, with single spaces."""
    return [" ".join(line.split()) for line in utf8_lines(path)]


def read_sacrebleu(pair: str) -> tuple[list[str], list[str]]:
    """Read sacrebleu's own copy, which it downloads and checks (MD5) the first time."""
    from sacrebleu.utils import get_reference_files, get_source_file

    try:
        files = get_source_file("wmt14/full", pair), get_reference_files("wmt14/full", pair)[0]
    except OSError as error:
        raise SystemExit(
            f"error: sacrebleu cannot download wmt14/full ({error}): check the connection, or set DATA to a folder "
            "with newstest2014"
        ) from None
    return read_text(Path(files[0])), read_text(Path(files[1]))


def read_test(test: dict[str, str], pair: str) -> tuple[list[str], list[str]]:
    """Return source and reference; SystemExit if they do not belong together or are incomplete."""
    if test["kind"] == "sacrebleu":
        return read_sacrebleu(pair)
    paths = Path(test["src"]), Path(test["ref"])
    if test["kind"] == "sgm":
        return read_pair(*paths)
    sides = read_text(paths[0]), read_text(paths[1])
    same_length(paths, sides)
    return sides


def write_test(files: Path, pair: str, tokens: str, model: Path, raw: Path, pieces: Path) -> None:
    """Write the test set.

    Args:
        files: work/files.json.
        pair: source and target, as en-de.
        tokens: kind of `model`.
        model: merges of BPE or sentencepiece model.
        raw: folder for test.LANG, the reference of BLEU.
        pieces: folder for test.LANG in pieces.
    """
    texts = read_test(read_json(files)["test"], pair)
    if len(texts[0]) != SENTENCES:
        print(f"note: the test set has {len(texts[0]):,} sentences; newstest2014 has {SENTENCES:,}", file=sys.stderr)
    encode = piece_encoder(tokens, model)
    with whole_folder(pieces, option="") as folder:
        for lang, lines in zip(pair.split("-"), texts):
            clean = cleaner(lang, tokens)
            # sgm files have escapes (AT&amp;T), the training text does not
            segmented = (" ".join(encode(clean(html.unescape(line)))) for line in lines)
            write_text(raw / f"test.{lang}", "".join(f"{line}\n" for line in lines))
            write_text(folder / f"test.{lang}", "".join(f"{line}\n" for line in segmented))
