"""Scores, progress lines and the table of the quickstart."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from toy import progress, report, score


def test_detokenise() -> None:
    assert score.detokenise("when he sings , I sleep .") == "When he sings, I sleep."
    assert score.detokenise("") == ""


def test_scores_of_perfect_and_of_useless_translations() -> None:
    references = ["The dog sleeps in the kitchen.", "Why does she not help us?", "I cannot sleep today."]
    perfect = score.scores(references, references)
    assert perfect["bleu"]["score"] == pytest.approx(100)
    assert perfect["exact_match"] == 1
    assert "tok:13a" in perfect["bleu"]["signature"]
    useless = score.scores(["Nothing", "Nothing", references[2]], references)
    assert useless["bleu"]["score"] < 50
    assert useless["exact_match"] == pytest.approx(1 / 3)
    assert score.scores(["x"] * 3, references)["bleu"]["score"] == 0  # nothing matches: still a record


def test_progress_says_epoch_loss_and_time_left() -> None:
    log = [
        "2026-01-01 00:00:00 | INFO | fairseq_cli.train | something\n",
        '2026-01-01 00:00:05 | INFO | valid | {"epoch": 1, "valid_loss": "7.5"}\n',
        '2026-01-01 00:00:15 | INFO | train | {"epoch": 1, "train_loss": "9.5"}\n',
        '2026-01-01 00:00:15 | INFO | valid | {"epoch": 2, "valid_loss": "6.25"}\n',
    ]
    times = iter([100.0, 105.0, 115.0])
    first, second = progress.progress_lines(log, "xavier", 4, clock=lambda: next(times))
    assert (
        first.split()
        == "xavier epoch 1/4 [#####...............] validation loss 7.500 bits 5 s, about 15 s left".split()
    )
    assert (
        second.split()
        == "xavier epoch 2/4 [##########..........] validation loss 6.250 bits 15 s, about 20 s left".split()
    )


def _result(folder: Path, init: str, bleu: float, ratio: float | None) -> Path:
    slots = {name: {"absorption_ratio": ratio} for name in ("encoder", "decoder")}
    record = {
        "labels": {"init": init, "seed": "7"},
        "scores": {
            "bleu": {"score": bleu, "interval_95": 1.25, "signature": "sig|tok:13a"},
            "exact_match": 0.125,
            "sentences": 500,
        },
        "best": {"epoch": 2, "valid_loss_bits": 1.5},
        "epochs": {"1": {"valid_loss": 2.5}, "2": {"valid_loss": 1.5}},
        "parameters": {"all": 12345},
        "time": {"wall_s": 61.4},
        "hardware": {"cpu": "a processor"},
        "init": {"slots": slots},
    }
    (folder / init).mkdir()
    (folder / init / "result.json").write_text(json.dumps(record), encoding="utf-8")
    return folder / init


def test_table_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [_result(tmp_path, "xavier", 31.04, 0.5), _result(tmp_path, "pretrained", 29.96, None)]
    assert report.main([*map(str, runs), "--output", str(tmp_path)]) == 0
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == text
    header, rule, *rows = text.splitlines()[:4]
    assert header.count("|") == rule.count("|") == rows[0].count("|")
    cells = [cell.strip() for cell in rows[0].strip("|").split("|")]
    assert cells == ["xavier", "31.0", "1.2", "12.5 %", "1.500", "2", "0.50, 0.50", "12,345", "61"]
    assert "-, -" in rows[1]
    assert "`sig|tok:13a`" in text
    assert "500 test sentences, seed 7" in text
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_ratio_is_that_of_rows_with_a_vector_where_there_are_any() -> None:
    slots = {
        "encoder": {"absorption_ratio": 0.5, "matched_absorption_ratio": 2.25},
        "decoder": {"absorption_ratio": 0.5, "matched_absorption_ratio": None},
    }
    assert report.absorption({"init": {"slots": slots}}) == "2.25, 0.50"


def test_table_names_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = _result(tmp_path, "xavier", 31.04, 0.5)
    with pytest.raises(SystemExit) as stop:
        report.main([str(run), str(tmp_path / "shuffled"), "--output", str(tmp_path)])
    assert stop.value.code != 0
    message = capsys.readouterr().err
    assert f"{tmp_path}/shuffled/result.json" in message
    assert "again" in message
    assert not (tmp_path / "table.md").exists()
