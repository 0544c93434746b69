"""Draw the four correlations between words and positions in the first attention of a trained BERT-A, for a sentence or
as the mean over a text (Ke et al. 2021, equation (7), Figure 2)."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

from embinit_fairseq.analysis.trained_model import read_model
from embinit_fairseq.cli.print_records import at_least, number, show, table
from embinit_fairseq.cli.progress import progress
from embinit_fairseq.errors import CheckpointError, DataError, OptionError, counted
from embinit_fairseq.figures import check_output
from embinit_fairseq.io import check_is_file
from embinit_fairseq.vectors.compressed import open_bytes
from embinit_fairseq.vocab.dictionary import Vocabulary, read_dictionary

HELP = "words and positions in the first attention of BERT-A"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="FILE.pt", help="written by fairseq-train")
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--sentence", metavar="WORDS", help="one sentence, tokenised as the training data")
    text.add_argument("--text", metavar="FILE", help="tokenised text, one sentence per line (plain, gz, bz2, xz, zip)")
    add("--dict", required=True, metavar="DICT", help="dict.txt of the model's training data")
    add(
        "--sentences",
        type=at_least(1),
        default=256,
        metavar="N",
        help="the first N of --text; default: %(default)s",
    )
    add("--length", type=at_least(2), metavar="N", help="cut sentences after N tokens; default: none may be too long")
    add("--layer", type=int, default=1, metavar="L", help="1: the only one whose input is a sum of word and position")
    add("--head", type=_head, metavar="H", help="1-based number, or mean: over the heads; default: mean")
    add("--own-scale", action="store_true", help="a colour scale for each term; default: one for all four")
    add("--output", required=True, metavar="FILE.png", help="the figure")
    add("--json", action="store_true", help="print one JSON object instead of a table")


def _head(text: str) -> int | None:
    return None if text == "mean" else at_least(1)(text)


def run(args: argparse.Namespace) -> int:
    """Read, compute, draw, print."""
    check_output(args.output)
    if args.layer != 1:
        raise OptionError(f"--layer {args.layer}: only the input of layer 1 is a sum of word and position; give 1")
    from embinit_fairseq.analysis import correlations

    model = read_model(args.checkpoint)
    layer = correlations.first_layer(model)
    vocabulary, rows = read_dictionary(args.dict), layer.embed_tokens.shape[0]
    if rows - len(vocabulary) not in (0, 1):  # 1: <mask>, which the task appends
        raise DataError(
            f"--dict {args.dict}: {len(vocabulary)} rows with special symbols, but {args.checkpoint} has {rows}; give "
            "the dict.txt of its training data"
        )
    sentences = _sentences(args, vocabulary, layer.max_positions)
    head = None if args.head is None else args.head - 1
    terms, count = correlations.mean_terms(layer, progress(sentences, "sentences", ""), head)
    if not np.isfinite(terms).all():
        raise CheckpointError(f"{args.checkpoint}: embeddings hold NaN or infinity; take an earlier checkpoint")
    symbols = [[vocabulary.symbols[token] for token in tokens] for tokens in sentences]
    correlations.draw_correlations(model, terms, symbols, args.output, args.head, args.own_scale)
    words = [symbol for sentence in symbols for symbol in sentence if symbol not in ("<s>", "</s>")]
    record = {
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
        "terms": correlations.term_statistics(terms),
    }
    show(record, render, args.json)
    return 0


def _sentences(args: argparse.Namespace, vocabulary: Vocabulary, max_positions: int) -> list[list[int]]:
    """Return the token ids of each sentence, `<s>` and `</s>` included; DataError if they do not suit the model."""
    rows = {symbol: row for row, symbol in enumerate(vocabulary.symbols)}
    roles = {role: row for row, role in vocabulary.roles.items()}
    sentences = []
    for origin, words in _lines(args):
        tokens = [roles["bos"], *(rows.get(word, roles["unk"]) for word in words), roles["eos"]][: args.length]
        if len(tokens) > max_positions:
            raise DataError(
                f"{origin}: {len(tokens)} tokens with <s> and </s>, but the model has {max_positions} positions; "
                f"shorten the sentence, or add --length {max_positions}"
            )
        sentences.append(tokens)
    where = f"--text {args.text}" if args.sentence is None else "--sentence"
    if not sentences:
        raise DataError(f"{where}: no words in it; give tokenised text")
    if set(roles.values()).issuperset(token for tokens in sentences for token in tokens):
        raise DataError(
            f"{where}: none of its words is in --dict {args.dict}; tokenise it (lower case, BPE) as the training data"
        )
    return sentences


def _lines(args: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """Yield (origin, words) of --sentence, or of the first --sentences lines of --text that are not empty."""
    if args.sentence is not None:
        if args.sentence.split():
            yield "--sentence", args.sentence.split()
        return
    check_is_file(args.text, "--text")
    remaining = args.sentences
    with open_bytes(args.text) as lines:
        for number, line in enumerate(lines, 1):
            try:
                words = line.decode("utf-8").split()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"--text {args.text}, line {number}: not UTF-8 ({error.reason}); convert the text"
                ) from error
            if words:
                yield f"--text {args.text}, line {number}", words
                remaining -= 1
            if not remaining:
                return


def render(record: dict[str, Any]) -> str:
    """Return the record as text."""
    heads = "mean over the heads" if record["head"] == "mean" else f"head {record['head']}"
    cells = [["query-to-key", "mean", "sigma", "over keys"]]
    for name, term in record["terms"].items():
        cells.append([name, *(number(term[key], ".3g") for key in ("mean", "std", "std_over_keys"))])
    return "\n".join(
        [
            f"{record['checkpoint']}: {record['arch']}, layer 1, {heads}",
            f"{counted(record['sentences'], 'sentence')} of up to {record['length']} tokens; "
            f"{record['unknown_words']:,} of {counted(record['words'], 'word')} unknown",
            *("", *table(cells), "", f"figure: {record['picture']}"),
        ]
    )
