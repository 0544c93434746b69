"""Score translations with sacrebleu (--metrics), with its signatures. DIR is a run with the output of fairseq-generate
(DIR/test.generate.log, or DIR/generate-test.txt of --results-path). Scores and texts are written to DIR, also to its
result.json, for `embinit compare`. HYP is such an output, or plain text with a translation per line; then nothing is
written."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from embinit_fairseq.cli.print_records import request_of, show
from embinit_fairseq.errors import OptionError
from embinit_fairseq.runs.metrics import DEFAULT_SCORES, SCORES, TEXT_SCORES


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("place", metavar="DIR|HYP", help="a run's folder, output of fairseq-generate, or plain text")
    add(
        "--ref",
        nargs="+",
        action="extend",
        required=True,
        metavar="FILE",
        help="reference, a sentence per line: plain text (see --tokenized); several: BLEU, chrF, TER against all",
    )
    add("--src", metavar="FILE", help="source text, to be copied to DIR")
    add("--subset", default="test", metavar="NAME", help="the value of --gen-subset; default: %(default)s")
    add_text_options(parser)
    add(
        "--tokenized",
        nargs="?",
        const="",
        metavar="FILE",
        help="also BLEU on tokens, against FILE, which has Moses tokens; without FILE --ref has tokens, and there is "
        "no other score",
    )
    add("--confidence", action="store_true", help="with 95 %% intervals, by bootstrap over the sentences")
    add("--json", action="store_true", help="print one JSON object instead of a table")


def add_text_options(parser: argparse._ActionsContainer) -> None:
    """Add the options of detokenisation and metrics, which `embinit compare` has, too."""
    add = parser.add_argument
    add(
        "--metrics",
        nargs="+",
        choices=TEXT_SCORES,
        help="; ".join(f"{name}: {SCORES[name].help}" for name in TEXT_SCORES)
        + f"; default: {' '.join(DEFAULT_SCORES)}",
    )
    add(
        "--detokenize",
        nargs="*",
        metavar="STEP",
        help="how tokens become text: as preparation.json in the run, the data or the checkpoint says; or say it, one "
        "step after the other: bpe (@@ of subword-nmt), sentencepiece[=MODEL], huggingface=DIR, moses, spacy; such as "
        "`bpe moses`. Without this option: as fairseq-generate has joined them (--bpe, --tokenizer); if it has not, as "
        "preparation.json says if there is one",
    )
    add("--lang", metavar="L", help="language of the references, such as zh, zh_CN; default: as in the log")
    add("--lowercase", action="store_true", help="ignore upper and lower case")
    add("--tokenize", metavar="NAME", help="tokeniser of sacrebleu for BLEU, such as 13a, intl, zh, ja-mecab")


def run(args: argparse.Namespace) -> int:
    """Score, write, print."""
    from embinit_fairseq.runs.scoring import ScoreRequest, score

    if args.tokenized == "" and args.metrics:
        raise OptionError("--metrics: for text, but --tokenized says that --ref has tokens; leave one of them out")
    scored = score(request_of(ScoreRequest, args, refs=args.ref))
    for note in scored.notes:
        print(f"embinit score: {note}", file=sys.stderr)
    show({**scored.scores, "files": list(map(str, scored.files))}, render, args.json)
    return 0


def render(scores: dict[str, Any]) -> str:
    """Return a line per score, and the number of sentences and the settings of the search."""
    width, lines = max(len(score.title) for score in SCORES.values()), []
    for name, score in SCORES.items():
        if name in scores:
            result = scores[name]
            interval = f" ± {result['interval_95']:.2f}" if result.get("interval_95") is not None else ""
            lines.append(f"{score.title:<{width}}  {result['score']:6.2f}{interval}  {result['signature']}")
    settings = (f"{key} {scores[key]}" for key in ("sentences", "beam", "lenpen") if key in scores)
    undone = [f"undone: {scores['preparation']}, as in preparation.json"] if "preparation" in scores else []
    return "\n".join([*lines, ", ".join(settings), *undone])
