"""Draw trained models, trainings and vectors as PNG files, and print the numbers of each figure."""

from __future__ import annotations

import argparse

from embinit_fairseq.cli import plot_correlations, plot_curves, plot_histogram, plot_positions

FIGURES = {
    "positions": plot_positions,
    "correlations": plot_correlations,
    "curves": plot_curves,
    "histogram": plot_histogram,
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare one sub-command per figure."""
    figures = parser.add_subparsers(dest="figure", metavar="FIGURE", required=True)
    for name, command in FIGURES.items():
        sub = figures.add_parser(name, help=command.HELP, description=command.__doc__)
        command.configure(sub)


def run(args: argparse.Namespace) -> int:
    """Draw one figure."""
    return FIGURES[args.figure].run(args)
