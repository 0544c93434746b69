"""Records of trainings as one CSV file per experiment, and the result tables that follow from them.

    python scripts/records.py write runs/scale --output docs/results/records/scale-small.csv
    python scripts/records.py table docs/results/records/table1-full.csv --by init

`write` takes the folders of `embinit run` below a folder. A run's row of epoch 0 has its facts (command, revision,
hashes, number of parameters, absorption ratios, test scores); the rows after it have the losses of its epochs.
Processor seconds are measured at each epoch in records of earlier versions; else the last epoch has the training's.
`table` prints, per value of the columns `--by`, the best validation loss and the training loss of that epoch, the test
BLEU and the processor seconds: mean and sample standard deviation over the runs.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: columns of the row of epoch 0, after the labels
FACTS = (
    "parameters absorption_encoder absorption_decoder bleu brevity chrf revision torch cpu data vectors command".split()
)
#: columns of the other rows; losses in bits, seconds since the start
EPOCH = "epoch updates train_loss valid_loss valid_score cpu_s wall_s".split()
#: entries of an epoch that are not a score
_NOT_SCORES = {"loss", "ppl", "wps", "wpb", "bsz", "num_updates", "best_loss"}


def rows_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of one run from its result.json."""
    record = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    slots = (record.get("init") or {}).get("slots", {})
    scores = record.get("scores", {})
    run = {"run": folder.name, **record["labels"]}
    yield {
        **run,
        "epoch": 0,
        "parameters": record["parameters"]["all"],
        **{f"absorption_{side}": _ratio(slots.get(side)) for side in ("encoder", "decoder")},
        **{name: _rounded(scores[name]["score"]) for name in ("bleu", "chrf") if name in scores},
        "brevity": _brevity(scores.get("bleu", {}).get("details", "")),
        "revision": (record["versions"].get("revision") or "")[:12],
        "torch": record["versions"]["torch"],
        "cpu": record["hardware"]["cpu"],
        "data": record["data"]["all"][:12],
        "vectors": " ".join(f"{name}:{digest[:12]}" for name, digest in record["vector_files"].items()),
        "command": record["command"],
    }
    for epoch, values in record["epochs"].items():
        updates = int(values["valid_num_updates"])
        names = [name for name in values if name.startswith("valid_") and name[6:] not in _NOT_SCORES]
        time = dict(record.get("times", {}).get(str(updates), {}))
        if epoch == list(record["epochs"])[-1] and time.get("cpu_s") is None:
            time["cpu_s"] = record["time"].get("cpu_s")
        yield {
            **run,
            "epoch": int(epoch),
            "updates": updates,
            "train_loss": values["train_loss"],
            "valid_loss": values["valid_loss"],
            "valid_score": values[names[0]] if names else None,
            **{name: _rounded(time.get(name)) for name in ("cpu_s", "wall_s")},
        }


def _brevity(details: str) -> float | None:
    """Return the brevity penalty in sacrebleu's line `BLEU = 33.51 70.0/44.3/28.7/19.2 (BP = 0.927 ...`."""
    found = re.search(r"BP = ([0-9.]+)", details)
    return float(found[1]) if found else None


def _ratio(slot: dict[str, Any] | None) -> float | None:
    """Return the absorption ratio of the rows with a vector, else of all rows."""
    if slot is None:
        return None
    matched = slot.get("matched_absorption_ratio")
    return _rounded(slot.get("absorption_ratio") if matched is None else matched, 4)


def _rounded(number: float | None, digits: int = 2) -> float | None:
    return None if number is None else round(number, digits)


def write(args: argparse.Namespace) -> None:
    """Write one CSV file for all runs below a folder."""
    folders = sorted(path.parent for path in args.folder.rglob("result.json"))
    if not folders:
        sys.exit(f"error: {args.folder}: no result.json in it; name a folder with runs of embinit run")
    rows = [row for folder in folders for row in rows_of(folder)]
    labels = list(dict.fromkeys(name for row in rows for name in row if name not in {*FACTS, *EPOCH}))
    with open(args.output, "w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, [*labels, *EPOCH, *FACTS], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


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


def table(args: argparse.Namespace) -> None:
    """Print a Markdown table, a row per value of the columns `--by`."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for run in read(args.file):
        groups.setdefault(tuple(run[name] for name in args.by), []).append(run)
    titles = [*args.by, "runs", "epoch", "valid. loss", "train. loss", "test BLEU", "CPU s"]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for values, runs in groups.items():
        best = [min(run["epochs"], key=lambda epoch: epoch["valid_loss"]) for run in runs]
        cells = [_cell([epoch[name] for epoch in best], d) for name, d in (("epoch", 1), ("valid_loss", 3))]
        cells.append(_cell([epoch["train_loss"] for epoch in best], 3))
        cells.append(_cell([float(run["bleu"]) for run in runs if run["bleu"]], 1))
        cells.append(_cell([run["epochs"][-1]["cpu_s"] for run in runs if "cpu_s" in run["epochs"][-1]], 0))
        print(f"| {' | '.join([*values, str(len(runs)), *cells])} |")


def _cell(numbers: list[float], digits: int) -> str:
    if not numbers:
        return "-"
    spread = f" ± {statistics.stdev(numbers):.{digits}f}" if len(numbers) > 1 else ""
    return f"{statistics.mean(numbers):.{digits}f}{spread}"


def main() -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    writing = commands.add_parser("write", help="write the runs of a folder as CSV")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--output", type=Path, required=True)
    writing.set_defaults(run=write)
    showing = commands.add_parser("table", help="print a table")
    showing.add_argument("file", type=Path)
    showing.add_argument("--by", nargs="+", default=["init"], metavar="COLUMN")
    showing.set_defaults(run=table)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
