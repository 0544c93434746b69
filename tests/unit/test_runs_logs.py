"""What trainings leave: logs of fairseq-train in all formats, save directories, records; also of diverged ones."""

from __future__ import annotations

import math
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from run_folders import configuration, json_line, json_messages, piped_messages, stamped, write_log, write_run

from embinit_fairseq.errors import DataError
from embinit_fairseq.runs.folders import find_runs, is_finished, joined
from embinit_fairseq.runs.logs import best_place, read_log
from embinit_fairseq.runs.metrics import higher_is_better, is_score
from embinit_fairseq.runs.record import KINDS, check_record, so_far, summary

NAN, INF = math.nan, math.inf


def only(values: dict, name: str) -> dict:
    return {place: each[name] for place, each in values.items()}


@pytest.mark.parametrize(("plain", "subset"), [(False, "valid"), (True, "dev")])
@pytest.mark.parametrize("messages", [json_messages, piped_messages])
def test_all_formats_say_the_same(tmp_path, messages, plain, subset) -> None:
    log = read_log(write_log(tmp_path / "a.log", messages(subset), configuration(subset=f"{subset},other"), plain))
    assert only(log.epochs, "valid_loss") == {1: 4.0, 2: 4.25}
    assert only(log.epochs, "train_loss") == {1: 5.0, 2: 4.5}
    assert only(log.validations, "valid_loss") == {5: 4.5, 10: 4.0, 20: 4.25}
    assert (log.parameters, log.trained_parameters, log.sessions, log.finished) == (1234, 1200, 1, True)
    assert (log.train_s, log.wall_s) == (15, 0 if plain else 8)
    options = {"seed": "3", "arch": "transformer", "embed_init": "xavier", "label_smoothing": "0.1", "nothing": None}
    assert {name: log.option(name) for name in options} == options


def test_a_resumed_run_has_two_sessions_and_the_later_values(tmp_path) -> None:
    other = ("valid1", json_line("valid1", 1, 10, loss=9.0))  # another validation set
    file = write_log(tmp_path / "a.log", [*json_messages()[:3], other])
    first = file.read_text().splitlines()[:-2]  # killed
    again = [stamped("fairseq_cli.train", configuration(), 30), stamped(*other, 35)]
    again += [stamped("valid", json_line("valid", 1, 10, loss=3.5), 40)]
    file.write_text("\n".join([*first, *again, '2024-01-01 10:00:41 | INFO | valid | {"epoch": 2, "va']))
    log = read_log(file)
    assert log.validations[10]["valid_loss"] == log.epochs[1]["valid_loss"] == 3.5
    assert (log.sessions, log.finished, log.wall_s) == (2, False, 4 + 11)
    assert list(log.epochs) == [1]  # the last line was cut off
    file.write_text("\n".join([write_log(file, json_messages()).read_text(), *again]))
    assert not read_log(file).finished  # it had come to its end, but not with more epochs


def test_a_log_is_a_run(tmp_path) -> None:
    path = write_log(tmp_path / "a.log", json_messages())
    (run,) = find_runs(f"mine={path}")
    assert run.labels == {"run": "mine", "task": "translation", "arch": "transformer", "init": "xavier", "seed": "3"}
    assert (run.metric, run.higher_is_better(run.metric), is_finished(run)) == ("valid_loss", False, True)
    assert run.by_updates  # validations within epochs are places of their own
    assert run.curve("valid_loss") == {5: 4.5, 10: 4.0, 20: 4.25}
    assert run.curve("valid_loss", by_updates=False) == {1: 4.0, 2: 4.25}
    best = {"epoch": 1, "update": 10, "valid_loss": 4.0, "valid_loss_bits": 4.0, "train_loss_bits": 5.0}
    assert run.best("valid_loss") == {**best, "valid_loss_nats": pytest.approx(4 * math.log(2))}


def test_logs_of_one_training_are_one_run(tmp_path) -> None:
    """In files of its own for each session, in any order; another training of the same options is another run."""

    def log(name, epochs, loaded=0, save_dir="here"):
        told = [("trainer", f"Loaded checkpoint c/checkpoint_last.pt (epoch 2 @ {loaded} updates)")] if loaded else []
        told += [("valid", json_line("valid", at, 10 * at, loss=9.0 - at)) for at in epochs]
        return str(
            write_log(tmp_path / name, told, configuration().replace("'seed'", f"'save_dir': '{save_dir}', 'seed'"))
        )

    parts = [log("c.log", [3], 20), log("a.log", [1, 2]), log("b.log", [2, 3], 10)]
    others = [log("d.log", [1, 2, 3]), log("e.log", [3], 20, "there"), log("f.log", [7], 60)]
    runs = {run.name: run for run in joined([run for file in (*parts, *others) for run in find_runs(file)])}
    assert list(runs) == [parts[1], *others]
    assert runs[parts[1]].curve("valid_loss") == {1: 8.0, 2: 7.0, 3: 6.0}
    assert (runs[parts[1]].log.sessions, runs[parts[1]].log.wall_s) == (3, 4 + 5 + 4)


def test_a_finished_run_that_goes_on_has_the_validations_of_its_record(tmp_path) -> None:
    write_run(tmp_path, {}, [4.0, 3.0])
    write_log(tmp_path / "train.log", [("valid", json_line("valid", at, 10 * at, loss=5.0 - at)) for at in (1, 2, 3)])
    (run,) = find_runs(str(tmp_path))
    assert run.curve("valid_loss") == {1: 4.0, 2: 3.0}


def test_a_higher_metric_and_others_that_are_better_low(tmp_path) -> None:
    of_epochs, low = {1: (7.0, 9.0), 2: (9.0, 4.0), 3: (9.0, 5.0)}, ("ppl", "nll_loss", "perplexity")
    lines = [json_line("valid", at, 10 * at, bleu=b, **dict.fromkeys(low, x)) for at, (b, x) in of_epochs.items()]
    head = configuration("bleu", higher=True)
    (run,) = find_runs(str(write_log(tmp_path / "a.log", [("valid", line) for line in lines], head)))
    assert (run.metric, run.higher_is_better(run.metric)) == ("valid_bleu", True)
    # the last of equal ones
    assert [run.best(f"valid_{metric}")["epoch"] for metric in ("bleu", *low)] == [3, 2, 2, 2]


def test_what_a_logged_value_is() -> None:
    """A new metric is shown, whatever its name; fairseq's own figures are not."""
    scores = [f"valid_{name}" for name in ("loss", "bleu", "ter", "kappa", "upscale")]
    others = [f"valid_{name}" for name in ("wps", "bsz", "num_updates", "best_kappa")]
    assert list(filter(is_score, [*scores, *others, "train_kappa", "epoch"])) == scores
    assert list(map(higher_is_better, scores)) == [False, True, False, True, True]


def saved_state(epoch: int, iterations: int, updates: int, value: float, cfg: dict) -> dict:
    """What fairseq writes, as far as it is read here."""
    extra = {"train_iterator": {"epoch": epoch, "iterations_in_epoch": iterations}, "val_loss": value}
    return {"model": {}, "cfg": cfg, "extra_state": extra, "optimizer_history": [{"num_updates": updates}]}


def test_a_save_directory_without_a_log(tmp_path) -> None:
    """fairseq counts an epoch up when it saves at its end; every validation counts once."""
    chosen = {"best_checkpoint_metric": "bleu", "maximize_best_checkpoint_metric": True}
    cfg = {"common": {"seed": 2}, "checkpoint": chosen, "embed_init": "pretrained", "optimizer": {"_name": "adam"}}
    cfg |= {"model": {"_name": "tupe_tiny", "rel_pos": True}, "task": {"_name": "masked_lm", "data": "d"}}
    places = {"1": (2, 0, 10, 7.0), "_2_15": (2, 5, 15, 9.0), "2": (3, 0, 20, 8.0), "_last": (3, 0, 20, 8.0)}
    for name, place in places.items():
        torch.save(saved_state(*place, cfg), tmp_path / f"checkpoint{name}.pt")
    (run,) = find_runs(str(tmp_path))
    assert run.labels == {"task": "masked_lm", "arch": "tupe_tiny", "init": "pretrained", "seed": "2"}
    found = [(v.epoch, v.updates, v.values["valid_bleu"]) for v in run.validations]
    assert found == [(1, 10, 7.0), (2, 15, 9.0), (2, 20, 8.0)]
    assert run.best("valid_bleu")["update"] == 15
    assert (run.configuration["maximize_best_checkpoint_metric"], "seed" in run.configuration) == ("True", False)
    assert is_finished(run)


def test_what_is_no_run_is_named(tmp_path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    for look in (find_runs, lambda path: read_log(folder / "train.log")):
        with pytest.raises(DataError, match="embinit run"):
            look(str(folder))
    (tmp_path / "run/result.json").write_text("{}")
    for file, expected in (
        (folder / "other.log", "no validation"),
        (tmp_path / "model.pt", "a checkpoint; give a run folder, a log or a save directory"),
        (folder / "checkpoint_best.pt", f"give the folder of its run, {folder.parent}"),  # the one above its own
    ):
        file.write_text("generate.py\nH-0\t-1.0\tsome text\n")
        with pytest.raises(DataError, match=f"^{file}: .*{expected}"):
            find_runs(f"mine={file}")


def test_what_would_never_end_is_not_read(tmp_path, refused) -> None:
    """And no record is read in place of one that is none."""
    for name in ("result.json", "train.log", "a.log"):
        place = write_run(tmp_path / name, {"seed": "1"}, [1.0]) if name == "train.log" else tmp_path / name
        place.mkdir(exist_ok=True)
        (place / name).unlink(missing_ok=True)
        os.mkfifo(place / name)
        for named in (place, place / name):
            message = refused("compare", named)
            assert f"{place / name}: " in message
            assert "save what comes out" in message
    (tmp_path / "odd/result.json").mkdir(parents=True)
    assert "odd/result.json: a folder" in refused("compare", tmp_path / "odd")


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
def test_a_diverged_training_is_shown_and_said(tmp_path, shown, printed, refused, losses, best) -> None:
    messages = [("valid", json_line("valid", at, 10 * at, loss=loss)) for at, loss in enumerate(losses, 1)]
    path = write_log(tmp_path / "train.log", messages)
    (table,) = printed("compare", path)["tables"]
    found = table["rows"][0]["summary"].get("val. loss (bits)")
    assert (found and found["mean"]) == best
    broken = sum(not math.isfinite(loss) for loss in losses)
    expected = f"valid_loss is NaN or infinite ({tmp_path}: {broken} of {len(losses)})"
    assert any(expected in text for text in table["warnings"])
    call = ("plot", "curves", path, "--output", tmp_path / "a.png")
    assert (f"{best:.3f} at epoch 3" in shown(*call)) if best else ("no curve to draw: " in refused(*call))
    if math.isnan(losses[-1]):
        log = read_log(path)
        with pytest.raises(DataError, match=r"train\.log: valid_loss is NaN after every epoch.*lower --lr"):
            summary(log, "valid_loss", higher=False)
        assert so_far(log, "valid_loss", higher=False)["best"] == find_runs(str(path))[0].best("valid_loss") == {}


@pytest.mark.parametrize(
    ("key", "changes", "expected"),
    [
        ("epochs.1.valid_loss", {"epochs": {"1": {"valid_loss": "3.2"}}}, '"3.2", not a number'),
        ("epochs.1.valid_num_updates", {"epochs": {"1": {"valid_num_updates": NAN}}}, "not a whole number from 0"),
        ("higher_is_better", {"higher_is_better": "false"}, '"false", not true or false'),
        ("command", {"command": "fairseq-train 'data"}, "quotes in pairs"),
        ("labels.init", '{"labels": {"init": ["x"]}}', '["x"], not text or a number'),
        *(("", {"epochs": {"3": {}, epoch: {}}}, f'the key "{epoch}"') for epoch in ("abc", "-3", "03", "1" * 40)),
        *(("", content, "") for content in ("{", "[1]", '{"tokens_per_s": 3}', "[" * 200_000)),
    ],
)
def test_a_value_of_another_kind_is_named_with_what_is_expected(tmp_path, refused, key, changes, expected) -> None:
    run = write_run(tmp_path / "a", {"init": "none"}, [1.0], **(changes if isinstance(changes, dict) else {}))
    if isinstance(changes, str):
        (run / "result.json").write_text(changes)
    message = refused("compare", run)
    assert all(part in message for part in (f"{run / 'result.json'}: {key}", expected, "start the run again"))


def test_the_remaining_kinds(tmp_path) -> None:
    """Each key of the table refuses a value of another kind: nothing is of all kinds."""
    for key in KINDS:
        record: object = [["nothing holds this"]]
        for name in reversed(key.replace("*", "1").split("/")):
            record = {name: record}
        with pytest.raises(DataError, match=r"result\.json"):
            check_record({"labels": {}, **record}, tmp_path / "result.json")
