"""BLEU of what fairseq-generate printed, three figures; the first is the one to report.

bleu                           sacrebleu on detokenised text against the raw reference
bleu_tokenized                 on Moses tokens of both, without sacrebleu's own tokeniser
bleu_tokenized_compound_split  the same, hyphens inside words taken as tokens: well-known -> well ##AT##-##AT## known

Beside them chrF on the text. All are case-sensitive. For the two tokenised figures hypothesis and reference go the same
way, that of tensor2tensor's get_ende_bleu.sh: Unicode punctuation is replaced by that of ASCII, then Moses' tokeniser,
which leaves hyphens alone. Text and reference are kept, for paired tests (embinit compare).
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Callable

from run_result import write_json, write_text
from tokens import decoder
from wmt14.clean import TOKENS, moses_words
from wmt14.testset import unescaped

from embinit_fairseq.errors import EmbinitError
from embinit_fairseq.runs.metrics import SCORES
from embinit_fairseq.runs.score import counted_score, read_lines, read_translations

_HYPHEN = re.compile(r"(\S)-(\S)")
FIGURES = ("bleu", "bleu_tokenized", "bleu_tokenized_compound_split")


def split_compounds(line: str) -> str:
    """A hyphen between two characters becomes a token of its own (as in Perl: in `a-b-c` only the first)."""
    return _HYPHEN.sub(r"\1 ##AT##-##AT## \2", line)


def comparable_words(lang: str) -> Callable[[str], str]:
    """Text -> the words that the tokenised figures count."""
    from sacremoses import MosesPunctNormalizer

    punctuation, words = MosesPunctNormalizer(lang=lang), moses_words(lang, split_hyphens=False)
    return lambda line: words(punctuation.replace_unicode_punct(unescaped(line)))


def scores_of(text: list[str], reference: list[str], lang: str) -> dict[str, dict[str, object]]:
    """The figures of detokenised translations."""
    words = comparable_words(lang)
    sides = [words(line) for line in text], [words(line) for line in reference]
    split = [[split_compounds(line) for line in side] for side in sides]
    tokenised = SCORES["bleu_tokenized"]
    figures = (SCORES["bleu"], text, reference), (tokenised, *sides), (tokenised, *split)
    counted = [counted_score(score.metric(), *texts) for score, *texts in (*figures, (SCORES["chrf"], text, reference))]
    return dict(zip((*FIGURES, "chrf"), counted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", required=True, help="output of fairseq-generate")
    parser.add_argument("--tokens", choices=TOKENS, required=True, help="what the pieces are")
    parser.add_argument("--lang", required=True, help="target language")
    parser.add_argument("--model", default="", help="sentencepiece model")
    parser.add_argument("--reference", required=True, help="raw reference")
    parser.add_argument("--label", nargs="*", default=[], metavar="KEY=VALUE", help="recorded beside the scores")
    parser.add_argument("--output", type=Path, required=True, help="folder to write to")
    args = parser.parse_args()

    try:
        pieces = read_translations(Path(args.log)).tokens
        decode = decoder(args.tokens, args.lang, args.model)
        text = [decode(line) for line in pieces]
        reference = read_lines(Path(args.reference), f"translations in {args.log}", len(text))
    except EmbinitError as error:
        raise SystemExit(f"error: {error}") from None
    scores = scores_of(text, reference, args.lang)
    for name, lines in (("hypothesis.tokens", pieces), ("hypothesis.text", text), ("reference.text", reference)):
        write_text(args.output / name, "\n".join(lines) + "\n")
    labels = dict(label.split("=", 1) for label in args.label)
    write_json(args.output / "scores.json", {**scores, **labels, "sentences": len(text)})
    for name in (*FIGURES, "chrf"):
        print(f"{name}: {scores[name]['score']:.2f} {scores[name]['signature']}")


if __name__ == "__main__":
    main()
