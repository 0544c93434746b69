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
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.errors import DataError, OptionError, one_line
from embinit_fairseq.runs.detokenizers import Tokenizer, detokenizer
from embinit_fairseq.vocab.cleaning import UNKNOWN
from embinit_fairseq.vocab.dictionary import read_dictionary
from embinit_fairseq.vocab.preparation_options import parse_steps
from embinit_fairseq.vocab.preparation_record import FILE, read_preparation, record_preparation
from embinit_fairseq.vocab.preparation_steps import Preparation
from embinit_fairseq.vocab.step_files import contents
from embinit_fairseq.vocab.subword_styles import unescape

#: kind -> steps of the text that `encode` is given, and steps from raw text (tokens of a data set, such as Multi30k's
#: own, are made before), as `--preparation` has them
STEPS = {
    "words": ("none", "none"),
    "moses": ("none", "lowercase,normalised,moses:no-escape"),
    "spacy": ("lowercase,spacy", "lowercase,spacy"),
    "subword_nmt": ("bpe", "lowercase,normalised,moses:no-escape,bpe"),
    "sentencepiece": ("lowercase,sentencepiece", "lowercase,sentencepiece"),
    "huggingface": ("huggingface", "huggingface"),
    "wikibooks": ("wikibooks,bpe", "wikibooks,bpe"),
}
#: step -> its option that names a file
_FILES = {"bpe": "codes", "sentencepiece": "model", "huggingface": "tokenizer"}


def files_of(steps: Sequence[dict[str, Any]], model: str) -> dict[str, str]:
    """Return option of a step -> its file. model: the file, or a Hugging Face folder."""
    options = [_FILES[step["step"]] for step in steps if step["step"] in _FILES]
    path = Path(model, "tokenizer.json") if options == ["tokenizer"] else Path(model)
    return dict.fromkeys(options, str(path))


def stated_encoder(steps: str, lang: str, model: str) -> Callable[[str], list[str]]:
    """Return a function from a line of text to its tokens, by steps that the user names."""
    return _checked(_prepare(steps, lang, model, "--preparation"))


def encoder(kind: str, lang: str, model: str) -> Callable[[str], list[str]]:
    """Return a function from a line of text to its tokens."""
    if kind in ("moses", "subword_nmt"):  # the data set's tokens have Moses' escapes
        encode = encoder("words", lang, model) if kind == "moses" else _prepare("bpe", lang, model)
        return lambda line: encode(unescape(line))
    if kind == "huggingface" and not Path(model, "tokenizer.json").is_file():
        tokenizer = Tokenizer(model)  # of vocab.txt or spiece.model
        prepare = lambda line: [UNKNOWN if t == tokenizer.unknown else t for t in tokenizer.encode(line)]  # noqa: E731
    else:
        prepare = _prepare(STEPS[kind][0], lang, model)
    return _checked(prepare)


def recorded_encoder(dictionary: str, model: str) -> Callable[[str], list[str]]:
    """Return a function from a line of raw text to its tokens, prepared as the text of a dictionary."""
    recorded = read_preparation(dictionary)
    if recorded is None:
        raise DataError(f"--like {dictionary}: no {FILE} next to it says how its text was prepared; give --kind")
    user_files = files_of(recorded.steps, model) if model else None
    return _checked(recorded.preparation(read_dictionary(dictionary, "--like").symbols, user_files))


def _checked(prepare: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """Return the function, which raises an error for tokens that cannot be in a dictionary."""

    def encode_line(line: str) -> list[str]:
        symbols = prepare(line)
        for symbol in symbols:
            if symbol.split() != [symbol]:
                raise DataError(f"the tokenizer makes the token {symbol!r}: a symbol of a dictionary has no spaces")
        return symbols

    return encode_line


def _prepare(steps: str, lang: str, model: str, flag: str = "--kind") -> Callable[[str], list[str]]:
    """Return the preparation; raise OptionError if a library, or the file of its subwords, is missing."""
    parsed = parse_steps(steps, lang, flag)
    if not model and files_of(parsed, model):
        raise OptionError(f"{flag} {steps}: needs codes, a model or a tokenizer; give it by --model")
    prepare = Preparation(parsed, contents(files_of(parsed, model), ()))
    try:
        prepare("")
    except ImportError as error:
        raise OptionError(str(error)) from None
    return prepare


def record(args: argparse.Namespace) -> None:
    """Write `preparation.json` to the folder of binarised data."""
    if args.kind == "huggingface" and not Path(args.model, "tokenizer.json").is_file():
        save = f"AutoTokenizer.from_pretrained('{args.model}').save_pretrained('{args.model}')"
        print(f"no {FILE}: {args.model} has no tokenizer.json, which {save} writes", file=sys.stderr)
        return
    steps, pairs, files = {}, {}, {}
    for dictionary, lang, raw, prepared in zip(args.dict, args.langs, args.raw, args.prepared):
        stated = args.preparation or STEPS[args.kind][1]
        steps[dictionary] = parse_steps(stated, lang, "--preparation" if args.preparation else "--kind")
        files = files_of(steps[dictionary], args.model)
        with open(raw, "rb") as one, open(prepared, "rb") as other:
            pairs[dictionary] = list(zip(lines_of(one), lines_of(other)))
    record_preparation(args.folder, steps, files, pairs, args.made_by)


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


def parse_arguments() -> argparse.Namespace:
    """Read the command line; end with an error if files for input and output differ in number."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("encode", "decode"):
        command = commands.add_parser(name)
        kind = command.add_mutually_exclusive_group(required=True)
        kind.add_argument("--kind", choices=STEPS)
        if name == "encode":
            kind.add_argument("--preparation", metavar="STEPS", help="steps, as for embinit prepare --steps")
            kind.add_argument("--like", metavar="DICT", help=f"raw text as {FILE} next to this dict.txt says")
        command.add_argument("--lang", default="en", help="language of the text (spaCy, Moses)")
        command.add_argument("--model", default="", help="BPE codes, sentencepiece model or Hugging Face folder")
        command.add_argument("--input", nargs="+", default=["-"], help="files (default: standard input)")
        command.add_argument("--output", nargs="+", default=["-"], help="as many files (default: standard output)")
    learn = commands.add_parser("train-sentencepiece", help="learn a model of standard input")
    learn.add_argument("--size", type=int, required=True, help="number of subwords")
    learn.add_argument("--type", choices=("unigram", "bpe"), required=True)
    learn.add_argument("--output", required=True, help="file to write")
    noted = commands.add_parser("record", help="write preparation.json of binarised data")
    kind = noted.add_mutually_exclusive_group(required=True)
    kind.add_argument("--kind", choices=STEPS)
    kind.add_argument("--preparation", metavar="STEPS", help="steps, as for encode")
    noted.add_argument("--model", default="", help="as for encode")
    noted.add_argument("--folder", required=True, help="of the dictionaries")
    noted.add_argument("--made-by", required=True, help="the recipe")
    for name, text in (
        ("dict", "names of the dictionaries"),
        ("langs", "language of each"),
        ("raw", "raw text of each"),
        ("prepared", "the same in tokens"),
    ):
        noted.add_argument(f"--{name}", nargs="+", required=True, help=text)
    args = parser.parse_args()
    if args.command in ("encode", "decode") and len(args.input) != len(args.output):
        parser.error(
            f"--input has {len(args.input)} files, --output {len(args.output)}: give one output for each input"
        )
    return args


def main() -> None:
    """Run one of the commands."""
    args = parse_arguments()
    if args.command == "record":
        record(args)
        return
    if args.command == "train-sentencepiece":
        train_sentencepiece(lines_of(sys.stdin.buffer), args.size, args.type, args.output)
        return
    convert: Callable[[str], Any]
    if args.command == "encode" and args.like:
        convert = recorded_encoder(args.like, args.model)
    elif args.command == "encode" and args.preparation:
        convert = stated_encoder(args.preparation, args.lang, args.model)
    else:
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
