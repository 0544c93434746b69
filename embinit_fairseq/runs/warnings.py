"""What a reader must know before comparing the figures of a table: where its runs differ in more than they should."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from embinit_fairseq.errors import counted
from embinit_fairseq.runs.compare import Row, Table, signature
from embinit_fairseq.runs.metrics import SCORES
from embinit_fairseq.runs.run import Run

#: BLEU of the same translations: versions of sacrebleu agree better than that
ROUNDING = 0.05
#: options that a warning names
SHOWN = 4


def warnings(table: Table) -> list[str]:
    """What a reader must know before comparing figures of this table."""
    return [
        *(text for row in table.rows for text in _row_warnings(row)),
        *_different_seeds(table.rows),
        *_different_data(table.runs),
        *_perhaps_different_data(table.runs),
        *_different_lengths(table),
        *_different_losses(table),
        *_diverged(table),
        *_different_from_texts(table.runs),
        *_different_checkpoints(table.runs),
        *(text for name, score in SCORES.items() for text in _different_signatures(table, name, score.title)),
    ]


def _row_warnings(row: Row) -> list[str]:
    notes = []
    by_seed = _names_by(row.runs, lambda run: run.seed)
    for seed, names in by_seed.items():
        if len(names) > 1:
            notes.append(f"{row.name}: {counted(len(names), 'run')} with seed {seed} ({', '.join(names)})")
    if differing := [*_different_commands(row.runs), *_different_options(row.runs)]:
        more = f"; and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        apart = "a --label for each, or NAME=PATH, tells them apart"
        notes.append(
            f"{row.name}: runs with different options are averaged ({'; '.join(differing[:SHOWN])}{more}); {apart}"
        )
    sizes = _names_by(row.runs, _size)
    if len(sizes) > 1:
        notes.append(f"{row.name}: models of different size are averaged ({_listed(sizes)})")
    return notes


def _size(run: Run) -> str | None:
    """Some options of a model mean another one in another version of the plugin: its size shows that."""
    number = (run.record.get("parameters") or {}).get("all")
    return None if number is None else f"{number:,} parameters"


def _different_commands(runs: Sequence[Run]) -> list[str]:
    """Options that the commands of trainings do not have in common."""
    known = [(run, settings) for run in runs if (settings := run.settings())]
    options = sorted({flag for _, settings in known for flag in settings})
    differing = []
    for flag in options:
        values = defaultdict(list)
        for run, settings in known:
            values[settings.get(flag, "not given") or "given"].append(run.name)
        if len(values) > 1:
            differing.append(f"{flag} {_listed(values)}")
    return differing


def _different_options(runs: Sequence[Run]) -> list[str]:
    """Of trainings that have left no command: options that all know, and which do not agree."""
    known = [run for run in runs if run.configuration]
    options = sorted(set.intersection(*(set(run.configuration) for run in known))) if known else []
    values = {option: _names_by(known, partial(_configured, option)) for option in options}
    return [f"{option} {_listed(names)}" for option, names in values.items() if len(names) > 1]


def _configured(option: str, run: Run) -> str:
    return run.configuration[option]


def _names_by(runs: Iterable[Run], value: Callable[[Run], Any]) -> dict[Any, list[str]]:
    """Value -> names of the runs that have it; runs without one are left out."""
    groups: dict[Any, list[str]] = defaultdict(list)
    for run in runs:
        if (key := value(run)) is not None:
            groups[key].append(run.name)
    return dict(groups)


def _different_seeds(rows: Sequence[Row]) -> list[str]:
    seeds = {row.name: tuple(dict.fromkeys(run.seed for run in row.runs)) for row in rows}
    if len(set(seeds.values())) < 2:
        return []
    each = "; ".join(f"{name}: {', '.join(found)}" for name, found in seeds.items())
    return [f"the rows are means over different seeds ({each})"]


def _different_data(runs: Sequence[Run]) -> list[str]:
    """The test set is one, see `_same_data`; some data sets draw the validation set anew for each seed."""
    by_seed: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        by_seed[run.seed][(run.record.get("data") or {}).get("all", "unknown")].append(run.name)
    differing = {seed: hashes for seed, hashes in by_seed.items() if len(hashes) > 1}
    return [
        f"training or validation data differ with seed {seed} "
        f"({_listed({data[:8]: names for data, names in hashes.items()})})"
        for seed, hashes in differing.items()
    ]


def _perhaps_different_data(runs: Sequence[Run]) -> list[str]:
    """Of trainings whose data have no hashes: what their logs say about folders and numbers of sentences."""
    unknown = [run for run in runs if run.data_hash() is None]
    if not unknown:
        return []
    notes = []
    for what, value in (("folders of data", Run.data_folder), ("training data", _sentences)):
        values = _names_by(runs, value)
        if len(values) > 1:
            notes.append(f"{what} differ ({_listed(values)})")
    return notes


def _sentences(run: Run) -> str | None:
    """Number of training sentences by the log, such as `206,112 sentences`; None if the log does not say."""
    examples = run.log.examples if run.log else {}
    sizes = [size for name, size in examples.items() if name.startswith("train")]
    return counted(max(sizes), "sentence") if sizes else None


def _different_lengths(table: Table) -> list[str]:
    """Nothing is wrong with runs that --patience has stopped."""
    if any(run.option("--patience") not in (None, "-1") for run in table.runs):
        return []

    def length(run: Run) -> int | None:
        if not run.validations:
            return None
        last = run.validations[-1]
        return last.updates if table.by_updates else last.epoch

    values, place = _names_by(table.runs, length), "updates" if table.by_updates else "epochs"
    return [f"runs of different length, in {place} ({_listed(values)})"] if len(values) > 1 else []


def _different_losses(table: Table) -> list[str]:
    """A label-smoothed loss is larger than a cross-entropy of the same model."""
    notes = []
    for flag in ("--criterion", "--label-smoothing"):
        values = _names_by(table.runs, partial(_plain, flag))
        if len(values) > 1:
            notes.append(f"losses of different {flag} cannot be compared ({_listed(values)})")
    return notes


def _plain(flag: str, run: Run) -> str | None:
    """The option's value; a fused criterion computes what fairseq's does."""
    value = run.option(flag)
    return value and value.removeprefix("fused_")


def _diverged(table: Table) -> list[str]:
    notes = []
    for run in table.runs:
        values = run.curve(table.metric, run.by_updates).values()
        if broken := sum(not math.isfinite(value) for value in values):
            notes.append(f"{run.name}: {broken} of {len(values)}")
    return [f"validations whose {table.metric} is NaN or infinite ({'; '.join(notes)})"] if notes else []


def _different_from_texts(runs: Sequence[Run]) -> list[str]:
    """`counted`: BLEU of the translations, where it could be counted as the recorded one was."""
    notes = []
    for run in runs:
        counted_now, recorded = run.record.get("counted"), (run.record.get("scores") or {}).get("bleu") or {}
        if counted_now is not None and abs(counted_now - recorded["score"]) > ROUNDING:
            notes.append(f"{run.name}: {recorded['score']:.1f} recorded, {counted_now:.1f} counted")
    return [f"the recorded BLEU is not that of the translations ({'; '.join(notes)})"] if notes else []


def _different_checkpoints(runs: Sequence[Run]) -> list[str]:
    """That the scores are of: an average of checkpoints is better than the best of them."""

    def name(run: Run) -> str | None:
        checkpoint = (run.record.get("scores") or {}).get("checkpoint")
        return Path(checkpoint).name if isinstance(checkpoint, str) else None

    values = _names_by(runs, name)
    return [f"scores of different kinds of checkpoint ({_listed(values)})"] if len(values) > 1 else []


def _different_signatures(table: Table, score: str, title: str) -> list[str]:
    values = _names_by(table.runs, lambda run: signature(run, score))
    if len(values) < 2:
        return []
    return [f"{title} of different signatures cannot be compared ({_listed(values)})"]


def _listed(names: dict[Any, list[str]]) -> str:
    return "; ".join(f"{value}: {', '.join(runs)}" for value, runs in names.items())
