"""Put the results of all runs into a Markdown table and their validation losses into one picture."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from embinit_fairseq.errors import one_line
from embinit_fairseq.files import whole_file, write_text

HEADER = (
    "| initialisation | BLEU | ± 95 % | exact sentences | best validation loss (bits) | best epoch "
    "| absorption ratio (encoder, decoder) | parameters | training time (s) |"
)


def read_results(runs: list[Path]) -> list[dict]:
    """Each run's result.json; raises ValueError naming what is missing."""
    missing = [str(run / "result.json") for run in runs if not (run / "result.json").is_file()]
    if missing:
        raise ValueError(f"no {', '.join(missing)}: run quickstart.sh again, it finishes what is missing")
    return [json.loads((run / "result.json").read_text(encoding="utf-8")) for run in runs]


def absorption(result: dict) -> str:
    """Sigma of the scaled embeddings over sigma of the positions, per slot, from the report of --embed-init.

    Of the rows that have a vector, where there are any: the others have the size of a Xavier draw.
    """
    slots = (result.get("init") or {}).get("slots", {})
    found = [slots[name] for name in ("encoder", "decoder") if name in slots]
    matched = [slot.get("matched_absorption_ratio") for slot in found]
    ratios = [slot["absorption_ratio"] if ratio is None else ratio for slot, ratio in zip(found, matched, strict=True)]
    return ", ".join("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios) or "-"


def row(result: dict) -> str:
    bleu, best = result["scores"]["bleu"], result["best"]
    interval = "-" if bleu["interval_95"] is None else f"{bleu['interval_95']:.1f}"
    cells = (
        result["labels"]["init"],
        f"{bleu['score']:.1f}",
        interval,
        f"{100 * result['scores']['exact_match']:.1f} %",
        f"{best['valid_loss_bits']:.3f}",
        str(best["epoch"]),
        absorption(result),
        f"{result['parameters']['all']:,}",
        f"{result['time']['wall_s']:.0f}",
    )
    return "| " + " | ".join(cells) + " |"


def table(results: list[dict]) -> str:
    """Markdown: one row per run in the given order, then the signature and what the columns mean."""
    signatures = sorted({result["scores"]["bleu"]["signature"] for result in results})
    columns = HEADER.count("|") - 1
    lines = [HEADER, "|" + "---|" * columns, *map(row, results), ""]
    sentences = results[0]["scores"]["sentences"]
    hardware = results[0]["hardware"]
    lines += [f"BLEU: sacrebleu on detokenised text, signature `{signature}`" for signature in signatures]
    lines += [
        f"{sentences:,} test sentences, seed {results[0]['labels']['seed']}, one thread per run on {hardware['cpu']}.",
        "The interval (bootstrap over test sentences) does not cover the spread between seeds.",
    ]
    return "\n".join(lines) + "\n"


def draw(results: list[dict], path: Path) -> None:
    """Validation loss over epochs, one line per run; a ring marks the epoch whose checkpoint was used."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    axes.xaxis.get_major_locator().set_params(integer=True)
    for result in results:
        losses = {int(epoch): values["valid_loss"] for epoch, values in result["epochs"].items()}
        epochs = sorted(losses)
        label = f"{result['labels']['init']} (BLEU {result['scores']['bleu']['score']:.1f})"
        (line,) = axes.plot(epochs, [losses[epoch] for epoch in epochs], label=label)
        best = result["best"]["epoch"]
        axes.plot(best, losses[best], "o", markerfacecolor="none", color=line.get_color())
    axes.set(xlabel="epoch", ylabel="validation loss (bits per token)", title="Toy German-English")
    axes.legend()
    axes.grid(alpha=0.3)
    with whole_file(path, option="--output") as file:
        figure.savefig(file, dpi=150, format="png")
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders with result.json, in the order of the rows")
    parser.add_argument("--output", type=Path, required=True, help="folder for table.md and curves.png")
    options = parser.parse_args(argv)
    try:
        results = read_results(options.runs)
    except ValueError as error:
        parser.error(str(error))
    text = table(results)
    write_text(options.output / "table.md", text, "--output")
    draw(results, options.output / "curves.png")
    print(text, end="")
    return 0


if __name__ == "__main__":
    with one_line():
        sys.exit(main())
