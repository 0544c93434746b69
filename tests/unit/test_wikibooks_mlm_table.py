"""scripts/wikibooks: validations by updates from a log, and the table made of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from wikibooks import mlm_log, mlm_table

TIME = "2024-01-01 10:00:00 | INFO |"


def log_lines(losses: dict[int, float], epoch: int = 1) -> list[str]:
    lines = []
    for updates, loss in losses.items():
        record = {"epoch": epoch, "valid_loss": f"{loss}", "valid_ppl": "9", "valid_num_updates": f"{updates}"}
        lines += [f"{TIME} train_inner | {{}}", f"{TIME} valid | {json.dumps(record)}"]
        checkpoint = f"runs/checkpoint_{epoch}_{updates}.pt (epoch {epoch} @ {updates} updates, score {loss})"
        lines += [f"{TIME} fairseq.checkpoint_utils | Saved checkpoint {checkpoint} (writing took 1 seconds)"]
    return lines


def write_run(folder: Path, model: str, seed: int, lines: list[str], finished: bool = True) -> None:
    folder.mkdir(parents=True)
    (folder / "training.json").write_text("{}")
    (folder / "train.log").write_text("\n".join(lines) + "\n")
    if finished:
        result = {
            "labels": {"model": model, "seed": str(seed)},
            "parameters": {"all": 1234567},
            "command": f"fairseq-train data --arch {model} --seed {seed}",
            "epochs": {
                "1": {"train_wpb": 3_000.5, "train_num_updates": 400.0},
                "2": {"train_wpb": 2_000.0, "train_num_updates": 1_000.0},
            },
            "scores": {},
            "data": {"all": "abc"},
            "hardware": {"cpu": "a CPU", "cores": 2, "threads": 1, "gpus": []},
            "versions": {"torch": "2"},
            "init": None,
            "time": {"wall_s": 120.0},
        }
        (folder / "result.json").write_text(json.dumps(result))


def test_validations_are_read_by_updates_and_the_last_counts(tmp_path: Path) -> None:
    lines = log_lines({2: 9.5, 4: 9.0, 6: 8.0}) + log_lines({6: 8.5, 8: 8.75}, epoch=2)  # went on from update 4
    (tmp_path / "train.log").write_text("\n".join(["not a record", *lines]) + "\n")
    assert mlm_log.read_validations(tmp_path / "train.log") == {2: 9.5, 4: 9.0, 6: 8.5, 8: 8.75}
    assert mlm_log.saved_updates(tmp_path / "train.log") == 8
    (tmp_path / "short.log").write_text("nothing saved\n")
    assert mlm_log.saved_updates(tmp_path / "short.log") == mlm_log.saved_updates(tmp_path / "nothing.log") == 0


def test_the_table_has_mean_and_deviation_over_seeds(tmp_path: Path, monkeypatch, capsys) -> None:
    runs = tmp_path / "runs"
    write_run(runs / "b.seed1", "b", 1, log_lines({2: 9.0, 4: 6.0, 6: 7.0}))
    write_run(runs / "b.seed2", "b", 2, log_lines({2: 9.5, 4: 8.5, 6: 8.0}))
    write_run(runs / "a.seed1", "a", 1, log_lines({2: 5.0, 6: 4.0}))
    write_run(runs / "a.seed2", "a", 2, log_lines({2: 5.0}), finished=False)
    monkeypatch.setattr(sys, "argv", ["table", "--runs", str(runs), "--output", str(tmp_path / "out")])
    mlm_table.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    cells = [cell.strip() for cell in rows[2].split("|")[1:-1]]
    # 400 updates of 3,000.5 tokens, then 600 of 2,000
    assert cells == ["a", "1,234,567", "1", "4.000", "4.000", "6", "6", "2.4", "2"]
    # (7 + 8) / 2, deviation sqrt(0.5); best: (6 + 8) / 2, sqrt(2)
    cells = [cell.strip() for cell in rows[3].split("|")[1:7]]
    assert cells == ["b", "1,234,567", "2", "7.500 ± 0.707", "7.000 ± 1.414", "5 ± 1.4"]
    text = (tmp_path / "out" / "results.md").read_text()
    assert "Not finished yet: a.seed2." in text
    for fact in ("`a CPU, 2 cores, 1 thread a run`", "`torch 2`", "`abc`", "    fairseq-train data --arch b --seed 1"):
        assert fact in text
    record = json.loads((tmp_path / "out" / "results.json").read_text())
    assert record["b"]["losses"]["b.seed1"] == {"2": 9.0, "4": 6.0, "6": 7.0}
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_curves_are_means_where_all_runs_were_validated() -> None:
    runs = [{"mlm": {"losses": {2: 4.0, 4: 3.0}}}, {"mlm": {"losses": {2: 5.0, 3: 1.0, 4: 2.0}}}]
    assert mlm_table.mean_curve(runs) == {2: [4.0, 5.0], 4: [3.0, 2.0]}


def test_a_run_without_validation_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "a", 1, ["nothing"])
    with pytest.raises(SystemExit, match=r"a/train\.log is missing or has no validation"):
        mlm_table.with_losses({"run": "a"}, tmp_path)


def test_tokens_are_unknown_where_the_log_does_not_tell() -> None:
    assert mlm_table.million_tokens({"1": {"valid_loss": 3.0}}) is None
    epochs = {"10": {"train_wpb": 1e6, "train_num_updates": 5.0}, "9": {"train_wpb": 2e6, "train_num_updates": 3.0}}
    assert mlm_table.million_tokens(epochs) == 8  # three updates in epoch 9, two in epoch 10
