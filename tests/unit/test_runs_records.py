"""embinit compare and embinit plot on trainings that have diverged and on records that hold what they should not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from run_folders import compare, configuration, json_line, refused, write_log, write_run

from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import DataError
from embinit_fairseq.runs.folders import find_runs
from embinit_fairseq.runs.logs import best_place, read_log
from embinit_fairseq.runs.record import KINDS, check_record, so_far, summary


def log_of(path: Path, *losses: float) -> Path:
    messages = [("valid", json_line("valid", at, 10 * at, loss=loss)) for at, loss in enumerate(losses, 1)]
    return write_log(path, messages)


# -- trainings that have diverged

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([NAN, 3.0, 2.0], 3),
        ([3.0, 2.0, NAN], 2),
        ([2.0, NAN, 4.0, 3.0], 4),  # checkpoint_best.pt is of epoch 4: see below
        ([INF, 3.0], 2),
        ([INF, INF], 2),
        ([NAN, NAN], None),
        ([], None),
    ],
)
def test_the_best_is_the_one_that_fairseq_saves(losses, best) -> None:
    """The oracle is what fairseq's save_checkpoint does with `best`, in its words."""
    saved = {}
    for epoch, loss in enumerate(losses, 1):
        previous = saved.get("best", loss)
        first = "best" not in saved and not math.isnan(loss)
        saved["best"] = min(loss, previous)
        if first or loss <= saved["best"]:
            saved["epoch"] = epoch
    assert saved.get("epoch") == best
    assert best_place(dict(enumerate(losses, 1)), higher=False) == best
    assert best_place({at: -loss for at, loss in enumerate(losses, 1)}, higher=True) == best


@pytest.mark.parametrize(("losses", "best"), [([NAN, 3.0, 2.0], 2.0), ([NAN, NAN], None), ([INF, INF], None)])
def test_a_diverged_training_is_shown_and_said(tmp_path, capsys, losses, best) -> None:
    log = log_of(tmp_path / "a.log", *losses)
    (table,) = compare(capsys, log)["tables"]
    found = table["rows"][0]["summary"].get("val. loss (bits)")
    assert (found and found["mean"]) == best
    broken = sum(not math.isfinite(loss) for loss in losses)
    expected = f"valid_loss is NaN or infinite ({log}: {broken} of {len(losses)})"
    assert any(expected in text for text in table["warnings"])
    assert main(["compare", str(log)]) == 0
    assert "Attention: validations whose valid_loss is NaN" in capsys.readouterr().out
    picture = tmp_path / "a.png"
    if best is None:
        message = refused(capsys, "plot", "curves", log, "--output", picture)
        assert "no curve to draw" in message
        assert "--metric" in message
    else:
        assert main(["plot", "curves", str(log), "--output", str(picture)]) == 0
        assert f"{best:.3f} at epoch 3" in capsys.readouterr().out
    assert picture.exists() == (best is not None)


def test_finite_trainings_get_no_attention(tmp_path, capsys) -> None:
    assert compare(capsys, log_of(tmp_path / "a.log", 2.0, 1.0))["tables"][0]["warnings"] == []


@pytest.mark.parametrize(("worse", "shown"), [(INF, "inf ± -"), (NAN, "2.000 ± - (of 1)"), (1e308, "± ")])
def test_a_row_with_a_diverged_run(tmp_path, capsys, worse, shown) -> None:
    for name, loss in (("a", 2.0), ("b", worse)):
        log_of(tmp_path / f"{name}.log", loss, loss)
    out = tmp_path / "out"
    assert main(["compare", str(tmp_path), "--output", str(out), "--unit", "perplexity"]) == 0
    assert shown in (out / "results.md").read_text()


def test_a_run_whose_training_diverged_has_no_best_epoch(tmp_path) -> None:
    run = write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [], finished=False)
    log = read_log(log_of(run / "train.log", NAN, NAN))
    with pytest.raises(DataError, match=r"train\.log: valid_loss is NaN after every epoch.*lower --lr"):
        summary(log, "valid_loss", higher=False)
    assert so_far(log, "valid_loss", higher=False)["best"] == {}
    (found,) = find_runs(str(run))
    assert found.best("valid_loss") == {}


@pytest.mark.parametrize("number", ["nan", "inf", None, [1]])
def test_records_of_a_log_without_a_number_of_updates_are_passed_over(tmp_path, number) -> None:
    broken = json.dumps({"epoch": 2, "valid_loss": "1.0", "valid_num_updates": number})
    no_epoch = json.dumps({"epoch": None, "valid_loss": "1.0", "valid_num_updates": "7"})
    messages = [("valid", json_line("valid", 1, 10, loss=4.0)), ("valid", broken), ("valid", no_epoch)]
    assert read_log(write_log(tmp_path / "a.log", messages, configuration())).epochs.keys() == {1}


# -- records

EPOCHS = {"1": {"valid_loss": 3.0, "valid_num_updates": 10}, "2": {"valid_loss": 2.0}}
WRONG = {
    "epochs.1.valid_loss": ({"epochs": {"1": {"valid_loss": "3.2"}}}, '"3.2", not a number'),
    "epochs.2.valid_loss": ({"epochs": {**EPOCHS, "2": {"valid_loss": None}}}, "null, not a number"),
    "epochs.1.huge": ({"epochs": {"1": {"huge": 10**400}}}, "..., not a number"),
    "epochs.1.valid_num_updates": (
        {"epochs": {"1": {"valid_num_updates": NAN}}},
        "NaN, not a whole number from 0",
    ),
    "epochs.1": ({"epochs": {"1": 7}}, "7, not an object"),
    "epochs": ({"epochs": [7]}, "[7], not an object"),
    "best": ({"best": [1]}, "[1], not an object"),
    "best.valid_loss": ({"best": {"valid_loss": "1"}}, '"1", not a number or null'),
    "scores.bleu": ({"scores": {"bleu": 37.0}}, "37.0, not an object"),
    "scores.bleu.score": ({"scores": {"bleu": {"score": 999}}}, "999, not a number from 0 to 100"),
    "scores.bleu_tokenized.score": (
        {"scores": {"bleu_tokenized": {"score": True}}},
        "true, not a number from 0 to 100",
    ),
    "scores.chrf.score": ({"scores": {"chrf": {"score": NAN}}}, "NaN, not a number from 0 to 100"),
    "scores.bleu.signature": ({"scores": {"bleu": {"score": 1, "signature": 5}}}, "5, not text"),
    "scores.test_accuracy": ({"scores": {"test_accuracy": "1"}}, '"1", not a number'),
    "metric": ({"metric": None}, "null, not text"),
    "higher_is_better": ({"higher_is_better": "false"}, '"false", not true or false'),
    "command": ({"command": "fairseq-train 'data"}, "quotes in pairs"),
    "labels.init": ({"labels": {"init": ["x"]}}, '["x"], not text or a number'),
    "data": ({"data": ["x"]}, '["x"], not an object'),
    "data.all": ({"data": {"all": 5}}, "5, not text"),
    "time.wall_s": ({"time": {"wall_s": "10s"}}, '"10s", not a number'),
    "parameters": ({"parameters": "many"}, '"many", not an object'),
    "hardware.cores": ({"hardware": {"cores": "2"}}, '"2", not a whole number'),
    "init.slots.encoder.matched_absorption_ratio": (
        {"init": {"slots": {"encoder": {"matched_absorption_ratio": [1]}}}},
        "[1], not a number",
    ),
    "init.slots.encoder.absorption_ratio": (
        {"init": {"slots": {"encoder": {"absorption_ratio": "a"}}}},
        '"a", not a number',
    ),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_value_of_another_kind_is_named_with_what_is_expected(tmp_path, capsys, key) -> None:
    changes, expected = WRONG[key]
    labels = changes.get("labels", {"init": "none"})
    changes = {key: value for key, value in changes.items() if key != "labels"}
    run = write_run(tmp_path / "a", labels, [1.0], **changes)
    message = refused(capsys, "compare", run)
    assert f"{run / 'result.json'}: {key} is " in message
    assert expected in message
    assert "correct the file, or remove it and start the run again" in message


@pytest.mark.parametrize("epoch", ["abc", "-3", "03", "", "1" * 40])
def test_epochs_are_whole_numbers_and_occur_once(tmp_path, capsys, epoch) -> None:
    run = write_run(tmp_path / "a", {"init": "none"}, [1.0], epochs={"3": {}, epoch: {"valid_loss": 1.0}})
    assert f'{run / "result.json"}: epochs has the key "{epoch}", not that of' in refused(capsys, "compare", run)


def test_the_remaining_kinds(tmp_path) -> None:
    """Each key of the table refuses a value of another kind: nothing is of all kinds."""
    for key in KINDS:
        record: dict = {"labels": {}}
        *names, last = key.replace("*", "1").split("/")
        node = record
        for name in names:
            node = node.setdefault(name, {})
        node[last] = [["nothing holds this"]]
        with pytest.raises(DataError, match=r"result\.json"):
            check_record(record, tmp_path / "result.json")


def test_records_may_be_sparse_and_numbers_are_labels(tmp_path, capsys) -> None:
    nothing = dict.fromkeys(("init", "data", "hardware", "versions", "parameters", "time", "command"))
    write_run(tmp_path / "a", {"init": "none", "seed": 2}, [1.0], **nothing)
    write_run(tmp_path / "b", {"init": "none", "seed": "2"}, [1.0], **{**nothing, "hardware": {"cpu": "one"}})
    (table,) = compare(capsys, tmp_path)["tables"]
    assert [run["seed"] for run in table["rows"][0]["runs"]] == ["2", "2"]
    assert table["labels"] == {"init": "none", "seed": "2"}
    assert main(["compare", str(tmp_path)]) == 0
    assert "* hardware: `one`" in capsys.readouterr().out


def test_a_record_that_is_nested_without_end(tmp_path, capsys) -> None:
    run = write_run(tmp_path / "a", {"init": "none"}, [1.0])
    (run / "result.json").write_text("[" * 200_000)
    assert f"{run / 'result.json'}: not JSON" in refused(capsys, "compare", run)


@pytest.mark.parametrize(
    "change",
    [
        {"cfg": 7},
        {"optimizer_history": 7},
        {"optimizer_history": [7]},
        {"extra_state": 7},
        {"extra_state": {"train_iterator": {"epoch": "two"}, "val_loss": 1.0}},
    ],
)
def test_a_damaged_checkpoint_beside_a_good_one(tmp_path, capsys, change) -> None:
    """It is passed over, or only its labels are."""
    extra = {"train_iterator": {"epoch": 2, "iterations_in_epoch": 0}, "val_loss": 3.0}
    state = {"model": {}, "cfg": {}, "extra_state": extra, "optimizer_history": [{"num_updates": 7}]}
    torch.save(state, tmp_path / "checkpoint1.pt")
    torch.save({**state, **change}, tmp_path / "checkpoint2.pt")
    (table,) = compare(capsys, tmp_path)["tables"]
    assert table["rows"][0]["mean"] == {"1": 3.0}
