"""BLEU, with a bootstrap confidence interval, and chrF of what fairseq-generate printed, on detokenised text."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a checkout, installed or not

from embinit_fairseq.errors import EmbinitError, one_line
from embinit_fairseq.files import write_json, write_text
from embinit_fairseq.runs.metrics import SCORES
from embinit_fairseq.runs.score import counted_score, read_lines, read_translations

_BLANK_BEFORE_PUNCTUATION = re.compile(r" (?=[.,?])")


def detokenise(line: str) -> str:
    """ "the dog sleeps ." -> "The dog sleeps." """
    text = _BLANK_BEFORE_PUNCTUATION.sub("", line)
    return text[:1].upper() + text[1:]


def scores(hypotheses: list[str], references: list[str]) -> dict[str, object]:
    exact = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references))
    return {
        "bleu": counted_score(SCORES["bleu"].metric(), hypotheses, references, confidence=True),
        "chrf": counted_score(SCORES["chrf"].metric(), hypotheses, references),
        "exact_match": exact / len(references),
        "sentences": len(references),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path, required=True, help="output of fairseq-generate")
    parser.add_argument("--reference", type=Path, required=True, help="tokens of the reference, one sentence a line")
    parser.add_argument("--output", required=True, help="prefix of the files to write")
    options = parser.parse_args(argv)
    try:
        hypotheses = read_translations(options.log).tokens
        references = read_lines(options.reference, f"translations in {options.log}", len(hypotheses))
    except EmbinitError as error:
        parser.error(str(error))
    text = [detokenise(line) for line in hypotheses]
    expected = [detokenise(line) for line in references]
    for name, lines in (("hypothesis", text), ("reference", expected)):  # for paired tests: embinit compare
        write_text(f"{options.output}.{name}.txt", "".join(f"{line}\n" for line in lines), "--output")
    write_json(options.output + ".scores.json", scores(text, expected), "--output")
    return 0


if __name__ == "__main__":
    with one_line():
        sys.exit(main())
