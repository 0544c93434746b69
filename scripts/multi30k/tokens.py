"""Text to tokens and back, one sentence a line from standard input to standard output.

kind           tokens                                                         back to text
moses          Moses tokens; only their escapes (&apos;) are undone           Moses detokenizer
spacy          spaCy's rule-based tokenizer on lower-cased text               Moses detokenizer (spaCy has none)
subword_nmt    Moses tokens cut by BPE (`@@`); encoding is subword-nmt's      pieces joined, Moses detokenizer
sentencepiece  pieces of a sentencepiece model on lower-cased text            the model
huggingface    piece strings of a Hugging Face tokenizer, no special tokens   that tokenizer's decoder
"""

from __future__ import annotations

import argparse
import html
import io
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Callable

KINDS = ("moses", "spacy", "subword_nmt", "sentencepiece", "huggingface")
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
    if kind == "moses":
        return lambda line: unescape_moses(line).split()
    if kind == "spacy":
        return spacy_encoder(lang)
    if kind == "sentencepiece":
        import sentencepiece

        pieces = sentencepiece.SentencePieceProcessor(model_file=model)
        return lambda line: pieces.encode(line.lower(), out_type=str)
    if kind == "huggingface":
        tokenizer = Tokenizer(model)
        return lambda line: checked_pieces(tokenizer, line)
    sys.exit(f"error: --kind {kind} is encoded by its own program (subword-nmt apply-bpe)")


def decoder(kind: str, lang: str, model: str) -> Callable[[str], str]:
    """A function from a line of tokens to detokenised text."""
    if kind == "sentencepiece":
        import sentencepiece

        pieces = sentencepiece.SentencePieceProcessor(model_file=model)
        return lambda line: pieces.decode_pieces(line.split())
    if kind == "huggingface":
        tokenizer = Tokenizer(model)
        return lambda line: tokenizer.decode(line.split())
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


def lines_of(stream: io.TextIOBase) -> Iterator[str]:
    for line in stream:
        yield line.rstrip("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("encode", "decode"):
        command = commands.add_parser(name)
        command.add_argument("--kind", choices=KINDS, required=True)
        command.add_argument("--lang", default="en", help="language of the text (spaCy, Moses)")
        command.add_argument("--model", default="", help="sentencepiece model or Hugging Face folder")
    learn = commands.add_parser("train-sentencepiece")
    learn.add_argument("--size", type=int, required=True, help="number of pieces")
    learn.add_argument("--type", choices=("unigram", "bpe"), required=True)
    learn.add_argument("--output", required=True)
    args = parser.parse_args()
    # newline="\n": other line separators (U+2028, a lone CR) inside a sentence must not add lines.
    source = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", newline="\n")
    sink = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="\n")
    if args.command == "train-sentencepiece":
        train_sentencepiece(lines_of(source), args.size, args.type, args.output)
    elif args.command == "encode":
        encode = encoder(args.kind, args.lang, args.model)
        sink.writelines(" ".join(encode(line)) + "\n" for line in lines_of(source))
    else:
        decode = decoder(args.kind, args.lang, args.model)
        sink.writelines(decode(line) + "\n" for line in lines_of(source))
    sink.flush()


if __name__ == "__main__":
    main()
