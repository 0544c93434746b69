"""Convert text to tokens and back, one sentence per line: files to files, or standard input to standard output.

kind           tokens                                                          back to text
words          tokens separated by spaces, as they are                         the same
moses          Moses tokens; only their escapes (&apos;) are undone            Moses detokenizer
spacy          spaCy's rule-based tokenizer on lower-cased text                Moses detokenizer (spaCy has none)
subword_nmt    Moses tokens segmented by BPE (`@@`)                            subwords joined, Moses detokenizer
sentencepiece  subwords of a sentencepiece model on lower-cased text           the model
huggingface    subwords of a Hugging Face tokenizer, without special tokens    that tokenizer's decoder

A model of `train-sentencepiece` knows lower-cased text only: lower-case what is given to fairseq-interactive or
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout, installed or not

from embinit_fairseq.errors import DataError, one_line
from embinit_fairseq.runs.tokens import UNKNOWN, Tokenizer, detokenizer
from embinit_fairseq.vocab.codes import load_sentencepiece
from embinit_fairseq.vocab.tokens import unescape

KINDS = ("words", "moses", "spacy", "subword_nmt", "sentencepiece", "huggingface")


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
        pieces = load_sentencepiece(model, "--model")
        return lambda line: pieces.encode(line.lower(), out_type=str)
    tokenizer = Tokenizer(model)

    def encode(line: str) -> list[str]:
        pieces = [UNKNOWN if piece == tokenizer.unknown else piece for piece in tokenizer.encode(line)]
        for piece in pieces:
            if piece.split() != [piece]:
                raise DataError(f"the tokenizer makes the token {piece!r}: a symbol of a dictionary cannot have spaces")
        return pieces

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
    print("the model knows lower-cased text only: lower-case what fairseq-interactive is given", file=sys.stderr)


def lines_of(stream: BinaryIO) -> Iterator[str]:
    """Yield lines without their end; only LF ends a line. Raises DataError for a line that is not UTF-8."""
    for number, line in enumerate(stream, start=1):
        try:
            yield line.decode("utf-8").rstrip("\n")
        except UnicodeDecodeError as error:
            where = f"{getattr(stream, 'name', 'the text')}:{number}"
            raise DataError(f"{where}: not UTF-8 ({error.reason}); convert it (iconv -t utf-8)") from error


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of one of the three commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    if args.command != "train-sentencepiece" and len(args.input) != len(args.output):
        parser.error(
            f"files to read: {len(args.input)}, to write: {len(args.output)}; give one --output for each --input"
        )
    return args


def main() -> None:
    """Run one of the three commands."""
    args = parse_arguments()
    if args.command == "train-sentencepiece":
        train_sentencepiece(lines_of(sys.stdin.buffer), args.size, args.type, args.output)
        return
    change: Callable[[str], str]
    if args.command == "encode":
        encode = encoder(args.kind, args.lang, args.model)
        change = lambda line: " ".join(encode(line))  # noqa: E731
    else:
        change = decoder(args.kind, args.lang, args.model)
    for source, target in zip(args.input, args.output):
        with contextlib.ExitStack() as files:
            reading = sys.stdin.buffer if source == "-" else files.enter_context(open(source, "rb"))
            writing = sys.stdout.buffer if target == "-" else files.enter_context(open(target, "wb"))
            writing.writelines((change(line) + "\n").encode("utf-8") for line in lines_of(reading))


if __name__ == "__main__":
    with one_line():
        main()
