"""Put runs into tables: rows by their labels, columns with mean and standard deviation over seeds, curves.

Only runs of one task with the same test set, dictionaries and metric are in one table.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.runs.command import is_flag
from embinit_fairseq.runs.log import best_place
from embinit_fairseq.runs.metrics import FIGURES, SCORES, is_score
from embinit_fairseq.runs.record import INPUTS, Run, find_runs

#: order of rows: initialisations, then architectures (the rows of Li et al. 2020, Table 5); other names come later
ORDER = tuple(
    "none normal xavier pretrained pretrained_xavier shuffled xavier_pretrained "
    "transformer transformer_equal tupe_transformer duo_meta duo_shared duo_norm duo".split()
)
#: labels that separate tables
_TASK = ("experiment", "task", "direction", "protocol")
#: labels whose value alone is a row's name
_NAMES = ("run", "model", "init", "arch")

Result = dict[str, Any]  # the content of result.json
Curve = dict[float, list[float]]  # epoch, number of updates or seconds -> values of several runs


# ---- Columns --------------------------------------------------------------------------------------------------------


def mean(values: Sequence[float]) -> float:
    """Return the mean; NaN or infinity if values are, as after trainings that have diverged."""
    with np.errstate(all="ignore"):
        return float(np.mean(np.asarray(values, dtype=float)))


@dataclass(frozen=True)
class Column:
    """Describe a column of a table: its title, the keys of its value in a result, decimals.

    constant: True if the value is the same for all seeds: it has no deviation, and is only shown if rows differ.
    """

    title: str
    path: tuple[str, ...]
    digits: int = 2
    constant: bool = False

    @property
    def is_result(self) -> bool:
        """Return True for values of validations and test sets, not for sizes, places and times."""
        return self.path[0] in ("best", "scores") and self.path[1] not in ("epoch", "update")

    def value(self, result: Result) -> float | None:
        """Return the result's number; None if it has none."""
        node: Any = result
        for key in self.path:
            node = node.get(key) if isinstance(node, dict) else None
        return node

    def summary(self, results: Sequence[Result]) -> dict[str, float | None] | None:
        """Return mean and sample standard deviation (None for one result, or if it is not finite), or None."""
        values = [value for value in map(self.value, results) if value is not None]
        if not values:
            return None
        with np.errstate(all="ignore"):
            sd = float(np.std(np.asarray(values, dtype=float), ddof=1)) if len(values) > 1 else math.nan
        return {"mean": mean(values), "sd": sd if math.isfinite(sd) else None}

    def cell(self, results: Sequence[Result]) -> str:
        """Return `mean ± deviation`, "-" without a value; "(of 2)" if only some of the results have one."""
        summary = self.summary(results)
        if summary is None:
            return "-"
        single = summary["sd"] is None or self.constant
        deviation = "" if single else f" ± {summary['sd']:,.{max(self.digits, 1)}f}"
        number = sum(self.value(result) is not None for result in results)
        return f"{summary['mean']:,.{self.digits}f}{deviation}" + (f" (of {number})" if number < len(results) else "")


def _columns(metric: str, by_updates: bool, results: Sequence[Result]) -> list[Column]:
    """Return the columns in which the results have values."""
    in_bits = metric == "valid_loss" and any("valid_loss_bits" in result["best"] for result in results)
    digits = 3 if metric == "valid_loss" else 2
    of_metric = [] if in_bits else [Column(f"best {metric_title(metric)}", ("best", metric), digits)]
    columns = [
        Column("parameters", ("parameters", "all"), 0, constant=True),
        *of_metric,
        Column("val. loss (bits)", ("best", "valid_loss_bits"), 3),
        Column("val. loss (nats)", ("best", "valid_loss_nats"), 3),
        Column("train. loss (bits)", ("best", "train_loss_bits"), 3),
        Column("at update", ("best", "update"), 0) if by_updates else Column("at epoch", ("best", "epoch"), 1),
        *(
            Column(score.title + ("" if score.higher else " (lower is better)"), ("scores", name, "score"), 1)
            for name, score in SCORES.items()
        ),
        *(Column(title, ("scores", *name.split("/")), digits) for name, (title, digits) in FIGURES.items()),
        # the first ratio is for the rows with a vector; reports of older versions have the second ratio only
        *(
            Column(f"absorption ratio{of}, {slot}", ("init", "slots", slot, key))
            for of, key in ((" of matched rows", "matched_absorption_ratio"), ("", "absorption_ratio"))
            for slot in ("encoder", "decoder")
        ),
        Column("wall time (s)", ("time", "wall_s"), 0),
        Column("processor time (s)", ("time", "cpu_s"), 0),
    ]

    def has_news(column: Column) -> bool:
        values = {column.value(result) for result in results} - {None}
        return len(values) > 1 if column.constant else bool(values)

    return list(filter(has_news, columns))


def metric_title(metric: str) -> str:
    """Return "val. accuracy" for valid_accuracy."""
    return metric.replace("valid_", "val. ", 1).replace("_", " ")


# ---- Rows and tables ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Hold runs that differ in their seed, and in labels that `--by` leaves out, in the order of the seeds."""

    name: str
    labels: dict[str, str]
    runs: tuple[Run, ...]

    def results(self, metric: str) -> list[Result]:
        """Return the records, with the best validation by this metric."""
        return [{**run.record, "best": run.best(metric)} for run in self.runs]

    def curve(self, metric: str, x: str) -> Curve:
        """Return the values of all runs with a curve, at the places where all these runs have a value.

        x: `epochs`, `updates`, or `seconds`, for which a place is the mean of the runs' seconds.
        """
        runs = [(run, curve) for run in self.runs if (curve := run.curve(metric, x != "epochs"))]
        if not runs:
            return {}
        places = sorted(set.intersection(*(set(curve) for _, curve in runs)))
        if x != "seconds":
            return {place: [curve[place] for _, curve in runs] for place in places}
        clocks = [run.clock() for run, _ in runs]
        places = [place for place in places if all(place in clock for clock in clocks)]
        return {mean([clock[place] for clock in clocks]): [curve[place] for _, curve in runs] for place in places}


@dataclass(frozen=True)
class Table:
    """Hold rows that may be compared. common: labels that all runs have in common."""

    title: str
    metric: str
    higher: bool
    common: dict[str, str]
    rows: tuple[Row, ...]

    @property
    def runs(self) -> list[Run]:
        """The runs of all rows."""
        return [run for row in self.rows for run in row.runs]

    def axis(self, x: str | None) -> str:
        """Return x, by default `updates` or `epochs`; raise OptionError if a run has no seconds."""
        if x == "seconds":
            for run in self.runs:
                if run.curve(self.metric, True) and not run.clock():
                    raise OptionError(f"--x seconds: {run.name} has no times; give --x updates, or leave it out")
        return x or ("updates" if any(run.by_updates for run in self.runs) else "epochs")

    def curves(self, metric: str, x: str | None) -> dict[str, Curve]:
        """Return name of a row -> its curve, for rows whose curve has a number."""
        axis = self.axis(x)
        curves = {row.name: row.curve(metric, axis) for row in self.rows}
        return {name: c for name, c in curves.items() if any(math.isfinite(mean(values)) for values in c.values())}

    def by_metric(self, metric: str) -> Table:
        """Return the table of the same runs by another metric."""
        return replace(self, metric=metric, higher=self.runs[0].higher_is_better(metric))

    @property
    def training_metric(self) -> str:
        """Return the training's value of the same name: train_loss for valid_loss."""
        return self.metric.replace("valid_", "train_", 1)

    def columns(self) -> list[Column]:
        """Return the columns in which a run has a value."""
        results = [result for row in self.rows for result in row.results(self.metric)]
        return _columns(self.metric, self.axis(None) == "updates", results)

    def row(self, name: str | None) -> Row | None:
        """Return the row of this name, the first one for None; None if there is no such row."""
        return self.rows[0] if name is None else next((row for row in self.rows if row.name == name), None)


def read_finished(places: Sequence[str], with_unfinished: bool = False) -> tuple[list[Run], list[str]]:
    """Return the finished runs at these places (see `find_runs`), and the names of unfinished runs.

    Args:
        places: PATH or NAME=PATH.
        with_unfinished: also return runs that have been validated.

    Raises:
        DataError: no run is left.
    """
    all_runs = list({run.path.resolve(): run for place in places for run in find_runs(place)}.values())
    runs = [run for run in all_runs if run.is_finished or (with_unfinished and run.validations)]
    others = [run.name for run in all_runs if run not in runs]
    if not runs:
        remedy = "no validation yet; wait" if with_unfinished else "wait, or add --unfinished for the values so far"
        raise DataError(f"{', '.join(others)}: not finished yet; {remedy}")
    return runs, others


def compare(runs: Sequence[Run], by: Sequence[str] = (), metric: str | None = None) -> list[Table]:
    """Return the tables of runs.

    Args:
        runs: the runs to compare.
        by: labels whose values make a row; default: all but the seed, and the options in which runs with the same
            labels differ.
        metric: metric instead of the runs'.

    Raises:
        OptionError: no run has the label or the metric.
    """
    labels = sorted({label for run in runs for label in run.labels})
    for label in by:
        if label not in labels:
            raise OptionError(f"--by {label}: no run has this label; there are: {', '.join(labels) or 'none'}")
    if metric is not None and not any(run.curve(metric, False) or run.best(metric) for run in runs):
        logged = sorted({key for run in runs for point in run.validations for key in point if is_score(key)})
        raise OptionError(f"--metric {metric}: no run has logged it; there are: {', '.join(logged) or 'none'}")
    groups: dict[tuple, list[Run]] = defaultdict(list)
    for run in runs:
        chosen = metric or run.metric
        task = tuple(run.labels.get(label, "") for label in _TASK)
        groups[(*task, chosen, run.higher_is_better(chosen)), run.data_hash()].append(run)
    data_sets = Counter(task for task, _ in groups)
    tables = []
    for (task, data), members in sorted(groups.items(), key=lambda group: group[0][0]):
        *names, chosen, higher = task
        shown = [f"data {data[:8]}" if data else "data unknown"] if data_sets[task] > 1 else []
        title = ", ".join([*filter(None, names), *shown]) or "runs"
        tables.append(_table(title, chosen, higher, members, by))
    titles = Counter(table.title for table in tables)
    return [
        replace(table, title=f"{table.title}, {table.metric}") if titles[table.title] > 1 else table for table in tables
    ]


def _table(title: str, metric: str, higher: bool, runs: Sequence[Run], by: Sequence[str]) -> Table:
    is_named = any("run" in run.labels for run in runs)
    keys = list(by) or (["run"] if is_named else sorted({key for run in runs for key in run.labels} - {"seed"}))
    if not by and not is_named:
        keys += differing_options(_grouped(runs, keys).values())
    groups = _grouped(runs, keys)
    shown = _naming_labels(keys, list(groups))
    rows = []
    for group in sorted(groups, key=lambda group: [_rank(group[at]) for at in shown]):
        parts = (group[at] if keys[at] in (*_NAMES, *_TASK) else f"{keys[at]} {group[at]}" for at in shown)
        ordered = sorted(groups[group], key=lambda run: (not run.seed.isdigit(), run.seed.zfill(20), run.name))
        rows.append(Row(", ".join(parts) or "all", dict(zip(keys, group)), tuple(ordered)))
    same = {key: value for key, value in runs[0].labels.items() if all(run.labels.get(key) == value for run in runs)}
    return Table(title, metric, higher, same, tuple(rows))


def _grouped(runs: Sequence[Run], keys: Sequence[str]) -> dict[tuple[str, ...], list[Run]]:
    """Return values of labels and options -> their runs."""
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        options = {flag: value or "given" for flag, value in run.settings.items()}
        groups[
            tuple(
                options.get(key, "not given") if is_flag(key) or key in INPUTS else run.labels.get(key, "-")
                for key in keys
            )
        ].append(run)
    return groups


def differing_options(groups: Iterable[Sequence[Run]]) -> list[str]:
    """Return the options and recorded inputs that differ within a group; runs without a command have none."""
    differing = set()
    for runs in map(list, groups):
        settings = [run.settings for run in runs if run.settings]
        flags = {flag for options in settings for flag in options}
        differing |= {flag for flag in flags - {*INPUTS} if len({options.get(flag) for options in settings}) > 1}
        differing |= {key for key in flags & {*INPUTS} if _differs_within_seeds(runs, key)}
    return sorted(differing)


def _differs_within_seeds(runs: Sequence[Run], key: str) -> bool:
    """Return True if an input of `INPUTS` differs, unless each seed has an input of its own, as with random splits."""
    pairs = {(run.seed, run.settings[key]) for run in runs if key in run.settings}
    seeds, contents = ({pair[at] for pair in pairs} for at in (0, 1))
    return len(contents) > 1 and not len(pairs) == len(seeds) == len(contents)


def _naming_labels(keys: Sequence[str], groups: Sequence[tuple[str, ...]]) -> list[int]:
    """Return the indices of the labels in a row's name: one label if it differs in all rows, else all that vary."""
    number_of = [len({group[at] for group in groups}) for at in range(len(keys))]  # number of different values
    order = [key for key in _NAMES if key in keys] + [key for key in keys if key not in (*_NAMES, *_TASK)]
    for at in map(keys.index, order):
        if number_of[at] == len(groups):
            return [at]
    return [at for at, number in enumerate(number_of) if number > 1] or list(range(len(keys)))


def _rank(label: str) -> tuple[int, str]:
    """Return the place of a name in the order of rows."""
    return (ORDER.index(label), "") if label in ORDER else (len(ORDER), label)


def curves_record(table: Table, x: str | None = None) -> dict[str, Any]:
    """Return the mean curves of a table and their best places, also of the training if it was logged."""
    axis, rows = table.axis(x), []
    curves, training = table.curves(table.metric, axis), table.curves(table.training_metric, axis)
    for row in table.rows:
        means = {place: mean(values) for place, values in curves.get(row.name, {}).items()}
        best = best_mean(means, table.higher)
        rows.append(
            {
                "name": row.name,
                "runs": len(row.runs),
                "best": best,
                "value": None if best is None else means[best],
                "means": means,
                "training": {place: mean(values) for place, values in training.get(row.name, {}).items()},
            }
        )
    place = axis if axis == "seconds" else axis.removesuffix("s")
    return {"title": table.title, "metric": table.metric, "place": place, "rows": rows}


def best_mean(means: Mapping[float, float], higher: bool) -> float | None:
    """Return the place of the best of all means; NaN does not count."""
    return best_place({place: value for place, value in means.items() if not math.isnan(value)}, higher)
