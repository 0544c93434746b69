"""Write vectors of any format that can be read, including embeddings of a fairseq checkpoint, as text or .npz."""

from __future__ import annotations

import argparse

from embinit_fairseq.cli.print_records import print_json
from embinit_fairseq.cli.vector_options import add_vector_options, print_side, read_vectors, source_of
from embinit_fairseq.embeddings import Vectors
from embinit_fairseq.errors import OptionError, counted
from embinit_fairseq.io import check_file
from embinit_fairseq.vectors.table import Wanted
from embinit_fairseq.vectors.writers import check_ending
from embinit_fairseq.vocab.dictionary import read_dictionary


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_vector_options(parser)
    parser.add_argument("--force", action="store_true", help="replace a file of that name")
    parser.add_argument("--dict", metavar="DICT", help="only the words of this dict.txt, in its spelling")
    parser.add_argument(
        "--output", required=True, metavar="FILE", help=".npz; .vec: word2vec's text; else GloVe's text; .gz compresses"
    )


def run(args: argparse.Namespace) -> int:
    """Read, write, and print the size of the file."""
    inputs = [*source_of(args).paths, *([args.dict] if args.dict else [])]
    check_file(args.output, args.force, inputs)
    check_ending(args.output, "--output")
    wanted = None if args.dict is None else Wanted.words(read_dictionary(args.dict).symbols)
    table = read_vectors(args, wanted)
    if not table.words and args.dict is not None:
        raise OptionError(
            f"--dict {args.dict}: none of its words is in --vectors {args.vectors}; give vectors of that language and "
            "segmentation, or leave it out"
        )
    print_side(args, table)
    Vectors(table.words, table.matrix).save(args.output, "--output")
    rows, dim = table.matrix.shape
    if args.json:
        print_json({"output": args.output, "rows": rows, "dim": dim, "source": table.origin.path})
    else:
        print(f"{args.output}: {counted(rows, 'word')} x {dim}")
    return 0
