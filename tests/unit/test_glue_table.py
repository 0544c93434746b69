"""scripts/glue/table.py: medians over seeds, the best rate, the second metrics, what is said about the runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from glue import table


@pytest.fixture
def add_run(tmp_path):
    """Adds a finished run to tmp_path/runs. epochs: the metrics of each epoch, of which the first one decides."""

    def add(task, model, lr, seed, epochs, mismatched=()):
        folder = tmp_path / "runs" / f"{task}.{model}.{lr}.{seed}"
        folder.mkdir(parents=True)
        metric = next(iter(epochs[0]))
        labels = {"task": task, "model": model, "lr": lr, "seed": str(seed), "updates": "12000"}
        result = {
            "labels": {**labels, "constant": json.dumps({metric: 50.0, "f1": 66.6})},
            "epochs": {str(at): {f"valid_{k}": v for k, v in epoch.items()} for at, epoch in enumerate(epochs, 1)},
            "best": {"epoch": 1 + max(range(len(epochs)), key=lambda at: (epochs[at][metric], at))},
            "parameters": {"all": 1234},
            "data": {"all": f"hash of {task}"},
            "hardware": {"cpu": "a processor", "cores": 2, "threads": 1, "gpus": []},
            "versions": {"fairseq": "0.12.2", "torch": None},
            "time": {"wall_s": 60.0 * seed},
        }
        (folder / "training.json").write_text("{}")
        (folder / "result.json").write_text(json.dumps(result))
        records = [json.dumps({"epoch": at, "valid1_accuracy": str(v)}) for at, v in enumerate(mismatched, 1)]
        (folder / "train.log").write_text("".join(f"2025-01-01 00:00:00 | INFO | valid1 | {r}\n" for r in records))

    return add


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """A function that makes the tables: (rows of the first one by model, rows of the second one, the text)."""

    def make():
        monkeypatch.setattr(sys, "argv", ["table", f"--runs={tmp_path / 'runs'}", f"--output={tmp_path / 'out'}"])
        table.main()
        text = (tmp_path / "out" / "results.md").read_text()
        parts = [
            [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines() if line.startswith("|")]
            for part in text.split("## All learning rates")
        ]
        return {row[0]: row[1:] for row in parts[0]}, parts[1][2:], text

    return make


def test_median_over_seeds_of_the_best_epochs_at_the_best_rate(add_run, tables, tmp_path):
    # the mean of 2e-5 is higher, its median lower
    for seed, value in enumerate((10.0, 20.0, 90.0), 1):
        add_run("CoLA", "small", "2e-5", seed, [{"mcc": value, "accuracy": 70.0}, {"mcc": 5.0, "accuracy": 71.0}])
    for seed, value in enumerate((24.0, 22.0, 26.0), 1):
        add_run("CoLA", "small", "3e-5", seed, [{"mcc": 1.0, "accuracy": 70.0}, {"mcc": value, "accuracy": 71.0}])
    first, second, text = tables()
    assert first["model"] == ["CoLA (Matthews)", "mean"]
    assert first["small"] == ["24.0 (3e-5)", "24.0"]
    assert first["(constant answer)"] == ["50.0", "50.0"]
    assert second == [
        ["CoLA", "small", "2e-5", "3", "20.00", "10.00", "90.00", "5.00", "1", "2.0"],
        ["CoLA", "small", "3e-5", "3", "**24.00**", "22.00", "26.00", "24.00", "2", "2.0"],
    ]
    record = json.loads((tmp_path / "out" / "results.json").read_text())["CoLA"]["small"]
    assert record["best_rate"] == "3e-5"
    assert record["rates"]["2e-5"]["median"] == {"mcc": 20.0, "accuracy": 70.0, "last": 5.0, "epoch": 1}
    for note in ("`small: 12,000 updates`", "`small: 1,234`", "`CoLA: 2`", "`a processor, 2 cores, 1 thread a run`"):
        assert note in text
    assert "`fairseq 0.12.2`" in text
    assert "`CoLA: hash of CoLA`" in text
    assert "Not finished" not in text


def test_of_equal_rates_the_lowest_counts(add_run, tables):
    for lr in ("1e-4", "5e-5", "2e-5"):
        add_run("RTE", "a", lr, 1, [{"accuracy": 60.0}])
    first, second, _ = tables()
    assert first["a"] == ["60.0 (2e-5)", "60.0"]
    assert [row[2] for row in second] == ["2e-5", "5e-5", "1e-4"]


def test_second_metrics_are_those_of_the_same_epoch(add_run, tables):
    add_run("MRPC", "a", "2e-5", 1, [{"accuracy": 70.0, "f1": 80.0}, {"accuracy": 69.0, "f1": 85.0}])
    add_run("STS-B", "a", "2e-5", 1, [{"pearson": 30.0, "spearman": 50.0}, {"pearson": 40.0, "spearman": 45.0}])
    add_run("MNLI", "a", "2e-5", 1, [{"accuracy": 40.0}, {"accuracy": 50.0}], mismatched=[44.0, 42.0])
    first, _, _ = tables()
    columns = ["MRPC (accuracy / F1)", "STS-B (Pearson / Spearman)", "MNLI (accuracy / mismatched)", "mean"]
    assert first["model"] == columns
    assert first["a"] == ["70.0 / 80.0 (2e-5)", "40.0 / 45.0 (2e-5)", "50.0 / 42.0 (2e-5)", "53.3"]


def test_models_without_all_tasks_have_no_mean_and_unfinished_runs_are_named(add_run, tables, tmp_path):
    add_run("RTE", "a", "2e-5", 1, [{"accuracy": 60.0}])
    add_run("CoLA", "b", "2e-5", 1, [{"mcc": 10.0, "accuracy": 70.0}])
    (tmp_path / "runs" / "RTE.b.2e-5.1").mkdir()
    (tmp_path / "runs" / "RTE.b.2e-5.1" / "training.json").write_text("{}")
    first, _, text = tables()
    assert first["a"] == ["-", "60.0 (2e-5)", "-"]
    assert first["b"] == ["10.0 (2e-5)", "-", "-"]
    assert "Not finished yet: RTE.b.2e-5.1." in text
