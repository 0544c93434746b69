"""BLEU, with a bootstrap confidence interval, and chrF of what fairseq-generate printed, on detokenised text."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from sacrebleu.metrics import BLEU, CHRF
from toy.corpus import write

_HYPOTHESIS = re.compile(r"^H-(\d+)\t\S+\t(.*)$")
_BLANK_BEFORE_PUNCTUATION = re.compile(r" (?=[.,?])")


def read_hypotheses(log: Path, expected: int) -> list[str]:
    """The best hypothesis of every sentence, in the order of the text (fairseq-generate sorts by length)."""
    best: dict[int, str] = {}
    for line in log.read_text(encoding="utf-8").split("\n"):
        match = _HYPOTHESIS.match(line)
        if match:
            best.setdefault(int(match.group(1)), match.group(2))
    if sorted(best) != list(range(expected)):
        raise ValueError(f"{log} has {len(best)} hypotheses for {expected} references: remove it and translate again")
    return [best[index] for index in range(expected)]


def detokenise(line: str) -> str:
    """ "the dog sleeps ." -> "The dog sleeps." """
    text = _BLANK_BEFORE_PUNCTUATION.sub("", line)
    return text[:1].upper() + text[1:]


def scores(hypotheses: list[str], references: list[str]) -> dict[str, object]:
    metric, chrf = BLEU(), CHRF()
    score = metric.corpus_score(hypotheses, [references], n_bootstrap=1000)
    signature = str(metric.get_signature())
    interval = json.loads(score.format(signature=signature, is_json=True)).get("confidence_var")  # none if BLEU is 0
    exact = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references))
    return {
        "bleu": {
            "score": score.score,
            "interval_95": interval,
            "signature": signature,
            "details": str(score),
        },
        "chrf": {"score": chrf.corpus_score(hypotheses, [references]).score, "signature": str(chrf.get_signature())},
        "exact_match": exact / len(references),
        "sentences": len(references),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path, required=True, help="output of fairseq-generate")
    parser.add_argument("--reference", type=Path, required=True, help="tokens of the reference, one sentence a line")
    parser.add_argument("--output", required=True, help="prefix of the files to write")
    options = parser.parse_args(argv)
    references = options.reference.read_text(encoding="utf-8").splitlines()
    try:
        hypotheses = read_hypotheses(options.log, len(references))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    text = [detokenise(line) for line in hypotheses]
    expected = [detokenise(line) for line in references]
    for name, lines in (("hypothesis", text), ("reference", expected)):  # for paired tests: embinit compare
        write(Path(f"{options.output}.{name}.txt"), "\n".join(lines) + "\n")
    result = scores(text, expected)
    write(Path(options.output + ".scores.json"), json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
