"""What trainings leave: logs of fairseq-train in all formats, save directories, records; also of diverged ones."""

from __future__ import annotations

import math
from argparse import Namespace
from enum import Enum
from pathlib import Path

import pytest
import torch
from run_folders import (
    CONFIGURATION,
    compare,
    configuration,
    json_line,
    json_messages,
    piped_messages,
    refused,
    stamped,
    write_log,
    write_run,
)

from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import DataError
from embinit_fairseq.runs.folders import find_runs, is_finished, options_of_sections, options_of_text
from embinit_fairseq.runs.logs import best_place, read_log
from embinit_fairseq.runs.record import KINDS, check_record, so_far, summary


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("messages", [json_messages, piped_messages])
@pytest.mark.parametrize("subset", ["valid", "dev"])
def test_all_formats_say_the_same(tmp_path, messages, plain, subset) -> None:
    log = read_log(write_log(tmp_path / "a.log", messages(subset), configuration(subset=f"{subset},other"), plain))
    assert {epoch: values["valid_loss"] for epoch, values in log.epochs.items()} == {1: 4.0, 2: 4.25}
    assert {epoch: values["train_loss"] for epoch, values in log.epochs.items()} == {1: 5.0, 2: 4.5}
    assert {updates: values["valid_loss"] for updates, values in log.validations.items()} == {5: 4.5, 10: 4.0, 20: 4.25}
    assert (log.parameters, log.trained_parameters, log.sessions) == (1234, 1200, 1)
    assert log.finished
    assert log.train_s == 15
    assert log.wall_s == (0 if plain else 8)
    assert [log.option(name) for name in ("seed", "arch", "embed_init", "label_smoothing", "nothing")] == [
        "3",
        "transformer",
        "xavier",
        "0.1",
        None,
    ]


def test_a_resumed_run_has_two_sessions_and_the_later_values(tmp_path: Path) -> None:
    first = write_log(tmp_path / "a.log", json_messages()[:3]).read_text().splitlines()[:-1]  # killed
    again = [
        stamped("fairseq_cli.train", configuration(), 30),
        stamped("valid", json_line("valid", 1, 10, loss=3.5), 40),
    ]
    (tmp_path / "a.log").write_text(
        "\n".join([*first, *again, '2024-01-01 10:00:41 | INFO | valid | {"epoch": 2, "va'])
    )
    log = read_log(tmp_path / "a.log")
    assert log.validations[10]["valid_loss"] == log.epochs[1]["valid_loss"] == 3.5
    assert (log.sessions, log.finished) == (2, False)
    assert log.wall_s == 4 + 11
    assert list(log.epochs) == [1]  # the last line was cut off


def test_other_validation_sets_are_not_mixed_in(tmp_path: Path) -> None:
    messages = [("valid", json_line("valid", 1, 10, loss=4.0)), ("valid1", json_line("valid1", 1, 10, loss=9.0))]
    assert read_log(write_log(tmp_path / "a.log", messages)).epochs == {
        1: {"valid_loss": 4.0, "valid_num_updates": 10.0}
    }


def test_a_log_is_a_run(tmp_path: Path) -> None:
    head = configuration("bleu", higher=True)
    messages = [
        ("valid", json_line("valid", epoch, 10 * epoch, loss=4.0, bleu=bleu))
        for epoch, bleu in ((1, 7.0), (2, 9.0), (3, 9.0))
    ]
    (run,) = find_runs(str(write_log(tmp_path / "a.log", messages, head)))
    assert run.labels == {"task": "translation", "arch": "transformer", "init": "xavier", "seed": "3"}
    assert (run.metric, run.higher_is_better(run.metric), is_finished(run)) == ("valid_bleu", True, True)
    assert run.best("valid_bleu")["epoch"] == 3  # the last of equal ones
    assert run.best("valid_loss")["valid_loss_bits"] == 4.0
    assert run.curve("valid_bleu") == {1: 7.0, 2: 9.0, 3: 9.0}
    (named,) = find_runs(f"mine={tmp_path / 'a.log'}")
    assert named.labels["run"] == "mine"


def test_validations_within_epochs_are_places_of_their_own(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.log", json_messages())
    (run,) = find_runs(str(path))
    assert run.by_updates
    assert run.curve("valid_loss") == {5: 4.5, 10: 4.0, 20: 4.25}
    assert run.curve("valid_loss", by_updates=False) == {1: 4.0, 2: 4.25}
    best = {"epoch": 1, "update": 10, "valid_loss": 4.0, "valid_loss_bits": 4.0, "train_loss_bits": 5.0}
    assert run.best("valid_loss") == {**best, "valid_loss_nats": pytest.approx(4 * math.log(2))}
    path.write_text(path.read_text().replace("done training", "still training"))
    (run,) = find_runs(str(path))
    assert not is_finished(run)


def test_folders_and_files_without_runs_are_named(tmp_path: Path) -> None:
    (tmp_path / "other.log").write_text("generate.py\nH-0\t-1.0\tsome text\n")
    for path, reason in (
        (tmp_path, "no run in it"),
        (tmp_path / "other.log", "no validation"),
        (tmp_path / "x", "no such"),
    ):
        with pytest.raises(DataError, match=reason) as error:
            find_runs(str(path))
        assert str(path) in str(error.value)


def saved_state(epoch: int, iterations: int, updates: int, value: float, cfg: dict) -> dict:
    """What fairseq writes, as far as it is read here."""
    extra = {"train_iterator": {"epoch": epoch, "iterations_in_epoch": iterations}, "val_loss": value}
    return {"model": {}, "cfg": cfg, "extra_state": extra, "optimizer_history": [{"num_updates": updates}]}


def test_a_save_directory_without_a_log(tmp_path: Path) -> None:
    """fairseq counts an epoch up when it saves at its end; every validation counts once."""
    cfg = {
        "common": {"seed": 2},
        "checkpoint": {"best_checkpoint_metric": "bleu", "maximize_best_checkpoint_metric": True},
        "model": {"arch": "transformer", "task": "translation", "embed_init": None},
    }
    places = {"1": (2, 0, 10, 7.0), "_2_15": (2, 5, 15, 9.0), "2": (3, 0, 20, 8.0), "_last": (3, 0, 20, 8.0)}
    for name, place in places.items():
        torch.save(saved_state(*place, cfg), tmp_path / f"checkpoint{name}.pt")
    (run,) = find_runs(str(tmp_path))
    assert run.labels == {"task": "translation", "arch": "transformer", "seed": "2"}
    found = [(v.epoch, v.updates, v.values["valid_bleu"]) for v in run.validations]
    assert found == [(1, 10, 7.0), (2, 15, 9.0), (2, 20, 8.0)]
    assert run.best("valid_bleu")["update"] == 15
    assert run.configuration["maximize_best_checkpoint_metric"] == "True"
    assert "seed" not in run.configuration
    assert is_finished(run)


def test_architectures_with_a_dataclass_are_a_section_of_the_configuration(tmp_path: Path) -> None:
    """Two models, or two tasks, are not seeds of one."""
    section = CONFIGURATION[: CONFIGURATION.index("Namespace")]
    section += "{'_name': 'tupe_tiny', 'rel_pos': True}, 'task': {'_name': 'masked_lm', 'data': 'd'}}"
    section = section.replace("METRIC", "loss").replace("HIGHER", "False").replace("SUBSET", "valid")
    (run,) = find_runs(str(write_log(tmp_path / "a.log", json_messages(), section)))
    assert run.labels == {"task": "masked_lm", "arch": "tupe_tiny", "seed": "3"}
    cfg = {"common": {"seed": 2}, "embed_init": "pretrained", "optimizer": {"_name": "adam"}}
    cfg |= {"model": {"_name": "tupe_tiny", "rel_pos": True}, "task": {"_name": "masked_lm", "data": "d"}}
    (tmp_path / "saved").mkdir()
    torch.save(saved_state(2, 0, 7, 3.0, cfg), tmp_path / "saved" / "checkpoint_last.pt")
    (run,) = find_runs(str(tmp_path / "saved"))
    assert run.labels == {"task": "masked_lm", "arch": "tupe_tiny", "init": "pretrained", "seed": "2"}


@pytest.mark.parametrize("metric", ["ppl", "nll_loss", "perplexity"])
def test_losses_and_perplexities_are_best_when_they_are_lowest(tmp_path: Path, metric: str) -> None:
    values = {1: 9.0, 2: 4.0, 3: 5.0}
    messages = [
        ("valid", json_line("valid", epoch, 10 * epoch, bleu=1, **{metric: value})) for epoch, value in values.items()
    ]
    (run,) = find_runs(str(write_log(tmp_path / "a.log", messages, configuration("bleu", higher=True))))
    assert run.best(f"valid_{metric}")["epoch"] == 2


# ---- trainings that have diverged ------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf


def log_of(path: Path, *losses: float) -> Path:
    messages = [("valid", json_line("valid", at, 10 * at, loss=loss)) for at, loss in enumerate(losses, 1)]
    return write_log(path, messages)


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


def test_a_run_whose_training_diverged_has_no_best_epoch(tmp_path) -> None:
    run = write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [], finished=False)
    log = read_log(log_of(run / "train.log", NAN, NAN))
    with pytest.raises(DataError, match=r"train\.log: valid_loss is NaN after every epoch.*lower --lr"):
        summary(log, "valid_loss", higher=False)
    assert so_far(log, "valid_loss", higher=False)["best"] == {}
    (found,) = find_runs(str(run))
    assert found.best("valid_loss") == {}


# ---- records ---------------------------------------------------------------------------------------------------------

WRONG = [
    ("epochs.1.valid_loss", {"epochs": {"1": {"valid_loss": "3.2"}}}, '"3.2", not a number'),
    ("epochs.1.huge", {"epochs": {"1": {"huge": 10**400}}}, "..., not a number"),
    ("epochs.1.valid_num_updates", {"epochs": {"1": {"valid_num_updates": NAN}}}, "NaN, not a whole number from 0"),
    ("best.valid_loss", {"best": {"valid_loss": "1"}}, '"1", not a number or null'),
    ("scores.bleu.score", {"scores": {"bleu": {"score": 999}}}, "999, not a number from 0 to 100"),
    ("scores.chrf.score", {"scores": {"chrf": {"score": NAN}}}, "NaN, not a number from 0 to 100"),
    ("scores.test_accuracy", {"scores": {"test_accuracy": "1"}}, '"1", not a number'),
    ("higher_is_better", {"higher_is_better": "false"}, '"false", not true or false'),
    ("command", {"command": "fairseq-train 'data"}, "quotes in pairs"),
    ("labels.init", {"labels": {"init": ["x"]}}, '["x"], not text or a number'),
    ("hardware.cores", {"hardware": {"cores": "2"}}, '"2", not a whole number'),
]


@pytest.mark.parametrize(("key", "changes", "expected"), WRONG, ids=[case[0] for case in WRONG])
def test_a_value_of_another_kind_is_named_with_what_is_expected(tmp_path, capsys, key, changes, expected) -> None:
    labels = changes.get("labels", {"init": "none"})
    run = write_run(tmp_path / "a", labels, [1.0], **{name: v for name, v in changes.items() if name != "labels"})
    message = refused(capsys, "compare", run)
    assert f"{run / 'result.json'}: {key} is " in message
    assert expected in message
    assert "start the run again" in message


@pytest.mark.parametrize("epoch", ["abc", "-3", "03", "1" * 40])
def test_epochs_are_whole_numbers_and_occur_once(tmp_path, capsys, epoch) -> None:
    run = write_run(tmp_path / "a", {"init": "none"}, [1.0], epochs={"3": {}, epoch: {"valid_loss": 1.0}})
    assert f'{run / "result.json"}: epochs has the key "{epoch}", not that of' in refused(capsys, "compare", run)


@pytest.mark.parametrize("content", ["{", "[1]", '{"tokens_per_s": 3}', "[" * 200_000])
def test_broken_records_are_named(tmp_path, capsys, content) -> None:
    run = write_run(tmp_path / "a", {"init": "none", "seed": "1"}, [1.0])
    (run / "result.json").write_text(content)
    message = refused(capsys, "compare", run)
    assert str(run / "result.json") in message
    assert "start the run again" in message


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


# ---- options of trainings that left no command -----------------------------------------------------------------------


def test_a_log_and_a_checkpoint_agree() -> None:
    class Backend(Enum):
        GLOO = "gloo"

    sections = {"model": Namespace(arch="lstm", width=5), "common": {"seed": 1, "backend": Backend.GLOO, "_name": "x"}}
    sections["embed_init_options"] = {"embed_init_record": "{...}"}  # with seeds in it, and in no log
    text = "{'model': Namespace(arch='lstm', width=5), 'common': {'seed': 2, 'backend': 'gloo', '_name': 'x'}}"
    assert (
        options_of_sections(sections) == options_of_text(text) == {"arch": "'lstm'", "width": "5", "backend": "'gloo'"}
    )


def test_an_option_that_sections_say_differently_has_both_values() -> None:
    assert options_of_text("{'a': {'lr': [1], 'eps': inf}, 'b': {'lr': [2]}}") == {"lr": "[1], [2]", "eps": "inf"}


@pytest.mark.parametrize("text", ["", "{'_name': None, 'common': {'lr'", "{'lr': <Kind.A: 1>}", "{" * 5000])
def test_what_cannot_be_read_says_nothing(text) -> None:
    assert options_of_text(text) == {}


def test_a_checkpoint_given_as_a_run(tmp_path: Path) -> None:
    """The folder of its run is named, which may be the one above its own."""
    saved = tmp_path / "run" / "checkpoints"
    saved.mkdir(parents=True)
    for file, record, expected in (
        ("model.pt", None, "a run folder, a log or a save directory"),
        ("checkpoint_best.pt", None, f"the folder of its run, {saved}"),
        ("checkpoint_best.pt", tmp_path / "run" / "result.json", f"the folder of its run, {tmp_path / 'run'}"),
        ("checkpoint_best.pt", saved / "train.log", f"the folder of its run, {saved}"),
    ):
        for path in (saved / file, record):
            if path is not None:
                path.touch()
        with pytest.raises(DataError) as error:
            find_runs(f"mine={saved / file}")
        assert str(error.value) == f"{saved / file}: a checkpoint; give {expected}"
