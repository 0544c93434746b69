"""Text to tokens and back, one sentence a line: files to files, or standard input to standard output.

kind           tokens                                                         back to text
words          tokens separated by blanks, taken as they are                  the same
moses          Moses tokens; only their escapes (&apos;) are undone           Moses detokenizer
spacy          spaCy's rule-based tokenizer on lower-cased text               Moses detokenizer (spaCy has none)
subword_nmt    Moses tokens cut by BPE (`@@`)                                 pieces joined, Moses detokenizer
sentencepiece  pieces of a sentencepiece model on lower-cased text            the model
huggingface    piece strings of a Hugging Face tokenizer, no special tokens   that tokenizer's decoder
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout, installed or not

from embinit_fairseq.bounded import LONGEST_LINE
from embinit_fairseq.errors import DataError, EmbinitError
from embinit_fairseq.runs.tokens import UNKNOWN, Tokenizer, detokenizer
from embinit_fairseq.vectors.hf_vocab import load_sentencepiece
from embinit_fairseq.vocab.segmentation import read_codes
from embinit_fairseq.vocab.tokens import unescape

KINDS = ("words", "moses", "spacy", "subword_nmt", "sentencepiece", "huggingface")


def unescape_moses(line: str) -> str:
    """Undo Moses' escapes, which no word vectors know: `&apos;s` -> `'s`; other entities are text."""
    return unescape(line)


def spacy_encoder(lang: str) -> Callable[[str], list[str]]:
    import spacy

    tokenizer = spacy.blank(lang).tokenizer  # rules only: no model to download
    return lambda line: [token.text for token in tokenizer(line.lower()) if not token.is_space]


def checked_pieces(tokenizer: Tokenizer, line: str) -> list[str]:
    """The pieces of one line as dictionary symbols; fairseq separates symbols by blanks, so none may hold one."""
    pieces = [UNKNOWN if piece == tokenizer.unknown else piece for piece in tokenizer.encode(line)]
    for piece in pieces:
        if not piece or piece.split() != [piece]:
            sys.exit(f"error: the tokenizer makes the piece {piece!r}: pieces with blanks cannot be dictionary symbols")
    return pieces


def encoder(kind: str, lang: str, model: str) -> Callable[[str], list[str]]:
    """A function from a line of text to its tokens."""
    if kind == "words":
        return str.split
    if kind == "moses":
        return lambda line: unescape_moses(line).split()
    if kind == "spacy":
        return spacy_encoder(lang)
    if kind == "subword_nmt":
        bpe = read_codes(model, "--model")
        return lambda line: bpe.process_line(unescape_moses(line)).split()
    if kind == "sentencepiece":
        pieces = load_sentencepiece(model, DataError, "--model")
        return lambda line: pieces.encode(line.lower(), out_type=str)
    tokenizer = Tokenizer(model)
    return lambda line: checked_pieces(tokenizer, line)


def decoder(kind: str, lang: str, model: str) -> Callable[[str], str]:
    """A function from a line of tokens to detokenised text."""
    moses = "spacy"  # Moses' rules; the tokens are plain text here, and a literal "&amp;" must survive
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


def lines_of(stream: BinaryIO) -> Iterator[str]:
    """Lines without their end. Only "\\n" ends one: other separators (U+2028, a lone CR) must not add lines.

    Raises DataError for a line that is too long or not UTF-8.
    """
    for number, line in enumerate(iter(partial(stream.readline, LONGEST_LINE + 1), b""), start=1):
        where = f"{getattr(stream, 'name', 'the text')}:{number}"
        if len(line) > LONGEST_LINE:  # a few megabytes of gz may unpack to gigabytes without a line break
            raise DataError(f"{where}: longer than {LONGEST_LINE:,} bytes: the text is damaged; get it again")
        try:
            yield line.decode("utf-8").rstrip("\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: not UTF-8 ({error.reason}); convert it (iconv -t utf-8)") from error


def parse_arguments() -> argparse.Namespace:
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
    learn.add_argument("--size", type=int, required=True, help="number of pieces")
    learn.add_argument("--type", choices=("unigram", "bpe"), required=True)
    learn.add_argument("--output", required=True, help="file to write")
    args = parser.parse_args()
    if args.command != "train-sentencepiece" and len(args.input) != len(args.output):
        parser.error(
            f"files to read: {len(args.input)}, to write: {len(args.output)}; give one --output for each --input"
        )
    return args


def main() -> None:
    args = parse_arguments()
    if args.command == "train-sentencepiece":
        train_sentencepiece(lines_of(sys.stdin.buffer), args.size, args.type, args.output)
        return
    if args.command == "encode":
        encode = encoder(args.kind, args.lang, args.model)

        def change(line: str) -> str:
            return " ".join(encode(line))

    else:
        change = decoder(args.kind, args.lang, args.model)
    for source, target in zip(args.input, args.output):
        with contextlib.ExitStack() as files:
            reading = sys.stdin.buffer if source == "-" else files.enter_context(open(source, "rb"))
            writing = sys.stdout.buffer if target == "-" else files.enter_context(open(target, "wb"))
            writing.writelines((change(line) + "\n").encode("utf-8") for line in lines_of(reading))


if __name__ == "__main__":
    try:
        main()
    except EmbinitError as error:
        sys.exit(f"error: {error}")
