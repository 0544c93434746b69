"""Make the result tables of recipes whose papers show more than `embinit compare`: RUNS -> results.md, results.json.

    python scripts/tables.py glue runs/glue/runs --output runs/glue

glue       Ke et al. 2021, Table 1: a run counts with its best epoch, a learning rate with the median over its seeds, a
           model with its best rate. The second metric of a task (F1, Spearman's correlation, MNLI's mismatched set) is
           from the same epochs at the same rate.
textcls    Li et al. 2020, Tables 1 to 3: all models, and pairs of embeddings for each kind of attention, with the pair
           that the validation texts choose, and how much of the texts the vectors cover. Accuracies are of the
           checkpoint with the lowest validation loss.
expansion  Perplexity per word while a language model with new words is adapted, and the divergence of Hewitt 2021
           before; curves.png. Perplexity is exp of the sum of nats over all subwords and sentence ends of the
           validation text, divided by the number of its words and sentence ends: the same for every segmentation.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from expansion.expansion_table import expansion, plot_expansion
from glue.glue_table import glue
from textcls.textcls_table import TEST, textcls

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.errors import one_line
from embinit_fairseq.io import make_folder, write_json, write_text
from embinit_fairseq.runs.comparison import still_missing
from embinit_fairseq.runs.curves import try_to_draw
from embinit_fairseq.runs.result_table import read_finished

TABLES = {"glue": glue, "textcls": textcls, "expansion": expansion}


def main() -> None:
    """Read the runs, write and print the page."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=TABLES)
    parser.add_argument("runs", help="folder of the runs' folders, at any depth")
    parser.add_argument("--output", type=Path, required=True, help="folder for results.md and results.json")
    args = parser.parse_args()
    runs, unfinished = read_finished([args.runs])
    if args.kind == "textcls":
        unfinished += [run.name for run in runs if TEST.value(run.record) is None]
        runs = [run for run in runs if TEST.value(run.record) is not None]
    lines, data = TABLES[args.kind](runs)
    text = "\n".join([*lines, *still_missing(unfinished)])
    make_folder(args.output)
    write_text(args.output / "results.md", text)
    write_json(args.output / "results.json", data)
    print(text)
    if args.kind == "expansion":
        try_to_draw(plot_expansion, data, args.output / "curves.png")


if __name__ == "__main__":
    with one_line():
        main()
