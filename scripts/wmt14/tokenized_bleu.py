"""Add two scores to a run that `embinit score` has scored, for comparison with papers that report tokenised BLEU.

bleu_tokenized                 BLEU on Moses tokens of both sides, without sacrebleu's own tokeniser
bleu_tokenized_compound_split  the same with hyphens inside words as tokens: well-known -> well ##AT##-##AT## known

Both are case-sensitive. Hypothesis and reference are prepared as by tensor2tensor's get_ende_bleu.sh: Unicode
punctuation is replaced by ASCII's, then Moses' tokeniser is used, which does not separate hyphens.

RUN/test.{hypothesis,reference}.text -> RUN/test.scores.json and RUN/result.json
"""

from __future__ import annotations

import argparse
import html
import json
import re
from collections.abc import Callable
from pathlib import Path

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.errors import one_line
from embinit_fairseq.io import write_json
from embinit_fairseq.runs.detokenizers import moses_tokenizer
from embinit_fairseq.runs.metrics import SCORES, computed
from embinit_fairseq.runs.record import RESULT, add_scores
from embinit_fairseq.runs.translations import read_lines

_HYPHEN = re.compile(r"(\S)-(\S)")


def split_compounds(line: str) -> str:
    """Separate a hyphen between two characters as a token (as in Perl: in `a-b-c` only the first)."""
    return _HYPHEN.sub(r"\1 ##AT##-##AT## \2", line)


def comparable_words(lang: str) -> Callable[[str], str]:
    """Return a function from text to the words of the scores."""
    from sacremoses import MosesPunctNormalizer

    punctuation, words = MosesPunctNormalizer(lang=lang), moses_tokenizer(lang)
    return lambda line: words(punctuation.replace_unicode_punct(html.unescape(line)))


def scores_of(text: list[str], reference: list[str], lang: str) -> dict[str, dict[str, object]]:
    """Return the two scores of detokenised translations."""
    words_of = comparable_words(lang)
    sides = [[words_of(line) for line in side] for side in (text, reference)]
    split = [[split_compounds(line) for line in side] for side in sides]
    figures = {"bleu_tokenized": sides, "bleu_tokenized_compound_split": split}
    metric = SCORES["bleu_tokenized"].metric()
    return {name: computed(metric, words, [reference]) for name, (words, reference) in figures.items()}


def main() -> None:
    """Score the translations of a run."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("--lang", required=True, help="target language")
    args = parser.parse_args()
    text = (args.run / "test.hypothesis.text").read_text(encoding="utf-8").split("\n")[:-1]
    reference = read_lines(args.run / "test.reference.text", "translations", len(text))
    bleu_scores = scores_of(text, reference, args.lang)
    scores = args.run / "test.scores.json"
    write_json(scores, {**json.loads(scores.read_text(encoding="utf-8")), **bleu_scores})
    if (args.run / RESULT).is_file():
        add_scores(args.run, bleu_scores)
    for name, value in bleu_scores.items():
        print(f"{name}: {value['score']:.2f} {value['signature']}")


if __name__ == "__main__":
    with one_line():
        main()
