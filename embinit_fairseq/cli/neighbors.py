"""Print the words that are nearest to a word, by the cosine of their vectors or of a trained model's embeddings."""

from __future__ import annotations

import argparse
import sys

from embinit_fairseq.cli.print_records import at_least, print_json
from embinit_fairseq.cli.vector_options import add_vector_options, print_side, read_vectors
from embinit_fairseq.embeddings import Vectors
from embinit_fairseq.errors import OptionError


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("words", nargs="+", metavar="WORD", help="word, spelled as in the vectors")
    add_vector_options(parser)
    parser.add_argument("--count", type=at_least(1), default=10, metavar="K", help="per word (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Read, search, print."""
    table = read_vectors(args, None)
    vectors = Vectors(table.words, table.matrix)
    unknown = [word for word in args.words if word not in vectors]
    if len(unknown) == len(args.words):
        side = table.origin.side
        where = f", {side} (the other one: --side {'decoder' if side == 'encoder' else 'encoder'})" if side else ""
        raise OptionError(
            f"{unknown[0]!r} has no vector in --vectors {args.vectors}{where}, which has words like {table.words[:5]}; "
            "look at its spelling and case, or name a file with more words"
        )
    print_side(args, table)
    for word in unknown:
        print(f"embinit neighbors: {word!r} has no vector in {args.vectors}", file=sys.stderr)
    nearest = {word: vectors.most_similar(word, args.count) for word in args.words if word in vectors}
    if args.json:
        print_json(nearest)
        return 0
    for word, neighbours in nearest.items():
        print(f"{word}: " + ", ".join(f"{other} {cosine:.3f}" for other, cosine in neighbours))
    return 0
