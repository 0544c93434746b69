"""Runs side by side: rows by their labels, mean and deviation over seeds.

Only runs of one task with the same data and the same metric stand in one table. Whatever else differs and would make
a mean or a difference mean something else is said by `warnings`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.init.strategies import STRATEGIES
from embinit_fairseq.runs.folders import find_runs, is_finished, joined
from embinit_fairseq.runs.logs import best_place
from embinit_fairseq.runs.metrics import FIGURES, SCORES, Score, is_score
from embinit_fairseq.runs.run import CLOCKS, Run

#: the order of architectures: what others are compared with first, then the ladder of Li et al. 2020 (Table 5)
ARCHS = ("transformer", "transformer_equal", "tupe_transformer", "duo_meta", "duo_shared", "duo_norm", "duo")
#: labels that tell tables apart
_TASK = ("experiment", "task", "direction", "protocol")
#: labels that are a row's name by themselves, if one of them tells all rows apart
_NAMES = ("run", "model", "init", "arch")


def mean(values: Sequence[float]) -> float:
    """NaN or infinity where they are among the values, as of trainings that have diverged."""
    with np.errstate(all="ignore"):
        return float(np.mean(np.asarray(values, dtype=float)))


@dataclass(frozen=True)
class Column:
    """A column of a table: where its value is in a result, and how many digits to show.

    constant: the same for all seeds of a row, so that it is shown without a deviation, and only if rows differ in it.
    """

    title: str
    path: tuple[str, ...]
    digits: int = 2
    constant: bool = False

    def value(self, result: dict[str, Any]) -> float | None:
        """The result's number, None if it has none."""
        node: Any = result
        for key in self.path:
            node = node.get(key) if isinstance(node, dict) else None
        return node

    def cell(self, runs: Sequence[dict[str, Any]]) -> str:
        """Mean ± deviation, for Markdown; "-" without a value."""
        summary = self.summary(runs)
        if summary is None:
            return "-"
        single = summary["sd"] is None or self.constant
        deviation = "" if single else f" ± {summary['sd']:,.{max(self.digits, 1)}f}"
        return f"{summary['mean']:,.{self.digits}f}{deviation}"

    def summary(self, runs: Sequence[dict[str, Any]]) -> dict[str, float | None] | None:
        """Mean and sample standard deviation (None for one run, or if it is not finite); None without a value."""
        values = [value for value in map(self.value, runs) if value is not None]
        if not values:
            return None
        with np.errstate(all="ignore"):
            sd = float(np.std(np.asarray(values, dtype=float), ddof=1)) if len(values) > 1 else math.nan
        return {"mean": mean(values), "sd": sd if math.isfinite(sd) else None}

    def has_news(self, results: Sequence[dict[str, Any]]) -> bool:
        """Is it worth a place in a table of these results?"""
        values = {self.value(result) for result in results} - {None}
        return len(values) > 1 if self.constant else bool(values)


PARAMETERS = Column("parameters", ("parameters", "all"), 0, constant=True)

#: first of the rows that have a vector, which are what words start with; reports of older versions have the second only
ABSORPTION = tuple(
    Column(f"absorption ratio{of}, {slot}", ("init", "slots", slot, key))
    for of, key in ((" of matched rows", "matched_absorption_ratio"), ("", "absorption_ratio"))
    for slot in ("encoder", "decoder")
)


#: what curves are drawn over
AXES = ("epochs", "updates", "seconds")


@dataclass(frozen=True)
class Axis:
    """by_updates: places of values are numbers of updates, else epochs. clock: of CLOCKS, the seconds at these places,
    mean over the runs of a row."""

    by_updates: bool
    clock: str | None = None

    @property
    def title(self) -> str:
        """Label of the axis: epoch, update, or the unit of the clock."""
        if self.clock is not None:
            return CLOCKS[self.clock]
        return "update" if self.by_updates else "epoch"


#: place on an axis -> values of several runs
Curve = dict[float, list[float]]


@dataclass(frozen=True)
class Row:
    """Runs that differ in their seed (and in what `by` leaves out), in the order of the seeds."""

    name: str
    labels: dict[str, str]
    runs: tuple[Run, ...]

    def results(self, metric: str) -> list[dict[str, Any]]:
        """The records, for columns; `best` by this metric."""
        return [{**run.record, "best": run.best(metric)} for run in self.runs]

    def curve(self, metric: str, axis: Axis) -> Curve:
        """Values of all runs that have a curve, where all of these were validated."""
        runs = [(run, curve) for run in self.runs if (curve := run.curve(metric, axis.by_updates))]
        if not runs:
            return {}
        places = sorted(set.intersection(*(set(curve) for _, curve in runs)))
        values: Curve = {place: [curve[place] for _, curve in runs] for place in places}
        if axis.clock is None:
            return values
        clocks = [run.clock(axis.clock) for run, _ in runs]
        return {mean([clock[place] for clock in clocks]): values[place] for place in places if _on_all(place, clocks)}


def _on_all(place: int, clocks: Sequence[Mapping[int, float]]) -> bool:
    return all(place in clock for clock in clocks)


@dataclass(frozen=True)
class Table:
    """Rows that may be compared. common: labels that all runs have in common."""

    title: str
    metric: str
    higher: bool
    common: dict[str, str]
    rows: tuple[Row, ...]

    @property
    def runs(self) -> list[Run]:
        """Of all rows."""
        return [run for row in self.rows for run in row.runs]

    @property
    def by_updates(self) -> bool:
        """Were runs validated more often than once an epoch?"""
        return any(run.by_updates for run in self.runs)

    def axis(self, name: str | None = None) -> Axis:
        """name: of AXES; default: updates if a run was validated more often than once an epoch, else epochs.

        Seconds are those of the processor if all runs know them. OptionError if a run knows none at all.
        """
        if name != "seconds":
            return Axis(self.by_updates if name is None else name == "updates")
        runs = [run for run in self.runs if run.curve(self.metric)]
        for clock in CLOCKS:
            if all(run.clock(clock) for run in runs):
                return Axis(True, clock)
        without = next(run.name for run in runs if not run.clock("wall_s"))
        raise OptionError(f"--x seconds: {without} does not tell any; give --x updates, or leave it out")

    def curves(self, metric: str | None = None, axis: Axis | None = None) -> dict[str, Curve]:
        """Name of a row -> its curve, of rows that have one with a number in it. metric: default: the table's."""
        curves = {row.name: row.curve(metric or self.metric, axis or self.axis()) for row in self.rows}
        return {
            name: curve for name, curve in curves.items() if any(math.isfinite(mean(each)) for each in curve.values())
        }

    def by_metric(self, metric: str) -> Table:
        """The same runs by another metric."""
        return replace(self, metric=metric, higher=self.runs[0].higher_is_better(metric))

    @property
    def training_metric(self) -> str:
        """What is logged of the training under the same name: train_loss for valid_loss."""
        return self.metric.replace("valid_", "train_", 1)

    def columns(self) -> list[Column]:
        """Those for which a run has a value."""
        results = [result for row in self.rows for result in row.results(self.metric)]
        return [column for column in _columns(self.metric, self.by_updates) if column.has_news(results)]


def _columns(metric: str, by_updates: bool) -> list[Column]:
    best = [] if metric == "valid_loss" else [Column(f"best {metric_title(metric)}", ("best", metric))]
    place = Column("at update", ("best", "update"), 0) if by_updates else Column("at epoch", ("best", "epoch"), 1)
    return [
        PARAMETERS,
        *best,
        Column("val. loss (bits)", ("best", "valid_loss_bits"), 3),
        Column("val. loss (nats)", ("best", "valid_loss_nats"), 3),
        Column("train. loss (bits)", ("best", "train_loss_bits"), 3),
        place,
        *(Column(_score_title(score), ("scores", name, "score"), 1) for name, score in SCORES.items()),
        *(Column(title, ("scores", *name.split("/")), decimals) for name, (title, decimals) in FIGURES.items()),
        *ABSORPTION,
        Column("wall time (s)", ("time", "wall_s"), 0),
        Column("processor time (s)", ("time", "cpu_s"), 0),
    ]


def _score_title(score: Score) -> str:
    return score.title if score.higher else f"{score.title} ({score.direction})"


def metric_title(metric: str) -> str:
    """valid_accuracy -> val. accuracy"""
    return metric.replace("valid_", "val. ", 1).replace("_", " ")


def compare(runs: Sequence[Run], by: Sequence[str] = (), metric: str | None = None) -> list[Table]:
    """Tables of runs. by: the labels that make a row; default: all but the seed. metric: instead of the runs' own.

    Raises OptionError for a label or metric that no run has.
    """
    labels = sorted({label for run in runs for label in run.labels})
    for label in by:
        if label not in labels:
            raise OptionError(f"--by {label}: no run has this label; there are: {', '.join(labels) or 'none'}")
    if metric is not None and not any(run.curve(metric) or run.best(metric) for run in runs):
        known = sorted({key for run in runs for each in run.validations for key in each.values if is_score(key)})
        raise OptionError(f"--metric {metric}: no run has logged it; there are: {', '.join(known) or 'none'}")
    tables: dict[tuple, list[Run]] = defaultdict(list)
    for run in runs:
        chosen = metric or run.metric
        task = tuple(str(run.labels.get(label, "")) for label in _TASK)
        tables[(*task, chosen, run.higher_is_better(chosen))].append(run)
    compared = []
    for (*names, chosen, higher), members in sorted(tables.items()):
        parts = _same_data(members)
        for data, part in parts:
            title = ", ".join([name for name in names if name] + ([data] if len(parts) > 1 else []))
            compared.append(_table(title or "runs", chosen, higher, part, by))
    titles = [table.title for table in compared]
    return [
        replace(table, title=f"{table.title}, {table.metric}") if titles.count(table.title) > 1 else table
        for table in compared
    ]


def _same_data(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """(what the data are, runs): by hashes where they are known, and by what logs say about sizes.

    What is known of two runs of one part does not differ. A run that fits several parts, since little is known of it,
    is a part of its own.
    """
    facts = {id(run): (run.data_hash(), tuple(sorted(run.data_sizes().items())) or None) for run in runs}
    parts: list[tuple[list, list[Run]]] = []
    for run in sorted(runs, key=lambda run: facts[id(run)].count(None)):
        new = facts[id(run)]
        fitting = [part for part in parts if _fit(part[0], new)]
        fitting = [part for part in fitting if tuple(part[0]) == new] or fitting
        if len(fitting) == 1:
            known, members = fitting[0]
            known[:] = [old if old is not None else value for old, value in zip(known, new)]
            members.append(run)
        else:
            parts.append((list(new), [run]))
    return [(_data_title(*known), [run for run in runs if run in members]) for known, members in parts]


def _fit(known: Sequence[Any], new: Sequence[Any]) -> bool:
    """Hashes decide where both are known, else sizes do."""
    both = [(old, value) for old, value in zip(known, new) if old is not None and value is not None]
    return not both or both[0][0] == both[0][1]


def _data_title(data: str | None, sizes: tuple[tuple[str, int], ...] | None) -> str:
    if data is not None:
        return f"data {data[:8]}"
    return ", ".join(f"{name}: {size:,}" for name, size in sizes) if sizes else "data unknown"


def _table(title: str, metric: str, higher: bool, runs: Sequence[Run], by: Sequence[str]) -> Table:
    named = any("run" in run.labels for run in runs)
    keys = list(by) or (["run"] if named else sorted({key for run in runs for key in run.labels} - {"seed"}))
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        groups[tuple(str(run.labels.get(key, "-")) for key in keys)].append(run)
    shown = _naming_labels(keys, list(groups))
    rows = []
    for group in sorted(groups, key=lambda group: [rank(group[at]) for at in shown]):
        name = ", ".join(_named(keys[at], group[at]) for at in shown) or "all"
        ordered = sorted(groups[group], key=lambda run: (not run.seed.isdigit(), run.seed.zfill(20), run.name))
        rows.append(Row(name, dict(zip(keys, group)), tuple(ordered)))
    first = runs[0].labels
    same = {key: str(value) for key, value in first.items() if all(run.labels.get(key) == value for run in runs)}
    return Table(title, metric, higher, same, tuple(rows))


def _named(label: str, value: str) -> str:
    return value if label in (*_NAMES, *_TASK) else f"{label} {value}"


def _naming_labels(keys: Sequence[str], groups: Sequence[tuple[str, ...]]) -> list[int]:
    """Places of the labels that make up the names of rows: one if that is enough, else all that vary."""
    order = [key for key in _NAMES if key in keys] + [key for key in keys if key not in (*_NAMES, *_TASK)]
    for at in map(keys.index, order):
        if len({group[at] for group in groups}) == len(groups):
            return [at]
    return [at for at, _ in enumerate(keys) if len({group[at] for group in groups}) > 1] or list(range(len(keys)))


def rank(label: str) -> tuple[int, str]:
    """Sorts names of strategies and architectures: known ones in the order of STRATEGIES and ARCHS, before others."""
    known = ("none", *STRATEGIES, *ARCHS)
    return (known.index(label), "") if label in known else (len(known), label)


def signature(run: Run, score: str) -> str | None:
    """sacrebleu's signature of one of SCORES; None if the run has no such score."""
    recorded = (run.record.get("scores") or {}).get(score)
    return recorded.get("signature") if isinstance(recorded, dict) else None


def baseline_row(table: Table, name: str | None) -> Row | None:
    """The row of this name, the first without one; None if the table has none."""
    if name is None:
        return table.rows[0]
    return next((row for row in table.rows if row.name == name), None)


def check_baseline(tables: Sequence[Table], name: str | None) -> None:
    """OptionError if no table has the row."""
    if name is not None and not any(baseline_row(table, name) for table in tables):
        names = dict.fromkeys(row.name for table in tables for row in table.rows)
        shown = ", ".join(f"'{each}'" for each in names)
        raise OptionError(f"--baseline {name}: no row has this name; there are: {shown}")


def read_tables(
    places: Sequence[str], by: Sequence[str] = (), metric: str | None = None, with_unfinished: bool = False
) -> tuple[list[Table], list[str]]:
    """Tables of the runs at these places (see `find_runs`), and the names of unfinished runs that were left out.

    by, metric: as for `compare`. Raises DataError if no run is left.
    """
    runs = joined(list({run.path.resolve(): run for place in places for run in find_runs(place)}.values()))
    compared = [run for run in runs if is_finished(run) or (with_unfinished and run.validations)]
    left_out = [run for run in runs if run not in compared]
    check_finished(compared, left_out)
    return compare(compared, by, metric), [run.name for run in left_out]


def best_mean(means: Mapping[float, float], higher: bool) -> float | None:
    """The place of the best of all means, NaN left out."""
    return best_place({place: value for place, value in means.items() if not math.isnan(value)}, higher)


def curves_record(table: Table, x: str | None = None) -> dict[str, Any]:
    """Means and best places of a table, as data: of the validations, and of the training where it has been logged.

    x: of AXES; None: as `Table.axis` chooses.
    """
    axis, rows = table.axis(x), []
    curves, training = table.curves(axis=axis), table.curves(table.training_metric, axis)
    for row in table.rows:
        means = {place: mean(values) for place, values in curves.get(row.name, {}).items()}
        trained = {place: mean(values) for place, values in training.get(row.name, {}).items()}
        best = best_mean(means, table.higher)
        rows.append(
            {
                "name": row.name,
                "runs": len(row.runs),
                "best": best,
                "value": None if best is None else means[best],
                "means": means,
                "training": trained,
            }
        )
    return {"title": table.title, "metric": table.metric, "place": axis.title, "rows": rows}


def check_finished(runs: Sequence[Run], unfinished: Sequence[Run]) -> None:
    """DataError if there is nothing to compare."""
    if not runs:
        names = ", ".join(run.name for run in unfinished)
        raise DataError(f"{names}: not finished yet; wait for a result, or show what is there so far with --unfinished")
