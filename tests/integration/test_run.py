"""embinit run, score and average with the real fairseq-train: killed and continued, refused, translated and scored."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from trainings import SAVE_OFTEN, TRAIN, losses, model_of, same

from embinit_fairseq.cli.main import main

EPOCHS = ["--max-epoch", "30", "--validate-interval-updates", "8", *SAVE_OFTEN]

pytestmark = pytest.mark.end_to_end


def command(data: Path, run: Path, *options: str) -> list[str]:
    train = [sys.executable, "-m", "fairseq_cli.train", str(data), *TRAIN, *EPOCHS, *options]
    return [sys.executable, "-m", "embinit_fairseq.cli.main", "run", str(run), "--", *train]


def start(data: Path, run: Path, at_update: int) -> subprocess.Popen:
    """A run in a process of its own that has come to an update."""
    process = subprocess.Popen(command(data, run), stderr=subprocess.PIPE, text=True)
    log, deadline = run / "train.log", time.time() + 120
    while not (log.is_file() and f'"num_updates": "{at_update}"' in log.read_text()):
        assert process.poll() is None, process.stderr.read()
        assert time.time() < deadline
        time.sleep(0.02)
    return process


def call(data: Path, run: Path, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run(command(data, run, *options), capture_output=True, text=True)


@pytest.fixture(scope="module")
def whole(toy_translation, tmp_path_factory) -> Path:
    """An uninterrupted run."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    done = call(toy_translation, run)
    assert done.returncode == 0, done.stderr
    assert "best valid_loss" in done.stdout
    return run


def test_killed_and_continued_is_as_if_nothing_had_been(toy_translation, whole, tmp_path) -> None:
    run = tmp_path / "run"
    process = start(toy_translation, run, at_update=7)
    refused = call(toy_translation, run)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
    assert "another call is training in this folder" in refused.stderr
    process.send_signal(signal.SIGKILL)
    process.wait()
    (session,) = json.loads((run / "training.json").read_text())["sessions"]
    assert session["exit"] is None
    assert not (run / "result.json").exists()
    other = call(toy_translation, run, "--lr", "0.5")
    assert (other.returncode, other.stderr.count("\n")) == (2, 1), other.stderr
    assert "--lr was 0.005, is 0.5" in other.stderr
    done = call(toy_translation, run)
    assert done.returncode == 0, done.stderr
    expected, found = losses((whole / "train.log").read_text()), losses((run / "train.log").read_text())
    assert found == expected
    assert same(model_of(run / "checkpoints/checkpoint_last.pt"), model_of(whole / "checkpoints/checkpoint_last.pt"))
    first, second = (json.loads((folder / "result.json").read_text()) for folder in (whole, run))
    assert {e: v["valid_loss"] for e, v in first["epochs"].items()} == {
        e: v["valid_loss"] for e, v in second["epochs"].items()
    }
    assert first["best"] == second["best"]
    assert [session["exit"] for session in second["sessions"]] == [None, 0]
    measured = [sum(session[unit] for session in second["sessions"]) for unit in ("wall_s", "cpu_s")]
    assert [second["time"][unit] for unit in ("wall_s", "cpu_s")] == pytest.approx(measured)
    assert 0 < second["sessions"][1]["cpu_s"] <= 2 * second["sessions"][1]["wall_s"]
    seconds = [second["times"][updates]["cpu_s"] for updates in sorted(second["times"], key=int)]
    # lost are at most the validations right before the kill, whose note was not yet written: one stretch without a gap
    validations = sorted(first["times"], key=int)
    noted = [updates in second["times"] for updates in validations]
    assert set(second["times"]) <= set(validations)
    assert sum(before != after for before, after in zip(noted, noted[1:])) <= 2
    assert noted[-1]
    assert seconds == sorted(seconds)
    again = call(toy_translation, run)
    assert again.returncode == 0
    assert "finished before" in again.stderr


def test_signals_reach_the_training(toy_translation, tmp_path) -> None:
    number = signal.SIGTERM
    process = start(toy_translation, tmp_path / "run", at_update=3)
    process.send_signal(number)
    assert process.wait(30) == 128 + number
    assert number.name in process.stderr.read()
    (session,) = json.loads((tmp_path / "run/training.json").read_text())["sessions"]
    assert session["exit"] == 128 + number
    # the processes of the training have gone: nothing holds the log any longer
    assert call(toy_translation, tmp_path / "run", "--max-epoch", "1").returncode == 0


def test_a_failing_training_shows_why_and_its_exit_status(toy_translation, tmp_path) -> None:
    done = call(toy_translation, tmp_path / "run", "--no-such-option")
    assert done.returncode == 2
    assert "unrecognized arguments: --no-such-option" in done.stderr
    assert "usage" not in done.stderr
    assert f"{tmp_path / 'run'}/train.log" in done.stderr
    assert not (tmp_path / "run/result.json").exists()


def better_translations(log: Path, reference: Path) -> Path:
    """In the place of translations the references, every seventh word gone: those of a model of a few updates have no
    four words in a row right. -> plain text with the same translations, for fairseq-score."""
    better = [
        " ".join(word for at, word in enumerate(line.split()) if (at + number) % 7)
        for number, line in enumerate(reference.read_text().splitlines())
    ]
    fields = [line.split("\t") for line in log.read_text().splitlines()]
    for line in fields:
        if re.match(r"[HD]-\d", line[0]):
            line[2] = better[int(line[0][2:])]
    log.write_text("".join("\t".join(line) + "\n" for line in fields))
    plain = log.with_name("better.txt")
    plain.write_text("".join(line + "\n" for line in better))
    return plain


def test_translated_and_scored(toy_translation, whole, capsys) -> None:
    """The figure on tokens is the one that fairseq counts itself."""
    path = ["--path", str(whole / "checkpoints/checkpoint_best.pt"), "--cpu", "--batch-size", "20", "--beam", "2"]
    translate = [sys.executable, "-m", "fairseq_cli.generate", str(toy_translation), *path]
    with (whole / "test.generate.log").open("w") as log:
        subprocess.run(translate, stdout=log, check=True)
    reference = toy_translation.parent / "test.en"
    plain = better_translations(whole / "test.generate.log", reference)
    score = [sys.executable, "-m", "fairseq_cli.score", "--sys", str(plain), "--ref", str(reference)]
    counted = subprocess.run(score, capture_output=True, text=True, check=True).stdout
    expected = float(re.search(r"BLEU4 = ([\d.]+)", counted).group(1))
    assert 0 < expected < 100
    options = ["--ref", str(reference), "--tokenized", str(reference)]
    assert main(["score", str(whole), *options, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["bleu_tokenized"]["score"] == pytest.approx(expected, abs=0.005)
    assert scores["beam"] == 2
    assert json.loads((whole / "result.json").read_text())["scores"]["chrf"]["score"] > 0
    assert main(["compare", str(whole), "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert table["rows"][0]["summary"]["chrF"]["mean"] == scores["chrf"]["score"]
