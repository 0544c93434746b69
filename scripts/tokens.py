"""Convert text to tokens and back, one sentence per line: files to files, or standard input to standard output.

kind           tokens                                                          back to text
words          tokens separated by spaces, as they are                         the same
moses          Moses tokens; only their escapes (&apos;) are undone            Moses detokenizer
spacy          spaCy's rule-based tokenizer on lower-cased text                Moses detokenizer (spaCy has none)
subword_nmt    Moses tokens segmented by BPE (`@@`)                            subwords joined, Moses detokenizer
sentencepiece  subwords of a sentencepiece model on lower-cased text           the model
huggingface    subwords of a Hugging Face tokenizer, without special tokens    that tokenizer's decoder
wikibooks      as in the pre-training data of scripts/wikibooks: cleaning,     -
               words, BPE; rare words are segmented, too

A model of `train-sentencepiece` knows lower-cased text only: lower-case the input of fairseq-interactive or
from_pretrained with --bpe sentencepiece.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.errors import DataError, OptionError, one_line
from embinit_fairseq.runs.tokens import UNKNOWN, Tokenizer, detokenizer
from embinit_fairseq.vocab.codes import codes_text, load_sentencepiece
from embinit_fairseq.vocab.preparation import Preparation, Segmenter
from embinit_fairseq.vocab.tokens import unescape

KINDS = ("words", "moses", "spacy", "subword_nmt", "sentencepiece", "huggingface", "wikibooks")


def encoder(kind: str, lang: str, model: str) -> Callable[[str], list[str]]:
    """Return a function from a line of text to its tokens."""
    if kind == "words":
        return str.split
    if kind == "moses":
        return lambda line: unescape(line).split()
    if kind == "spacy":
        import spacy

        tokenizer = spacy.blank(lang).tokenizer  # rules only: no model to download
        return lambda line: [token.text for token in tokenizer(line.lower()) if not token.is_space]
    if kind == "subword_nmt":
        from subword_nmt.apply_bpe import BPE

        with open(model, encoding="utf-8") as codes:
            bpe = BPE(codes)
        return lambda line: bpe.process_line(unescape(line)).split()
    if kind == "sentencepiece":
        subwords = load_sentencepiece(model, "--model")
        return lambda line: subwords.encode(line.lower(), out_type=str)
    if kind == "wikibooks":
        try:
            return Segmenter((), Preparation("wikibooks", lowercase=True), codes_text(model, "--model"))
        except ImportError as error:
            raise OptionError(str(error)) from None
    tokenizer = Tokenizer(model)

    def encode(line: str) -> list[str]:
        subwords = [UNKNOWN if subword == tokenizer.unknown else subword for subword in tokenizer.encode(line)]
        for subword in subwords:
            if subword.split() != [subword]:
                raise DataError(f"the tokenizer makes the token {subword!r}: a symbol of a dictionary has no spaces")
        return subwords

    return encode


def decoder(kind: str, lang: str, model: str) -> Callable[[str], str]:
    """Return a function from a line of tokens to detokenised text."""
    moses = "spacy"  # Moses' rules; here tokens have no escapes, and a literal "&amp;" must survive
    steps = {"words": [], "moses": [moses], "spacy": [moses], "subword_nmt": ["bpe", moses]}
    return detokenizer(steps.get(kind, [f"{kind}={model}"]), lang)


def train_sentencepiece(lines: Iterable[str], size: int, kind: str, output: str) -> None:
    """Learn a model of lower-cased text and write it to `output`."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line.lower() for line in lines),
        model_writer=model,
        vocab_size=size,
        model_type=kind,
        character_coverage=1.0,
        hard_vocab_limit=False,  # a small text cannot fill a large vocabulary
        minloglevel=1,
    )
    Path(output).write_bytes(model.getvalue())
    print("the model knows lower-cased text only: lower-case the input of fairseq-interactive", file=sys.stderr)


def lines_of(stream: BinaryIO) -> Iterator[str]:
    """Yield lines without their end; only LF ends a line. Raises DataError for a line that is not UTF-8."""
    for number, line in enumerate(stream, start=1):
        try:
            yield line.decode("utf-8").rstrip("\n")
        except UnicodeDecodeError as error:
            place = f"{getattr(stream, 'name', 'the text')}:{number}"
            raise DataError(f"{place}: not UTF-8 ({error.reason}); convert it (iconv -t utf-8)") from error


def main() -> None:
    """Run one of the three commands."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("encode", "decode"):
        command = commands.add_parser(name)
        command.add_argument("--kind", choices=KINDS, required=True)
        command.add_argument("--lang", default="en", help="language of the text (spaCy, Moses)")
        command.add_argument("--model", default="", help="BPE codes, sentencepiece model or Hugging Face folder")
        command.add_argument("--input", nargs="+", default=["-"], help="files (default: standard input)")
        command.add_argument("--output", nargs="+", default=["-"], help="as many files (default: standard output)")
    learn = commands.add_parser("train-sentencepiece", help="learn a model of standard input")
    learn.add_argument("--size", type=int, required=True, help="number of subwords")
    learn.add_argument("--type", choices=("unigram", "bpe"), required=True)
    learn.add_argument("--output", required=True, help="file to write")
    args = parser.parse_args()
    if args.command == "train-sentencepiece":
        train_sentencepiece(lines_of(sys.stdin.buffer), args.size, args.type, args.output)
        return
    if len(args.input) != len(args.output):
        parser.error(
            f"--input has {len(args.input)} files, --output {len(args.output)}: give one output for each input"
        )
    convert = {"encode": encoder, "decode": decoder}[args.command](args.kind, args.lang, args.model)
    for source, target in zip(args.input, args.output):
        with contextlib.ExitStack() as files:
            reading = sys.stdin.buffer if source == "-" else files.enter_context(open(source, "rb"))
            writing = sys.stdout.buffer if target == "-" else files.enter_context(open(target, "wb"))
            for line in lines_of(reading):
                converted = convert(line)
                text = converted if isinstance(converted, str) else " ".join(converted)
                writing.write(f"{text}\n".encode())


if __name__ == "__main__":
    with one_line():
        main()
