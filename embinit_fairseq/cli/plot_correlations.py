"""The four correlations between words and positions in the first attention of a trained BERT-A, for a sentence or as
the mean over a text (Ke et al. 2021, equation (7), Figure 2)."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embinit_fairseq.analysis.trained_model import read_model
from embinit_fairseq.cli.progress import progress
from embinit_fairseq.cli.records import show
from embinit_fairseq.errors import CheckpointError, DataError, OptionError, VectorFileError
from embinit_fairseq.figures import add_picture_options, check_output
from embinit_fairseq.plots.maps import draw_correlations
from embinit_fairseq.vectors.compressed import open_bytes
from embinit_fairseq.vocab.dictionary import Vocabulary, read_dictionary

if TYPE_CHECKING:
    from embinit_fairseq.analysis.trained_model import TrainedModel

HELP = "words and positions in the first attention of BERT-A"


@dataclass(frozen=True)
class Sentence:
    """origin: for messages. symbols: what the model sees, `<s>` and `</s>` included. tokens: their rows."""

    origin: str
    symbols: list[str]
    tokens: list[int]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_picture_options(parser)
    add = parser.add_argument
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--sentence", metavar="WORDS", help="one sentence, tokenised as the training data")
    text.add_argument("--text", metavar="FILE", help="tokenised text, a sentence a line (plain, gz, bz2, xz, zip)")
    add("--dict", required=True, metavar="DICT", help="dict.txt of the model's training data")
    add("--sentences", type=int, default=256, metavar="N", help="of --text, from its start; default: %(default)s")
    add("--length", type=int, metavar="N", help="cut sentences after N tokens; default: none may be too long")
    add("--layer", type=int, default=1, metavar="L", help="1: the only one whose input is a sum of word and position")
    add("--head", type=_head, metavar="H", help="number from 1, or mean: over the heads; default: mean")
    add("--own-scale", action="store_true", help="a colour scale for each term; default: one for all four")


def _head(text: str) -> int | None:
    if text == "mean":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a head's number (from 1) nor mean")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Read, compute, draw, print."""
    check_output(args.output)
    _check_numbers(args)
    from embinit_fairseq.analysis.correlations import first_layer, mean_terms

    model = read_model(args.checkpoint)
    layer = first_layer(model)
    vocabulary = read_dictionary(args.dict)
    _check_dictionary(args, len(vocabulary), layer.embed_tokens.shape[0])
    sentences = _read_sentences(args, vocabulary, layer.max_positions)
    bar = progress(sentences, "sentences", "")
    head = None if args.head is None else args.head - 1
    terms, count = mean_terms(layer, (sentence.tokens for sentence in bar), head)
    if not np.isfinite(terms).all():
        raise CheckpointError(f"{args.checkpoint}: embeddings hold NaN or infinity; take an earlier checkpoint")
    symbols = [sentence.symbols for sentence in sentences]
    draw_correlations(model, terms, symbols, args.output, args.head, args.own_scale)
    record = _record(model, terms, count, sentences, args)
    show(record, render, args.json)
    return 0


def _check_numbers(args: argparse.Namespace) -> None:
    if args.layer != 1:
        raise OptionError(
            f"--layer {args.layer}: the four correlations exist in layer 1 only; the input of later layers is no "
            "longer a sum of word and position"
        )
    for name, least in (("sentences", 1), ("length", 2)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise OptionError(f"--{name} must be at least {least}, not {value}")


def _check_dictionary(args: argparse.Namespace, symbols: int, rows: int) -> None:
    if rows - symbols not in (0, 1):  # 1: <mask>, which the tasks append
        raise DataError(
            f"--dict {args.dict} describes {symbols} rows (4 specials and its lines) or, with <mask>, {symbols + 1}, "
            f"but {args.checkpoint} has {rows}: give the dict.txt of its training data"
        )


def _read_sentences(args: argparse.Namespace, vocabulary: Vocabulary, max_positions: int) -> list[Sentence]:
    """Raises DataError for sentences without a known word and for those that are too long."""
    rows = {symbol: row for row, symbol in enumerate(vocabulary.symbols)}
    roles = {role: row for row, role in vocabulary.roles.items()}
    sentences = []
    for origin, words in _lines(args):
        tokens = [roles["bos"], *(rows.get(word, roles["unk"]) for word in words), roles["eos"]][: args.length]
        if len(tokens) > max_positions:
            raise DataError(
                f"{origin}: {len(tokens)} tokens with <s> and </s>, but the model has {max_positions} positions: "
                f"shorten it, or cut with --length {max_positions}"
            )
        sentences.append(Sentence(origin, [vocabulary.symbols[row] for row in tokens], tokens))
    if not sentences:
        raise DataError(f"{args.text or '--sentence'}: no words in it")
    specials = set(roles.values())
    if all(token in specials for sentence in sentences for token in sentence.tokens):
        raise DataError(
            f"{args.text or '--sentence'}: none of its words is in --dict {args.dict}; tokenise it (lower case, BPE) "
            "as the training data"
        )
    return sentences


def _lines(args: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """(origin, words) of the first --sentences lines that are not empty."""
    if args.sentence is not None:
        if args.sentence.split():
            yield "--sentence", args.sentence.split()
        return
    kept = 0
    try:
        with open_bytes(args.text) as lines:
            for number, line in enumerate(lines, 1):
                words = line.decode("utf-8").split()
                if words:
                    kept += 1
                    yield f"{args.text}, line {number}", words
                if kept == args.sentences:
                    return
    except UnicodeDecodeError as error:
        raise DataError(f"{args.text}, line {number}: not UTF-8 ({error.reason}); convert the text") from error
    except VectorFileError as error:
        raise DataError(f"--text {error}") from error


def _record(
    model: TrainedModel, terms: np.ndarray, count: np.ndarray, sentences: Sequence[Sentence], args: argparse.Namespace
) -> dict[str, Any]:
    from embinit_fairseq.analysis.correlations import term_statistics

    words = [symbol for sentence in sentences for symbol in sentence.symbols if symbol not in ("<s>", "</s>")]
    return {
        "checkpoint": args.checkpoint,
        "arch": model.arch,
        "layer": args.layer,
        "head": args.head or "mean",
        "sentences": len(sentences),
        "length": terms.shape[-1],
        "sentences_of_full_length": int(count[-1, -1]),
        "words": len(words),
        "unknown_words": words.count("<unk>"),
        "picture": args.output,
        "terms": term_statistics(terms),
    }


def render(record: dict[str, Any]) -> str:
    """The record as a table for people."""
    of = "the mean over the heads" if record["head"] == "mean" else f"head {record['head']}"
    sentences = f"{record['sentences']:,} sentence{'s' if record['sentences'] > 1 else ''}"
    unknown = f"{record['unknown_words']:,} of {record['words']:,} words unknown"
    lines = [
        f"{record['checkpoint']}: {record['arch']}, layer 1, {of}",
        f"{sentences} of up to {record['length']} tokens; {unknown}",
        "",
        f"{'query-to-key':<22}{'mean':>10}{'sigma':>10}{'over keys':>12}",
    ]
    for name, numbers in record["terms"].items():
        lines.append(f"{name:<22}{numbers['mean']:>10.3g}{numbers['std']:>10.3g}{numbers['std_over_keys']:>12.3g}")
    return "\n".join([*lines, "", f"picture: {record['picture']}"])
