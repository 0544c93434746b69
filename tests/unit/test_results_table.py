"""scripts/results_table.py: rows, what they have in common, figures by epoch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

pytest.importorskip("matplotlib", reason="draws; installed by scripts/setup.sh")
import results_table
from run_folders import write_run

LADDER = ["transformer", "transformer_equal", "duo_meta", "duo_shared", "duo_norm", "duo"]


@pytest.fixture
def table(tmp_path, monkeypatch):
    """results.md, results.json and the labels and values of every line that was drawn, by the title of its axis."""

    def make() -> tuple[str, dict, dict]:
        drawn = {}

        def finish(axes, title, place, value, legend):
            drawn[value] = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}

        monkeypatch.setattr(results_table, "finish", finish)
        arguments = ["results_table.py", "--runs", str(tmp_path / "runs"), "--output", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", arguments)
        results_table.main()
        record = json.loads((tmp_path / "results.json").read_text())
        return (tmp_path / "results.md").read_text(), record, drawn

    return make


def add(tmp_path, arch, seed, losses, bleu=None, parameters=1000):
    folder = write_run(
        tmp_path / "runs" / f"{arch}.{seed}",
        {"direction": "de-en", "arch": arch, "init": "xavier", "seed": str(seed)},
        losses,
        parameters={"all": parameters},
    )
    record = json.loads((folder / "result.json").read_text())
    for epoch, value in enumerate(bleu or (), 1):
        record["epochs"][str(epoch)]["valid_bleu"] = value
    (folder / "result.json").write_text(json.dumps(record))


def rows_of(text: str, heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its first two lines."""
    lines = text.split(f"{heading}\n\n", 1)[1].split("\n\n", 1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_ladder_in_its_order_with_parameters_and_figures_by_epoch(tmp_path, table):
    for number, arch in enumerate(LADDER):
        for seed in (1, 2):
            add(tmp_path, arch, seed, [3.0, 1.0 + seed], [10.0 * seed, 20.0 + number], 1000 + number)
    text, record, drawn = table()
    rows = rows_of(text, "## de-en")
    assert [row[0] for row in rows] == [f"{arch}, xavier" for arch in LADDER]
    assert [row[2] for row in rows] == [f"1,{number:03}" for number in range(6)]
    assert "* parameters:" not in text
    assert rows_of(text, "### de-en: validation BLEU by epoch") == [
        ["1", *["15.00"] * 6],
        ["2", *(f"{20 + number}.00" for number in range(6))],
    ]
    assert rows_of(text, "### de-en: validation perplexity by epoch") == [["1", *["8.00"] * 6], ["2", *["6.00"] * 6]]
    assert record["de-en"]["duo, xavier"]["valid_bleu"] == {"1": [10.0, 20.0], "2": [25.0, 25.0]}
    assert drawn["validation BLEU"]["duo_norm, xavier (2)"] == [15.0, 24.0]
    assert drawn["validation loss (nats)"]["duo, xavier (2)"] == pytest.approx([3 * 0.693147, 2.5 * 0.693147])


def test_runs_without_validation_bleu_and_with_equal_parameters(tmp_path, table):
    add(tmp_path, "transformer", 1, [3.0, 2.0])
    add(tmp_path, "duo", 1, [3.0])
    text, record, drawn = table()
    assert "by epoch" not in text
    assert "* parameters: `1000`" in text
    assert "parameters" not in text.splitlines()[2]
    assert "valid_bleu" not in record["de-en"]["duo, xavier"]
    assert list(drawn) == ["validation loss (nats)"]


def test_an_architecture_without_validation_bleu_beside_others(tmp_path, table):
    add(tmp_path, "transformer", 1, [3.0, 2.0])
    add(tmp_path, "duo", 1, [3.0], [11.0])
    text, _, drawn = table()
    assert rows_of(text, "### de-en: validation BLEU by epoch") == [["1", "-", "11.00"]]
    assert rows_of(text, "### de-en: validation perplexity by epoch") == [["1", "8.00", "8.00"], ["2", "4.00", "-"]]
    assert list(drawn["validation BLEU"]) == ["duo, xavier (1)"]
