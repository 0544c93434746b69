"""newstest2014: raw text, the reference of BLEU, and its pieces.

The raw text is what sacrebleu makes of the same files for its test set wmt14/full.
"""

from __future__ import annotations

import argparse
import html
import json
import sys
from pathlib import Path

from wmt14.clean import TOKENS, cleaner
from wmt14.encode import piece_encoder
from wmt14.sgm import read_pair, same_length, utf8_lines

from embinit_fairseq.files import write_text

ORIGINS = ("data", "sacrebleu")
SENTENCES = 3003  # of newstest2014 after the evaluation, in both pairs


def read_text(path: Path) -> list[str]:
    return [" ".join(line.split()) for line in utf8_lines(path)]


def read_sacrebleu(pair: str) -> tuple[list[str], list[str]]:
    """sacrebleu's own copy, which it downloads and checks (MD5) the first time."""
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
    """Source and reference. Raises SystemExit if they do not belong together or are not whole."""
    if test["kind"] == "sacrebleu":
        return read_sacrebleu(pair)
    paths = Path(test["src"]), Path(test["ref"])
    if test["kind"] == "sgm":
        return read_pair(*paths)
    sides = read_text(paths[0]), read_text(paths[1])
    same_length(paths, sides)
    return sides


def unescaped(line: str) -> str:
    """sgm files escape characters (AT&amp;T), the training text does not."""
    return html.unescape(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder with files.json")
    parser.add_argument("--pair", required=True, help="source and target, as en-de")
    parser.add_argument("--tokens", choices=TOKENS, required=True, help="what the model is")
    parser.add_argument("--model", type=Path, required=True, help="merges or sentencepiece model")
    parser.add_argument("output", type=Path, nargs=4, help="raw source, raw reference, pieces of each")
    args = parser.parse_args()
    test = json.loads((args.work / "files.json").read_text())["test"]
    texts = read_test(test, args.pair)
    if len(texts[0]) != SENTENCES:
        print(f"note: the test set has {len(texts[0]):,} sentences; newstest2014 has {SENTENCES:,}", file=sys.stderr)
    encode = piece_encoder(args.tokens, args.model)
    for lang, lines, raw, pieces in zip(args.pair.split("-"), texts, args.output[:2], args.output[2:]):
        clean = cleaner(lang, args.tokens)
        write_text(raw, "".join(f"{line}\n" for line in lines))
        cut = (" ".join(encode(clean(unescaped(line)))) for line in lines)
        pieces.parent.mkdir(parents=True, exist_ok=True)
        write_text(pieces, "".join(f"{line}\n" for line in cut))


if __name__ == "__main__":
    main()
