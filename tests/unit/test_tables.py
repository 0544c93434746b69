"""scripts/tables.py and scripts/records.py: tables of GLUE, of text classification, of expansion, of CSV records."""

import csv
import json
import math
import re
import shutil
import statistics
import sys
from pathlib import Path

import pytest
import records
import tables

from embinit_fairseq.errors import DataError


def add_run(folder, task, model, lr, seed, *epochs, **scores):
    """A finished run. epochs: the metrics of each epoch, of which the first one decides."""
    metric = next(iter(epochs[0]))
    labels = {"task": task, "model": model, "seed": str(seed), "updates": "12000"}
    constant = {**dict.fromkeys(epochs[0], 50.0), **dict.fromkeys(scores, 49.0)}
    result = {
        "labels": {**labels, "constant": json.dumps(constant)},
        "command": f"fairseq-train data --lr {lr}",
        "epochs": {str(at): {f"valid_{k}": v for k, v in epoch.items()} for at, epoch in enumerate(epochs, 1)},
        "best": {"epoch": 1 + max(range(len(epochs)), key=lambda at: (epochs[at][metric], at))},
        "parameters": {"all": 1234},
        "data": {"all": f"hash of {task}"},
        "scores": scores,
        "time": {"wall_s": 60.0 * seed},
    }
    (folder / f"{task}.{model}.{lr}.{seed}").mkdir(parents=True)
    (folder / f"{task}.{model}.{lr}.{seed}" / "result.json").write_text(json.dumps(result))


def test_table_of_medians_of_the_best_epochs_at_the_best_rates(tmp_path, monkeypatch):
    runs, accuracy = tmp_path / "runs", {"accuracy": 70.0}
    for seed, value in enumerate((10.0, 20.0, 90.0), 1):  # the mean of 2e-5 is higher, its median lower
        add_run(runs, "CoLA", "small", "2e-5", seed, {"mcc": value, **accuracy}, {"mcc": 5.0, **accuracy})
    for seed, value in enumerate((24.0, 22.0, 26.0), 1):
        add_run(runs, "CoLA", "small", "3e-5", seed, {"mcc": 1.0, **accuracy}, {"mcc": value, **accuracy})
    add_run(runs, "MRPC", "a", "5e-5", 1, {**accuracy, "f1": 80.0}, {"accuracy": 69.0, "f1": 85.0})
    add_run(runs, "MRPC", "a", "2e-5", 1, {**accuracy, "f1": 81.0})  # of equal ones the lower rate
    add_run(runs, "MNLI", "a", "2e-5", 1, {"accuracy": 50.0}, mismatched={"accuracy": 42.0})
    monkeypatch.setattr(sys, "argv", ["tables", "glue", str(runs), f"--output={tmp_path}"])
    tables.main()
    parts = (tmp_path / "results.md").read_text().split("## All learning rates")
    lines = ([line for line in part.splitlines() if line.startswith("|")] for part in parts)
    first, second = ([[cell.strip() for cell in line.split("|")[1:-1]] for line in part] for part in lines)
    assert first[0][1:] == ["CoLA (Matthews)", "MRPC (accuracy / F1)", "MNLI (accuracy / mismatched)", "mean"]
    pairs = ["70.0 / 81.0 (2e-5)", "50.0 / 42.0 (2e-5)"]
    assert first[2:4] == [["a", "-", *pairs, "-"], ["small", "24.0 (3e-5)", "-", "-", "-"]]
    assert first[4] == ["(constant answer)", "50.0", "50.0 / 50.0", "50.0 / 49.0", "50.0"]
    assert second[2] == ["CoLA", "small", "2e-5", "3", "20.00", "10.00", "90.00", "5.00", "1", "2.0"]
    assert second[3] == ["CoLA", "small", "3e-5", "3", "**24.00**", "22.00", "26.00", "24.00", "2", "2.0"]


def result(folder, model, seed, test, valid, attention=""):
    """A run; its vectors: those that the model names, g (50 dimensions) and h (300)."""
    slots = {}
    for slot, name in zip(("encoder", "encoder_p"), [name for name in model.split("+") if name in "gh"]):
        slots[slot] = {"dim": {"g": 50, "h": 300}[name], "coverage_types": 0.25, "coverage_tokens": 0.5}
        slots[slot]["source"] = {"name": f"{name}.txt", "rows": 9}
    trained, labels = model != "mlp", {"task": "MR", "protocol": "textgcn", "model": model, "seed": str(seed)}
    record = {
        "labels": {**labels, **({"attention": attention} if attention else {})},
        "command": "fairseq-train bin --lr 1e-3 --arch x" if trained else "baselines.py data",
        "parameters": {"all": 10_000, "trained": 1234},
        "epochs": {"7": {"valid_accuracy": valid, "valid_num_updates": 7}} if trained else {},
        "best": {"epoch": 7, "valid_loss_nats": 0.5, **({} if trained else {"valid_accuracy": valid})},
        "init": {"slots": slots} if slots else None,
        **{"scores": {"test_accuracy": test, "test_macro_f1": 66.5}, "time": {"wall_s": 8.0}},
        "data": {"all": f"{seed}", "input0/test.bin": "0123456789abcdef0"},
    }
    path = folder / "runs" / "textgcn" / f"{model}.{attention}.{seed}"
    path.mkdir(parents=True)
    for name in ("training", "result")[: 1 + (test is not None)]:
        (path / f"{name}.json").write_text(json.dumps(record))


def test_table_of_models_and_of_couples(tmp_path, monkeypatch):
    for seed, accuracy in ((1, 80.0), (2, 81.0), (3, 85.0)):
        result(tmp_path, "g+h", seed, accuracy, 70.0, "softmax")
    result(tmp_path, "g+g", 1, 70.0, 77.5, "softmax")
    result(tmp_path, "h+g", 1, 60.0, 76.0, "linear")
    result(tmp_path, "mlp", 1, 76.0, 75.0)
    result(tmp_path, "late", 1, None, 70.0)
    monkeypatch.setattr(sys, "argv", ["tables", "textcls", str(tmp_path / "runs"), f"--output={tmp_path}"])
    tables.main()
    text, data = (tmp_path / "results.md").read_text(), json.loads((tmp_path / "results.json").read_text())
    parts = [part.splitlines() for part in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]
    models, softmax, linear, vectors = (
        [[cell.strip() for cell in line.split("|")[1:-1]] for line in part] for part in parts
    )
    duo = ["Duo (softmax), g + h", "Duo (softmax), g + g", "Duo (linear), h + g"]
    assert [row[0] for row in models[2:]] == ["TF-IDF, MLP with 1,024 hidden units", *duo]
    cell = f"82.00 ± {statistics.stdev([80, 81, 85]):.2f}"
    others = ["66.50 ± 0.00", "70.00 ± 0.00", "0.500 ± 0.000", "7.0 ± 0.0", "8 ± 0.0"]
    assert models[3][1:] == ["3", "1,234", cell, *others]
    assert softmax[2:] == [["g", "70.00 (1)", cell], ["h", "-", "-"]]
    assert linear[2:] == [["g", "-", "60.00"], ["h", "-", "-"]]
    assert vectors[2] == ["g", "g.txt", "9", "50", "25.0", "50.0"]
    assert f"1 run not finished: {tmp_path}/runs/textgcn/late..1." in text
    choice = data["MR, textgcn"]["couples"]  # by the seed that all have, not the mean of three
    assert choice["seeds"] == ["1"]
    chosen, best = (choice[how] for how in ("chosen by validation accuracy", "best on the test texts"))
    assert (chosen["model"], chosen["test accuracy (%)"]["mean"]) == (duo[1], 70.0)
    assert (best["model"], best["test accuracy (%)"]["mean"]) == (duo[0], 80.0)


def adaptation(folder: Path, method: str, seed: int, nll: dict[int, float]) -> None:
    """Write a run of expansion; nll: number of updates -> nats per word."""
    run = folder / f"{method}.seed{seed}"
    run.mkdir(parents=True)
    record = {
        "labels": {"method": method, "seed": str(seed)},
        "command": "fairseq-train x",
        "data": {"all": "fedcba9876543210"},
        "versions": {"revision": "0123456789abcdef"},
        "epochs": {},
    }
    (run / "result.json").write_text(json.dumps(record))
    lines = []
    for place, value in nll.items():
        values = {"valid_word_nll": str(value), "valid_words": "100", "valid_new": "7", "valid_num_updates": str(place)}
        lines.append("2024-01-01 10:00:01 | INFO | valid | " + json.dumps({"epoch": 1, **values}) + "\n")
    (run / "start.log").write_text(lines[0])
    (run / "train.log").write_text("".join(lines[1:]))
    kl = dict.fromkeys(("mean", "q50", "q99", "max", "bound", "new_words_probability"), 0.5)
    hashes = {"words": "0", **({"vectors.txt": "fedcba9876543210"} if seed == 2 else {})}
    (run / "expansion.json").write_text(
        json.dumps({"method": method, "n": 5, "k": 2, "sha256": hashes, "verify": {"methods": {method: kl}}})
    )


def test_perplexity_at_the_places_that_all_runs_have(tmp_path, monkeypatch, figures):
    adaptation(tmp_path / "runs", "avg", 1, {0: 2.0, 20: 1.0, 40: 0.5})
    adaptation(tmp_path / "runs", "avg", 2, {0: 3.0, 20: 2.0, 40: 0.5, 60: 0.25})
    monkeypatch.setattr(sys, "argv", ["tables", "expansion", str(tmp_path / "runs"), f"--output={tmp_path}"])
    tables.main()
    text = (tmp_path / "results.md").read_text()
    assert "| method | runs | 0 updates | 20 updates | 40 updates |" in text
    pair = math.exp(2.0), math.exp(3.0)
    assert f"| avg | 2 | {statistics.mean(pair):.1f} ± {statistics.stdev(pair):.1f} | " in text
    assert "| avg | 2 | 0.5000 ± 0.0000 | " in text
    assert "`100, 7`" in text
    assert figures[0].axes[0].get_lines()[0].get_xdata().tolist() == [0, 20, 40]
    adaptation(tmp_path / "runs", "none", 1, {0: 2.0, 20: 1.0, 40: 0.5, 50: 0.25})  # EQUAL_TEXT
    tables.main()
    text = (tmp_path / "results.md").read_text()
    assert "| method | runs | 0 updates | 20 updates | 40 updates | 50 updates |" in text
    assert f"| {math.exp(0.5):.1f} ± 0.0 | - |" in text
    assert f"| {math.exp(0.5):.1f} | {math.exp(0.25):.1f} |" in text
    records.main(["perplexities", str(tmp_path), "--output", str(tmp_path / "words.csv")])
    with open(tmp_path / "words.csv", newline="") as file:
        rows = {(row["run"], row["updates"]): row for row in csv.DictReader(file)}
    assert rows["none.seed1", "50"]["word_ppl"] == "1.28403"  # exp(0.25)
    assert rows["avg.seed2", "0"]["kl_max"] == "0.5"
    assert (rows["avg.seed2", "0"]["data"], rows["avg.seed2", "20"]["data"]) == ("fedcba987654", "")
    assert rows["avg.seed2", "20"]["kl_max"] == ""
    assert rows["avg.seed2", "0"]["revision"] == "0123456789ab"
    assert [rows[f"avg.seed{seed}", "0"]["vectors"] for seed in (1, 2)] == ["", "fedcba987654"]
    assert {row["model"] for row in rows.values()} == {"."}
    (tmp_path / "runs/avg.seed1/start.log").unlink()
    with pytest.raises(DataError, match=r"start\.log.*adapt\.sh"):
        tables.main()


def test_the_rows_of_a_run_are_those_of_its_record(tmp_path):
    """The hardware is a GPU only if the training was not kept from it."""
    folder = Path(__file__).parents[1] / "data/earlier/duo"
    record = json.loads((folder / "result.json").read_text())
    first, *epochs = records.rows_of(folder, "duo")
    for command, hardware in (("fairseq-train data", "a GPU"), ("fairseq-train data --cpu", "a CPU")):
        changed = {**record, "command": command, "hardware": {"cpu": "a CPU", "gpus": ["a GPU"]}}
        (tmp_path / "result.json").write_text(json.dumps(changed))
        assert next(records.rows_of(tmp_path, "duo"))["cpu"] == hardware
    assert (first["epoch"], first["command"]) == (0, record["command"])
    assert first["parameters"] == record["parameters"]["all"]
    assert [row["valid_loss"] for row in epochs] == [epoch["valid_loss"] for epoch in record["epochs"].values()]
    assert [row["updates"] for row in epochs] == [5, 10]


def test_runs_of_one_name_and_epochs_without_a_validation_are_kept(tmp_path):
    record = json.loads((Path(__file__).parents[1] / "data/earlier/duo/result.json").read_text())
    record["epochs"]["1"] = {name: value for name, value in record["epochs"]["1"].items() if name[:6] != "valid_"}
    for folder, loss in (("1000", 3.0), ("4000", 2.0)):
        record["epochs"]["2"]["valid_loss"] = loss
        (tmp_path / folder / "xavier.seed1").mkdir(parents=True)
        (tmp_path / folder / "xavier.seed1/result.json").write_text(json.dumps(record))
    records.main(["write", str(tmp_path), "--output", str(tmp_path / "all.csv")])
    runs = records.read(tmp_path / "all.csv")
    assert [(run["run"], records.loss(run)) for run in runs] == [("1000/xavier.seed1", 3.0), ("4000/xavier.seed1", 2.0)]
    assert ["valid_loss" in row for row in runs[0]["epochs"]] == [False, True]
    assert runs[0]["epochs"][0]["train_loss"] == record["epochs"]["1"]["train_loss"]
    shutil.rmtree(tmp_path / "1000")  # its run stays in the file
    record["epochs"]["2"]["valid_loss"] = 1.5
    for run in ("4000/xavier.seed1", "0500/xavier.seed1"):
        (tmp_path / run).mkdir(parents=True, exist_ok=True)
        (tmp_path / run / "result.json").write_text(json.dumps(record))
    records.main(["write", str(tmp_path), "--output", str(tmp_path / "all.csv"), "--add"])
    found = {run["run"]: records.loss(run) for run in records.read(tmp_path / "all.csv")}
    assert found == {"0500/xavier.seed1": 1.5, "1000/xavier.seed1": 3.0, "4000/xavier.seed1": 1.5}
    assert list(found) == sorted(found)


def test_a_table_has_means_and_deviations_over_runs(tmp_path, monkeypatch, capsys):
    rows = [{"run": "a.1", "init": "a", "epoch": 0, "bleu": 30}, {"run": "a.2", "init": "a", "epoch": 0, "bleu": 32}]
    for run, losses in (("a.1", (3, 2, 2.5)), ("a.2", (4, 1))):
        for epoch, loss in enumerate(losses, 1):
            numbers = {"epoch": epoch, "train_loss": loss - 1, "valid_loss": loss, "cpu_s": 100 * epoch}
            rows.append({"run": run, "init": "a", **numbers})
    with open(tmp_path / "a.csv", "w", newline="") as file:
        table = csv.DictWriter(file, ["run", "init", *records.EPOCH, *records.FACTS])
        table.writeheader()
        table.writerows(rows)
    monkeypatch.setattr(sys, "argv", ["records.py", "table", str(tmp_path / "a.csv"), "--by", "init"])
    records.main()
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == "| a | 2 | 2.0 ± 0.0 | 1.500 ± 0.707 | 0.500 ± 0.707 | 31.0 ± 1.4 | 250 ± 71 |"
