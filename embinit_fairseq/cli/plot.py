"""Pictures of trained models, of trainings and of tables of vectors, as PNG, with the numbers behind them."""

from __future__ import annotations

import argparse

from embinit_fairseq.cli import plot_correlations, plot_curves, plot_histogram, plot_positions

PICTURES = {
    "positions": plot_positions,
    "correlations": plot_correlations,
    "curves": plot_curves,
    "histogram": plot_histogram,
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare one sub-command a picture."""
    pictures = parser.add_subparsers(dest="picture", metavar="PICTURE", required=True)
    for name, picture in PICTURES.items():
        sub = pictures.add_parser(name, help=picture.HELP, description=picture.__doc__)
        picture.configure(sub)


def run(args: argparse.Namespace) -> int:
    """Draw one picture."""
    return PICTURES[args.picture].run(args)
