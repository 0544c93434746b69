"""BLEU of what fairseq-generate printed: on detokenised text (the figure to report, beside it chrF) and on tokens (to
compare). The text and the reference it was scored with are kept, for paired tests (embinit compare).

All are lower-cased. The tokenised figure always counts Moses tokens of the reference as the data set has them
(escapes undone); word-level Moses and BPE hypotheses consist of such tokens, the others are detokenised and then
tokenised by sacremoses. Unknown words count as errors: references are never cut to the vocabulary. In the text they are
one sign, since sacrebleu's tokeniser would take the three parts of <unk> for three words.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from run_result import write_json, write_text
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric
from tokens import KINDS, UNKNOWN, decoder, join_words, unescape_moses

UNKNOWN_WORD = "\N{DOUBLE QUESTION MARK}"  # as sentencepiece writes it
_HYPOTHESIS = re.compile(r"^H-(\d+)\t\S+\t(.*)$")


def read_hypotheses(log: Path) -> list[str]:
    """The best hypothesis of every sentence in the order of the text (fairseq-generate sorts by length)."""
    best: dict[int, str] = {}
    for line in log.read_text(encoding="utf-8").split("\n"):
        match = _HYPOTHESIS.match(line)
        if match:
            best.setdefault(int(match.group(1)), match.group(2))
    if sorted(best) != list(range(len(best))) or not best:
        raise SystemExit(f"error: {log}: not all hypotheses are in it: translate again (generate.sh)")
    return [best[index] for index in range(len(best))]


def read_lines(path: Path, expected: int) -> list[str]:
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    if len(lines) != expected:
        raise SystemExit(f"error: {path}: lines: {len(lines)}, translations: {expected}; prepare the data again")
    return lines


def moses_words(kind: str, lang: str, tokens: list[str], text: list[str]) -> list[str]:
    """Hypotheses as Moses words."""
    if kind in ("moses", "subword_nmt"):
        return [join_words(kind, line) for line in tokens]
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang=lang)
    return [tokenizer.tokenize(line, escape=False, return_str=True) for line in text]


def scored(metric: Metric, hypotheses: list[str], references: list[str]) -> dict[str, object]:
    """What is recorded of one figure."""
    score = metric.corpus_score(hypotheses, [references])
    return {"score": score.score, "signature": str(metric.get_signature()), "details": str(score)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", required=True, help="output of fairseq-generate")
    parser.add_argument("--kind", choices=KINDS, required=True, help="what the tokens are")
    parser.add_argument("--lang", required=True, help="target language")
    parser.add_argument("--model", default="", help="sentencepiece model or Hugging Face folder")
    parser.add_argument("--reference", required=True, help="raw reference")
    parser.add_argument("--token-reference", required=True, help="reference in the data set's lower-cased Moses tokens")
    parser.add_argument("--output", required=True, help="prefix of the files to write")
    parser.add_argument("--beam", type=int, required=True, help="recorded beside the scores")
    args = parser.parse_args()

    tokens = read_hypotheses(Path(args.log))
    decode = decoder(args.kind, args.lang, args.model)
    text = [decode(line).replace(UNKNOWN, UNKNOWN_WORD) for line in tokens]
    reference = read_lines(Path(args.reference), len(tokens))
    token_reference = [unescape_moses(line) for line in read_lines(Path(args.token_reference), len(tokens))]
    words = moses_words(args.kind, args.lang, tokens, text)
    scores = {
        "bleu": scored(BLEU(lowercase=True), text, reference),
        "bleu_tokenized": scored(BLEU(lowercase=True, tokenize="none", force=True), words, token_reference),
        "chrf": scored(CHRF(lowercase=True), text, reference),
        "beam": args.beam,
        "sentences": len(tokens),
    }
    for name, lines in (("hypothesis.tokens", tokens), ("hypothesis.text", text), ("reference.text", reference)):
        write_text(Path(f"{args.output}.{name}"), "\n".join(lines) + "\n")
    write_json(Path(args.output + ".scores.json"), scores)
    for name in ("bleu", "bleu_tokenized", "chrf"):
        print(f"{name}: {scores[name]['score']:.2f} {scores[name]['signature']}")


if __name__ == "__main__":
    main()
