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
import html
import io
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Callable

KINDS = ("words", "moses", "spacy", "subword_nmt", "sentencepiece", "huggingface")
UNKNOWN = "<unk>"  # fairseq's symbol: also what a tokenizer's own unknown piece becomes


def unescape_moses(line: str) -> str:
    """Undo Moses' escapes, which no word vectors know: `&apos;s` -> `'s`."""
    return html.unescape(line)


def detokenise_moses(lang: str) -> Callable[[list[str]], str]:
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(lang=lang)
    # unescape=False: the tokens are plain text here, and a literal "&amp;" must survive.
    return lambda tokens: detokenizer.detokenize(tokens, unescape=False)


def spacy_encoder(lang: str) -> Callable[[str], list[str]]:
    import spacy

    tokenizer = spacy.blank(lang).tokenizer  # rules only: no model to download
    return lambda line: [token.text for token in tokenizer(line.lower()) if not token.is_space]


class Tokenizer:
    """A Hugging Face folder's tokenizer, without `transformers`: tokenizer.json, vocab.txt or spiece.model."""

    def __init__(self, folder: str):
        path = Path(folder)
        self.unknown: str | None = None
        if (path / "tokenizer.json").is_file() or (path / "vocab.txt").is_file():
            self.encode, self.decode = self._fast(path)
        elif (path / "spiece.model").is_file():
            self.encode, self.decode = self._sentencepiece(path / "spiece.model")
        else:
            sys.exit(f"error: {folder} has no tokenizer.json, vocab.txt or spiece.model: give a Hugging Face folder")

    def _fast(self, path: Path) -> tuple[Callable, Callable]:
        import tokenizers

        if (path / "tokenizer.json").is_file():
            model = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
            self.unknown = getattr(model.model, "unk_token", None)
        else:
            config = path / "tokenizer_config.json"
            settings = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
            lower = settings.get("do_lower_case", True)
            model = tokenizers.BertWordPieceTokenizer(str(path / "vocab.txt"), lowercase=lower)
            self.unknown = "[UNK]"
        model.no_truncation()  # sentence-transformers' folders cut at 128 pieces and pad
        model.no_padding()
        join = model.decoder.decode if model.decoder is not None else " ".join
        return lambda line: model.encode(line, add_special_tokens=False).tokens, join

    def _sentencepiece(self, path: Path) -> tuple[Callable, Callable]:
        import sentencepiece

        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        self.unknown = model.id_to_piece(model.unk_id())
        # The piece strings of rare characters are kept: the dictionary's minimum count decides about them.
        return lambda line: model.encode(line, out_type=str), model.decode_pieces


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
        from subword_nmt.apply_bpe import BPE

        with open(model, encoding="utf-8") as codes:
            bpe = BPE(codes)
        return lambda line: bpe.process_line(unescape_moses(line)).split()
    if kind == "sentencepiece":
        import sentencepiece

        pieces = sentencepiece.SentencePieceProcessor(model_file=model)
        return lambda line: pieces.encode(line.lower(), out_type=str)
    tokenizer = Tokenizer(model)
    return lambda line: checked_pieces(tokenizer, line)


def decoder(kind: str, lang: str, model: str) -> Callable[[str], str]:
    """A function from a line of tokens to detokenised text."""
    if kind == "sentencepiece":
        import sentencepiece

        pieces = sentencepiece.SentencePieceProcessor(model_file=model)
        return lambda line: pieces.decode_pieces(line.split())
    if kind == "huggingface":
        tokenizer = Tokenizer(model)
        return lambda line: tokenizer.decode(line.split())
    if kind == "words":
        return lambda line: line
    detokenise = detokenise_moses(lang)
    return lambda line: detokenise(join_words(kind, line).split())


def join_words(kind: str, line: str) -> str:
    """Words of a line of tokens: undoes BPE's cuts, also at the end of a line that stopped inside a word."""
    return (line + " ").replace("@@ ", "").strip() if kind == "subword_nmt" else line


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
    """Lines without their end. Only "\\n" ends one: other separators (U+2028, a lone CR) must not add lines."""
    return (line.decode("utf-8").rstrip("\n") for line in stream)


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
    main()
