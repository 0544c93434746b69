"""embinit run, score and compare with the real fairseq-train: killed and continued, refused, translated and scored."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from programs import PYTHON
from trainings import SAVE_OFTEN, TRAIN, losses, model_of, same

EPOCHS = ["--max-epoch", "30", "--validate-interval-updates", "8", *SAVE_OFTEN]

pytestmark = pytest.mark.end_to_end


def command(data: Path, run: Path, *options: str, python: str = PYTHON) -> list[str]:
    train = [python, "-m", "fairseq_cli.train", str(data), *TRAIN, *EPOCHS, *options]
    return [sys.executable, "-m", "embinit_fairseq.cli.main", "run", str(run), "--", *train]


def start(data: Path, run: Path, at_update: int) -> subprocess.Popen:
    """A run in processes of its own that has come to an update."""
    process = subprocess.Popen(command(data, run, python=sys.executable), stderr=subprocess.PIPE, text=True)
    log, deadline = run / "train.log", time.time() + 120
    while not (log.is_file() and f'"num_updates": "{at_update}"' in log.read_text()):
        assert process.poll() is None, process.stderr.read()
        assert time.time() < deadline
        time.sleep(0.02)
    return process


def call(data: Path, run: Path, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run(command(data, run, *options), capture_output=True, text=True)


def refusal(*arguments) -> str:
    done = call(*arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    return done.stderr


def read(file: Path) -> dict:
    return json.loads(file.read_text())


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
    assert "another call is training in this folder" in refusal(toy_translation, run)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (session,) = read(run / "training.json")["sessions"]
    assert (session["exit"], (run / "result.json").exists()) == (None, False)
    assert "--lr was 0.005, is 0.5" in refusal(toy_translation, run, "--lr", "0.5")
    done = call(toy_translation, run)
    assert done.returncode == 0, done.stderr
    expected, found = (losses((folder / "train.log").read_text()) for folder in (whole, run))
    assert found == expected
    assert same(*(model_of(folder / "checkpoints/checkpoint_last.pt") for folder in (whole, run)))
    first, second = (read(folder / "result.json") for folder in (whole, run))
    by_epoch = [{at: values["valid_loss"] for at, values in each["epochs"].items()} for each in (first, second)]
    assert by_epoch[0] == by_epoch[1]
    assert first["best"] == second["best"]
    assert [session["exit"] for session in second["sessions"]] == [None, 0]
    measured = [sum(session[unit] for session in second["sessions"]) for unit in ("wall_s", "cpu_s")]
    assert [second["time"][unit] for unit in ("wall_s", "cpu_s")] == pytest.approx(measured)
    assert 0 < second["sessions"][1]["cpu_s"] <= 2 * second["sessions"][1]["wall_s"]
    seconds = [second["times"][updates]["cpu_s"] for updates in sorted(second["times"], key=int)]
    # lost are at most the validations right before the kill, whose note was not yet written: one stretch without a gap
    noted = [updates in second["times"] for updates in sorted(first["times"], key=int)]
    assert set(second["times"]) <= set(first["times"])
    assert sum(before != after for before, after in zip(noted, noted[1:])) <= 2
    assert noted[-1]
    assert seconds == sorted(seconds)
    again = call(toy_translation, run)
    assert (again.returncode, "finished before" in again.stderr) == (0, True)


def test_signals_reach_the_training(toy_translation, tmp_path) -> None:
    number = signal.SIGTERM
    process = start(toy_translation, tmp_path / "run", at_update=3)
    process.send_signal(number)
    assert process.wait(30) == 128 + number
    assert number.name in process.stderr.read()
    (session,) = read(tmp_path / "run/training.json")["sessions"]
    assert session["exit"] == 128 + number
    # the processes of the training have gone: nothing holds the log any longer
    done = call(toy_translation, tmp_path / "run", "--max-epoch", "1")
    assert done.returncode == 0, done.stderr


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
    words = [line.split() for line in reference.read_text().splitlines()]
    better = [" ".join(w for at, w in enumerate(line) if (at + number) % 7) for number, line in enumerate(words)]
    fields = [line.split("\t") for line in log.read_text().splitlines()]
    for line in fields:
        if re.match(r"[HD]-\d", line[0]):
            line[2] = better[int(line[0][2:])]
    log.write_text("".join("\t".join(line) + "\n" for line in fields))
    plain = log.with_name("better.txt")
    plain.write_text("".join(line + "\n" for line in better))
    return plain


def test_translated_and_scored(toy_translation, whole, printed) -> None:
    """The figure on tokens is the one that fairseq counts itself."""
    path = ["--path", str(whole / "checkpoints/checkpoint_best.pt"), "--cpu", "--batch-size", "20", "--beam", "2"]
    with (whole / "test.generate.log").open("w") as log:
        subprocess.run([PYTHON, "-m", "fairseq_cli.generate", str(toy_translation), *path], stdout=log, check=True)
    reference = toy_translation.parent / "test.en"
    plain = better_translations(whole / "test.generate.log", reference)
    score = [PYTHON, "-m", "fairseq_cli.score", "--sys", str(plain), "--ref", str(reference)]
    counted = subprocess.run(score, capture_output=True, text=True, check=True).stdout
    expected = float(re.search(r"BLEU4 = ([\d.]+)", counted).group(1))
    assert 0 < expected < 100
    scores = printed("score", whole, "--ref", reference, "--tokenized", reference)
    assert scores["bleu_tokenized"]["score"] == pytest.approx(expected, abs=0.005)
    assert scores["beam"] == 2
    assert read(whole / "result.json")["scores"]["chrf"]["score"] > 0
    (table,) = printed("compare", whole)["tables"]
    assert table["rows"][0]["summary"]["chrF"]["mean"] == scores["chrf"]["score"]


def test_logs_of_all_formats_and_save_directories_agree(toy_translation, tmp_path, printed) -> None:
    every_epoch = [word for word in TRAIN if word != "--no-epoch-checkpoints"]
    for name in ("json", "simple", "tqdm"):
        options = ["--max-epoch", "2", "--save-dir", str(tmp_path / name), "--log-format", name]
        options += ["--log-file", str(tmp_path / f"{name}.file.log")]
        with (tmp_path / f"{name}.log").open("w") as log:
            train = [PYTHON, "-m", "fairseq_cli.train", str(toy_translation), *every_epoch, *options]
            subprocess.run(train, check=True, stdout=log, stderr=subprocess.STDOUT)
    sources = ["json.log", "json.file.log", "simple.log", "simple.file.log", "tqdm.log", "json"]
    (table,) = printed("compare", *(f"{name}={tmp_path / name}" for name in sources))["tables"]
    means = {row["name"]: row["mean"] for row in table["rows"]}
    assert sorted(means) == sorted(sources)
    assert all(mean == means["json"] for mean in means.values())
    assert list(means["json"]) == ["1", "2"]
    assert means["json"]["1"] > means["json"]["2"] > 0
    assert table["labels"]["seed"] == "1"
