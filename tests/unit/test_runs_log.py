"""What trainings leave: logs of fairseq-train, folders of runs, also of diverged trainings and of earlier versions."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import configuration, json_line, json_messages, stamped, write_log, write_run

from embinit_fairseq.runs.log import best_place, logged, option_in, read_log
from embinit_fairseq.runs.metrics import higher_is_better, is_score
from embinit_fairseq.runs.record import add_scores, find_runs, read_run, summary

NAN, INF = math.nan, math.inf
EARLIER = Path(__file__).resolve().parents[1] / "data" / "earlier"


def only(values: dict, name: str) -> dict:
    return {place: values_of[name] for place, values_of in values.items()}


def test_values_of_epochs_and_validations(tmp_path) -> None:
    head = configuration(subset="dev,other")
    log = read_log(write_log(tmp_path / "a.log", json_messages("dev"), head))
    assert only(log.epochs, "valid_loss") == {1: 4.0, 2: 4.25}
    assert only(log.epochs, "train_loss") == {1: 5.0, 2: 4.5}
    assert only(log.validations, "valid_loss") == {5: 4.5, 10: 4.0, 20: 4.25}
    assert (log.parameters, log.trained_parameters, log.sessions, log.finished) == (1234, 1200, 1, True)
    assert (log.train_s, log.wall_s, log.clock) == (15, 8, {5: 2, 10: 4, 20: 6})
    coloured = "".join(f"\x1b[32m{line}\x1b[0m\n" for line in (tmp_path / "a.log").read_text().splitlines())
    (tmp_path / "coloured.log").write_text(coloured)
    assert vars(read_log(tmp_path / "coloured.log")) == vars(log)
    options = {"seed": "3", "arch": "transformer", "embed_init": "xavier", "label_smoothing": "0.1", "nothing": None}
    assert {name: option_in(head, name) for name in options} == options


@pytest.mark.parametrize("first", ["test", "train"])
def test_the_first_subset_is_the_validation_whatever_the_others_are_called(tmp_path, first) -> None:
    """fairseq chooses checkpoint_best.pt by the first of --valid-subset, here `test,valid` and `train,valid`."""
    messages = [
        (first, json_line(first, 1, 10, loss=4.0)),
        ("valid", json_line("valid", 1, 10, loss=1.0)),
        ("train", json_line("train", 1, 10, loss=5.0, train_wall=7)),
    ]
    log = read_log(write_log(tmp_path / "a.log", messages, configuration(subset=f"{first},valid")))
    assert log.epochs[1] | {"valid_loss": 4.0, "train_loss": 5.0} == log.epochs[1]
    assert log.validations[10]["valid_loss"] == 4.0


def test_a_continued_run_has_two_sessions_and_the_later_values(tmp_path) -> None:
    other = ("valid1", json_line("valid1", 1, 10, loss=9.0))  # another validation set
    file = write_log(tmp_path / "a.log", [*json_messages()[:3], other])
    first = file.read_text().splitlines()[:-2]  # killed
    again = [stamped("fairseq_compat", "before the options", 29)]
    again += [stamped("fairseq_cli.train", configuration(), 30), stamped(*other, 35)]
    again += [stamped("valid", json_line("valid", 1, 10, loss=3.5), 40)]
    file.write_text("\n".join([*first, *again, '2024-01-01 10:00:41 | INFO | valid | {"epoch": 2, "va']))
    log = read_log(file)
    assert log.validations[10]["valid_loss"] == log.epochs[1]["valid_loss"] == 3.5
    assert (log.sessions, log.finished, log.wall_s, log.clock[10]) == (2, False, 4 + 11, 4 + 10)
    assert list(log.epochs) == [1]  # the last line was cut off
    file.write_text("\n".join([write_log(file, json_messages()).read_text(), *again]))
    assert not read_log(file).finished  # the first session had come to its end, but the second has more epochs


def test_values_under_a_tag_and_scores_of_scripts(tmp_path) -> None:
    messages = [("valid", json_line("valid", 1, 5, loss=4.0)), ("valid1", json_line("valid1", 1, 5, accuracy=50.0))]
    messages += [("valid1", "{'loss': a configuration"), ("valid1", json_line("valid1", 1, 10, accuracy=60.0))]
    file = write_log(tmp_path / "a.log", messages)
    file.write_text("".join(f"\x1b[32m{line}\x1b[0m\n" for line in file.read_text().splitlines()))
    assert [values["valid1_accuracy"] for values in logged(file, "valid1")] == ["50.0", "60.0"]
    assert logged(tmp_path / "none.log", "valid1") == []
    write_run(tmp_path, {}, [4.0], scores={"beam": 5, "test_loss": 3.0})
    before = json.loads((tmp_path / "result.json").read_text())
    for _ in range(2):
        add_scores(tmp_path, {"test_loss": 2.0, "mismatched": {"accuracy": 60.0}}, classes={"f1": 1})
        changed = json.loads((tmp_path / "result.json").read_text())
        scores = {"beam": 5, "test_loss": 2.0, "mismatched": {"accuracy": 60.0}}
        assert changed == {**before, "scores": scores, "classes": {"f1": 1}}


def test_a_saved_checkpoint_says_its_updates(tmp_path) -> None:
    """A run that was killed after its last save has nothing to do."""
    saved = "Saved checkpoint x/c.pt (epoch 1 @ {} updates, score 3.0) (writing took 1 seconds)"
    messages = [("fairseq.checkpoint_utils", saved.format(updates)) for updates in (20, 10)]
    assert read_log(write_log(tmp_path / "a.log", messages)).saved_updates == 20


def test_validations_within_epochs_are_those_of_the_log(tmp_path) -> None:
    epochs = {"1": {"valid_loss": 4.0, "train_loss": 5.0, "train_num_updates": 10.0, "valid_num_updates": 10.0}}
    epochs["2"] = {"valid_loss": 4.25, "train_loss": 4.5, "train_num_updates": 20.0, "valid_num_updates": 20.0}
    write_run(tmp_path, {}, [4.0, 4.25], epochs=epochs, times={"10": {"wall_s": 7.5, "cpu_s": None}})
    write_log(tmp_path / "train.log", json_messages())
    (run,) = find_runs(f"mine={tmp_path}")
    assert (run.labels, run.is_finished, run.by_updates) == ({"run": "mine"}, True, True)
    assert run.curve("valid_loss", by_updates=True) == {5: 4.5, 10: 4.0, 20: 4.25}
    assert run.curve("valid_loss", by_updates=False) == {1: 4.0, 2: 4.25}
    assert run.curve("train_loss", by_updates=True) == {10: 5.0, 20: 4.5}
    assert run.clock() == {5: 2.0, 10: 7.5, 20: 6.0}  # of the record, else of the log
    best = {"epoch": 1, "update": 10, "valid_loss": 4.0, "valid_loss_bits": 4.0, "train_loss_bits": 5.0}
    assert run.best("valid_loss") == {**best, "valid_loss_nats": pytest.approx(4 * math.log(2))}


def test_a_run_of_an_earlier_version_is_read(tmp_path) -> None:
    run = read_run(EARLIER / "duo")
    record = json.loads((EARLIER / "duo/result.json").read_text())
    losses = {int(epoch): values["valid_loss"] for epoch, values in record["epochs"].items()}
    assert run.curve("valid_loss", by_updates=False) == losses
    assert run.best("valid_loss")["epoch"] == record["best"]["epoch"]
    assert run.best("valid_loss")["valid_loss"] == record["best"]["valid_loss"]
    assert run.command.option("--arch") == "duo_transformer_tiny"


def test_what_a_logged_value_is() -> None:
    """A new metric is shown, whatever its name; fairseq's own numbers are not."""
    scores = [f"valid_{name}" for name in ("loss", "bleu", "ter", "kappa", "upscale")]
    others = [f"valid_{name}" for name in ("wps", "bsz", "num_updates", "best_kappa")]
    assert list(filter(is_score, [*scores, *others, "train_kappa", "epoch"])) == scores
    assert list(map(higher_is_better, [*scores, "valid_ppl"])) == [False, True, False, True, True, False]


@pytest.mark.parametrize("content", ["{", "[1]", '{"tokens_per_s": 3}', None])
def test_what_is_not_a_run_is_named(tmp_path, refused, content) -> None:
    file = write_run(tmp_path / "a", {"init": "none"}, [1.0]) / "result.json"
    if content is None:
        shutil.rmtree(tmp_path / "a")
        (tmp_path / "a").mkdir()
        assert "embinit run" in refused("compare", tmp_path / "a")
        assert f"{tmp_path / 'b'}: no such folder" in refused("compare", tmp_path / "b")
    else:
        file.write_text(content)
        message = refused("compare", tmp_path)
        assert f"{file}: " in message
        assert "start the run again" in message


@settings(max_examples=50)
@given(st.lists(st.sampled_from([NAN, INF, 2.0, 3.0, 4.0]), max_size=5))
def test_the_best_is_the_one_that_fairseq_saves(losses) -> None:
    """The oracle is what fairseq's save_checkpoint does with `best`, in its words."""
    saved = {}
    for epoch, loss in enumerate(losses, 1):
        previous = saved.get("best", loss)
        first = "best" not in saved and not math.isnan(loss)
        saved["best"] = min(loss, previous)
        if first or loss <= saved["best"]:
            saved["epoch"] = epoch
    for sign, higher in ((1, False), (-1, True)):
        assert best_place({at: sign * loss for at, loss in enumerate(losses, 1)}, higher) == saved.get("epoch")


@pytest.mark.parametrize(("losses", "best"), [([NAN, 3.0, 2.0], 2.0), ([NAN, NAN], None)])
def test_a_diverged_training_has_no_best_value_but_numbers(tmp_path, shown, printed, refused, losses, best) -> None:
    run = write_run(tmp_path / "run", {"seed": "1"}, losses, best={})
    (table,) = printed("compare", run)["tables"]
    column = table["rows"][0]["summary"].get("val. loss (bits)")
    assert (column and column["mean"]) == best
    call = ("plot", "curves", run, "--output", tmp_path / "a.png")
    assert (f"{best:.3f} at epoch 3" in shown(*call)) if best else ("no curve to draw: " in refused(*call))
    lines = [("valid", json_line("valid", at, 10 * at, loss=loss)) for at, loss in enumerate(losses, 1)]
    log = read_log(write_log(tmp_path / "a.log", lines))
    assert summary(log, {})["best"].get("valid_loss") == best
