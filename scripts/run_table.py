"""What the tables of all experiments share: finished runs, mean and deviation over seeds, what runs have in common,
files that are complete or not there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from run_result import write_json, write_text


@dataclass(frozen=True)
class Column:
    """A column of a table: where its value is in a result, and how many digits to show."""

    title: str
    path: tuple[str, ...]
    digits: int = 2

    def value(self, result: dict) -> float | None:
        """The result's number, None if it has none."""
        node: Any = result
        for key in self.path:
            node = node.get(key) if isinstance(node, dict) else None
        return node

    def cell(self, runs: list[dict]) -> str:
        """Mean ± deviation, for Markdown."""
        found = self.summary(runs)
        if found is None:
            return "-"
        deviation = "" if found["sd"] is None else f" ± {found['sd']:,.{max(self.digits, 1)}f}"
        return f"{found['mean']:,.{self.digits}f}{deviation}"

    def summary(self, runs: list[dict]) -> dict[str, float | None] | None:
        """Mean and sample standard deviation (None for one run); None if no run has the value."""
        values = [value for value in map(self.value, runs) if value is not None]
        if not values:
            return None
        return {"mean": statistics.fmean(values), "sd": statistics.stdev(values) if len(values) > 1 else None}


def read_arguments(description: str) -> argparse.Namespace:
    """--runs and --output of a program that makes a table; description: its documentation."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs' folders")
    parser.add_argument("--output", type=Path, required=True, help="folder for results.md, results.json and pictures")
    return parser.parse_args()


def read_results(runs: Path) -> tuple[list[dict], list[str]]:
    """Finished results sorted by seed, and the names of unfinished runs; SystemExit if nothing is finished."""
    results, unfinished = [], []
    for folder in sorted(path.parent for path in runs.rglob("training.json")):
        name = folder.relative_to(runs).as_posix()
        if not (folder / "result.json").is_file():
            unfinished.append(name)
            continue
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        result["run"] = name
        result["time"]["wall_min"] = result["time"]["wall_s"] / 60
        results.append(result)
    if not results:
        raise SystemExit(f"error: --runs {runs} has no finished run (<run>/result.json)")
    return sorted(results, key=lambda result: int(result["labels"]["seed"])), unfinished


def header(titles: list[str], texts: int = 1) -> list[str]:
    """The first two lines of a Markdown table; all but the first `texts` columns are flush right."""
    return [f"| {' | '.join(titles)} |", "|" + " --- |" * texts + " ---: |" * (len(titles) - texts)]


def distinct(title: str, runs: list[dict], value: Callable[[dict], object]) -> list[str]:
    """A line with what the runs have in common, with several values where they differ; none without a value."""
    found = sorted({str(each) for each in map(value, runs) if each is not None})
    return [f"* {title}: " + "; ".join(f"`{each}`" for each in found)] if found else []


def environment(runs: list[dict], data: Callable[[dict], str] = lambda run: run["data"]["all"]) -> list[str]:
    """Data, hardware and versions, a line each. data: what is said about a run's data."""
    return [
        *distinct("data (SHA-256)", runs, data),
        *distinct("hardware", runs, lambda run: _hardware(run["hardware"])),
        *distinct("versions", runs, lambda run: ", ".join(f"{k} {v}" for k, v in run["versions"].items() if v)),
    ]


def _hardware(found: dict) -> str:
    gpus = f"; {', '.join(found['gpus'])}" if found["gpus"] else ""
    return f"{found['cpu']}, {_counted(found['cores'], 'core')}, {_counted(found['threads'], 'thread')} a run{gpus}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def still_missing(unfinished: list[str]) -> list[str]:
    """Says which runs are not in the table."""
    return [f"Not finished yet: {', '.join(unfinished)}.", ""] if unfinished else []


def write_results(output: Path, text: str, record: dict) -> None:
    """results.md and results.json in `output`; the text is printed, too."""
    output.mkdir(parents=True, exist_ok=True)
    write_text(output / "results.md", text)
    write_json(output / "results.json", record)
    print(text)


@contextlib.contextmanager
def picture(path: Path, columns: int, height: float = 4.2) -> Iterator[tuple[Any, list[Any]]]:
    """A figure with panels side by side, which becomes the PNG `path` at the end of the block."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, columns, figsize=(6 * columns, height), squeeze=False, layout="constrained")
    yield figure, list(panels[0])
    temporary = path.with_name(path.name + ".part")
    figure.savefig(temporary, format="png", dpi=130)
    plt.close(figure)
    os.replace(temporary, path)


def draw(plot: Callable[[Any, Path], None], groups: Any, path: Path) -> None:
    """Call `plot`, or say what is missing: the tables are worth having without pictures."""
    try:
        plot(groups, path)
    except ModuleNotFoundError as error:
        print(f"no picture: {error.name} is missing (pip install {error.name})", file=sys.stderr)


def draw_mean(panel: Any, label: str, places: list[int], values: list[list[float]]) -> None:
    """Mean over runs, a band from min to max. values: those of all runs, for each place."""
    few = "." if len(places) <= 40 else ""
    (line,) = panel.plot(places, list(map(statistics.fmean, values)), marker=few, label=label)
    panel.fill_between(places, list(map(min, values)), list(map(max, values)), alpha=0.15, color=line.get_color())
