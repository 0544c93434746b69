"""Write records of trainings as one CSV file per experiment, and make the result tables from them.

    python scripts/records.py write runs/scale --output docs/results/records/scale-small.csv
    python scripts/records.py perplexities runs/books --output docs/results/records/equal_text.csv
    python scripts/records.py table docs/results/records/table1-full.csv --by init
    python scripts/records.py contrast docs/results/records/table1-full.csv --by init --baseline xavier

`write` takes the folders of `embinit run` below a folder. A run's row of epoch 0 has its facts (command, revision,
hashes, number of parameters, absorption ratios, test scores); the rows after it have the losses of its validations and
of its epochs without one. Processor seconds are measured at each epoch in records of earlier versions; else the last
row has the training's.
`perplexities` takes the results of scripts/expansion/run.sh below a folder, one folder per language model. The row of 0
updates has revision and hashes of the data and of the vectors.
`table` prints, per value of the columns `--by`, the best validation loss and the training loss of that epoch, the test
BLEU and the processor seconds: mean and sample standard deviation over the runs. `contrast` prints the cost of each of
these values compared with `--baseline`: the difference of the best validation losses of each shared seed, the mean and
its 95 % interval (Student's t).
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.io import files_below
from embinit_fairseq.runs.metrics import known_direction
from embinit_fairseq.runs.paired import seed_interval
from embinit_fairseq.runs.record import read_run

#: columns of the row of epoch 0, after the labels
FACTS = [
    *("parameters", "absorption_encoder", "absorption_decoder", "bleu", "brevity", "chrf"),
    *("revision", "torch", "cpu", "data", "vector_files", "command"),
]
#: columns of the other rows; losses in bits, seconds since the start
EPOCH = "epoch updates train_loss valid_loss valid_score cpu_s wall_s".split()


def rows_of(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of the run in a folder, under a name."""
    measured = read_run(folder)
    record = measured.record
    slots, scores = (record.get("init") or {}).get("slots", {}), record.get("scores", {})
    run = {"run": name, **record["labels"]}
    on_cpu = "--cpu" in record["command"].split() or not record["hardware"].get("gpus")
    brevity = re.search(r"BP = ([0-9.]+)", scores.get("bleu", {}).get("details", ""))
    yield {
        **run,
        "epoch": 0,
        "parameters": record["parameters"]["all"],
        **{f"absorption_{side}": absorption(slots[side]) for side in ("encoder", "decoder") if side in slots},
        **{name: round(scores[name]["score"], 2) for name in ("bleu", "chrf") if name in scores},
        "brevity": float(brevity[1]) if brevity else None,
        "revision": (record["versions"].get("revision") or "")[:12],
        "torch": record["versions"]["torch"],
        "cpu": record["hardware"]["cpu"] if on_cpu else ", ".join(record["hardware"]["gpus"]),
        "data": record["data"]["all"][:12],
        "vector_files": " ".join(f"{name}:{digest[:12]}" for name, digest in record["vector_files"].items()),
        "command": record["command"],
    }
    points: dict[int, dict[str, Any]] = {}  # by updates
    for validation in measured.validations:
        if "valid_loss" in validation:
            points[validation["updates"]] = validation
    for epoch, values in record["epochs"].items():
        points.setdefault(int(values["train_num_updates"]), {"epoch": epoch}).update(train_loss=values["train_loss"])
    for updates, values in sorted(points.items()):
        score = next((name for name in values if name.startswith("valid_") and known_direction(name)), "")
        seconds = dict(record.get("times", {}).get(str(updates), {}))
        if updates == max(points) and seconds.get("cpu_s") is None:
            seconds["cpu_s"] = record["time"].get("cpu_s")
        yield {
            **run,
            "epoch": int(values["epoch"]),
            "updates": updates,
            "train_loss": values.get("train_loss"),
            "valid_loss": values.get("valid_loss"),
            "valid_score": values.get(score),
            **{name: round(seconds[name], 2) for name in ("cpu_s", "wall_s") if seconds.get(name) is not None},
        }


def absorption(slot: dict[str, Any]) -> float | None:
    """Return the absorption ratio of the rows with a vector, else of all rows; None without added positions."""
    matched = slot.get("matched_absorption_ratio")
    ratio = slot.get("absorption_ratio") if matched is None else matched
    return None if ratio is None else round(ratio, 4)


def write(args: argparse.Namespace) -> None:
    """Write one CSV file for all runs below a folder, ordered by their names."""
    folders = sorted(path.parent for path in files_below(args.folder) if path.name == "result.json")
    if not folders:
        sys.exit(f"error: {args.folder}: no result.json in it; name a folder with runs of embinit run")
    runs: dict[str, list[dict[str, Any]]] = {}
    if args.add:
        with open(args.output, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                runs.setdefault(row["run"], []).append(row)
    for folder in folders:
        name = folder.relative_to(args.folder).as_posix()
        runs[name] = [*rows_of(folder, name)]
    save([row for name in sorted(runs) for row in runs[name]], [*EPOCH, *FACTS], args.output)


def save(rows: Sequence[dict[str, Any]], last: Sequence[str], path: Path) -> None:
    """Write rows as CSV, with columns in the order of appearance, then `last`."""
    first = list(dict.fromkeys(name for row in rows for name in row if name not in last))
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, [*first, *last], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def perplexities(args: argparse.Namespace) -> None:
    """Write one CSV file of all adaptations to new words below a folder: a row per validation."""
    rows = []
    for path in (path for path in files_below(args.folder) if path.name == "results.json"):
        model = path.parent.relative_to(args.folder).as_posix()
        for method, result in json.loads(path.read_text(encoding="utf-8")).items():
            for run, curve in result["curves"].items():
                record = read_run(path.parent / "runs" / run).record
                revision = (record["versions"].get("revision") or "")[:12]
                start = {"revision": revision, "data": record["data"]["all"][:12]}
                start["vectors"] = vectors_of(path.parent / "runs" / run / "expansion.json")
                divergence = {f"kl_{name}": value for name, value in (result["kl"][run] or {}).items()}
                for updates, point in curve.items():
                    numbers = point | (divergence if updates == "0" else {})
                    facts = {name: f"{value:.6g}" for name, value in numbers.items() if value is not None}
                    facts |= start if updates == "0" else {}
                    rows.append({"model": model, "method": method, "run": run, "updates": updates, **facts})
    save(rows, ["revision", "data", "vectors"], args.output)


def vectors_of(expansion: Path) -> str:
    """Return the beginning of the hash of the vectors that gave new words their rows, "" without vectors."""
    hashes = json.loads(expansion.read_text(encoding="utf-8")).get("sha256", {}) if expansion.is_file() else {}
    others = [digest for file, digest in hashes.items() if file not in ("checkpoint", "dictionary", "words")]
    return others[0][:12] if others else ""


def read(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a CSV file: labels and facts, and `epochs` with numbers."""
    runs: dict[str, dict[str, Any]] = {}
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["epoch"] == "0":
                runs[row["run"]] = {**row, "epochs": []}
            else:
                runs[row["run"]]["epochs"].append({name: float(row[name]) for name in EPOCH if row[name]})
    return list(runs.values())


def best_epoch(run: dict[str, Any], last: int | None = None) -> dict[str, float]:
    """Return the row of the lowest validation loss, of the first `last` rows."""
    validated = [epoch for epoch in run["epochs"][:last] if "valid_loss" in epoch]
    return min(validated, key=lambda epoch: epoch["valid_loss"])


def runs_by(path: Path, *columns: str) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the runs of a record: values of these columns -> run; a column that the record lacks is empty."""
    return {tuple(run.get(name, "") for name in columns): run for run in read(path)}


def loss(run: dict[str, Any], last: int | None = None) -> float:
    """Return the lowest validation loss of a run, of the first `last` rows."""
    return best_epoch(run, last)["valid_loss"]


def losses(runs: Iterable[dict[str, Any]]) -> str:
    """Return the lowest validation losses of runs, `-` if there is no run."""
    return ", ".join(f"{loss(run):.3f}" for run in runs) or "-"


def number(run: dict[str, Any], name: str, digits: int) -> str:
    """Return a fact of a run, rounded."""
    return f"{float(run[name]):.{digits}f}"


def line(*cells: object) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def table(args: argparse.Namespace) -> None:
    """Print a Markdown table, a row per value of the columns `--by`."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for run in read(args.file):
        groups.setdefault(tuple(run[name] for name in args.by), []).append(run)
    titles = [*args.by, "runs", "epoch", "valid. loss", "train. loss", "test BLEU", "CPU s"]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for values, runs in groups.items():
        best = [best_epoch(run, args.epochs) for run in runs]
        cells = [cell([epoch[name] for epoch in best], d) for name, d in (("epoch", 1), ("valid_loss", 3))]
        cells.append(cell([epoch["train_loss"] for epoch in best], 3))
        cells.append(cell([float(run["bleu"]) for run in runs if run["bleu"]], 1))
        cells.append(cell([run["epochs"][-1]["cpu_s"] for run in runs if "cpu_s" in run["epochs"][-1]], 0))
        print(line(*values, str(len(runs)), *cells))


def interval(differences: Sequence[float]) -> float | None:
    """Return half of the 95 % interval of the mean (Student's t); None for a single number."""
    both = seed_interval(differences)
    return None if both is None else both["high"] - both["mean"]


def contrast(args: argparse.Namespace) -> None:
    """Print a Markdown table of differences to the baseline, a row per value of the columns `--by`."""
    losses: dict[tuple[str, ...], dict[str, float]] = {}
    for run in read(args.file):
        of_row = losses.setdefault(tuple(run[name] for name in args.by), {})
        of_row[run["seed"]] = best_epoch(run, args.epochs)["valid_loss"]
    baseline = tuple(args.baseline)
    if baseline not in losses:
        sys.exit(f"error: --baseline {' '.join(baseline)}: no such row; there are: {sorted(losses)}")
    titles = [*args.by, "differences", "mean", "95 % interval"]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for values, of_row in losses.items():
        seeds = sorted(of_row.keys() & losses[baseline].keys())
        if values == baseline or not seeds:
            continue
        differences = [of_row[seed] - losses[baseline][seed] for seed in seeds]
        mean, half = statistics.mean(differences), interval(differences)
        bounds = "-" if half is None else f"{mean - half:+.3f} to {mean + half:+.3f}"
        print(line(*values, ", ".join(f"{d:+.3f}" for d in differences), f"{mean:+.3f}", bounds))


def around(differences: Sequence[float], digits: int, sign: str = "") -> str:
    """Return the mean of differences and half its 95 % interval, as `mean ± half`."""
    return f"{statistics.mean(differences):{sign}.{digits}f} ± {interval(differences) or 0:.{digits}f}"


def spread(differences: Sequence[float], digits: int) -> str:
    """Return the 95 % interval of the mean over seeds, as `low to high`."""
    mean, half = statistics.mean(differences), interval(differences) or 0
    return f"{mean - half:.{digits}f} to {mean + half:.{digits}f}"


def cell(numbers: Sequence[float], digits: int) -> str:
    """Return `mean ± sample standard deviation`."""
    if not numbers:
        return "-"
    spread = f" ± {statistics.stdev(numbers):.{digits}f}" if len(numbers) > 1 else ""
    return f"{statistics.mean(numbers):.{digits}f}{spread}"


def main(words: Sequence[str] | None = None) -> None:
    """Run one of the commands."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    writing = commands.add_parser("write", help="write the runs of a folder as CSV")
    writing.add_argument("--add", action="store_true", help="keep the other runs of the file")
    writing.set_defaults(run=write)
    adapting = commands.add_parser("perplexities", help="write the perplexities of models with new words as CSV")
    adapting.set_defaults(run=perplexities)
    for command in (writing, adapting):
        command.add_argument("folder", type=Path)
        command.add_argument("--output", type=Path, required=True)
    showing = commands.add_parser("table", help="print a table")
    showing.set_defaults(run=table)
    comparing = commands.add_parser("contrast", help="print differences to one row, with intervals over seeds")
    comparing.add_argument("--baseline", nargs="+", required=True, metavar="VALUE", help="a value per column of --by")
    comparing.set_defaults(run=contrast)
    for command in (showing, comparing):
        command.add_argument("file", type=Path)
        command.add_argument("--by", nargs="+", default=["init"], metavar="COLUMN")
        command.add_argument("--epochs", type=int, help="read all runs at this epoch (default: at their last)")
    args = parser.parse_args(words)
    args.run(args)


if __name__ == "__main__":
    main()
