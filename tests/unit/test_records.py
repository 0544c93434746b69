"""scripts/records.py: a run of an earlier revision as CSV, and its table."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "scripts"))
import records  # noqa: E402 - scripts are no package


def test_the_rows_of_a_run_are_those_of_its_record():
    folder = REPOSITORY / "tests/data/earlier/duo"
    record = json.loads((folder / "result.json").read_text())
    first, *epochs = records.rows_of(folder)
    assert (first["epoch"], first["command"]) == (0, record["command"])
    assert first["parameters"] == record["parameters"]["all"]
    assert [row["valid_loss"] for row in epochs] == [epoch["valid_loss"] for epoch in record["epochs"].values()]
    assert [row["updates"] for row in epochs] == [5, 10]


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
