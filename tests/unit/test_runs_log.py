"""Logs of fairseq-train in all formats, and what is made of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from embinit_fairseq.analysis.runs import find_runs, is_finished
from embinit_fairseq.analysis.runs_log import read_log
from embinit_fairseq.errors import DataError

CONFIGURATION = (
    "{'_name': None, 'common': {'_name': None, 'seed': 3, 'fp16': False}, 'dataset': {'valid_subset': 'SUBSET'}, "
    "'checkpoint': {'best_checkpoint_metric': 'METRIC', 'maximize_best_checkpoint_metric': HIGHER}, 'model': "
    "Namespace(seed=3, embed_init='xavier', task='translation', arch='transformer', label_smoothing=0.1)}"
)


def configuration(metric: str = "loss", higher: bool = False, subset: str = "valid") -> str:
    return CONFIGURATION.replace("METRIC", metric).replace("HIGHER", str(higher)).replace("SUBSET", subset)


def stamped(logger: str, message: str, second: int) -> str:
    return f"2024-01-01 10:00:{second:02d} | INFO | {logger} | {message}"


def json_line(tag: str, epoch: int, updates: int, **values: float) -> str:
    record = {"epoch": epoch, **{f"{tag}_{k}": str(v) for k, v in {**values, "num_updates": updates}.items()}}
    return json.dumps(record)


def piped(tag: str | None, epoch: int, updates: int, **values: float) -> str:
    where = f"epoch {epoch:03d}" + (f" | valid on '{tag}' subset" if tag else "")
    return " | ".join([where, *(f"{k} {v}" for k, v in values.items()), f"num_updates {updates}"])


def json_messages(subset: str = "valid") -> list[tuple[str, str]]:
    return [
        (subset, json_line(subset, 1, 5, loss=4.5)),
        ("train_inner", json.dumps({"epoch": 1, "update": 0.9, "loss": "5.0", "num_updates": "8"})),
        (subset, json_line(subset, 1, 10, loss=4.0)),
        ("train", json_line("train", 1, 10, loss=5.0, train_wall=7)),
        (subset, json_line(subset, 2, 20, loss=4.25)),
        ("train", json_line("train", 2, 20, loss=4.5, train_wall=8)),
    ]


def piped_messages(subset: str = "valid") -> list[tuple[str, str]]:
    return [
        (subset, piped(subset, 1, 5, loss=4.5)),
        ("train_inner", "epoch 001:      8 / 10 loss=5.0, ppl=32, wps=1, num_updates=8, lr=0.001"),
        (subset, piped(subset, 1, 10, loss=4.0)),
        ("train", piped(None, 1, 10, loss=5.0, train_wall=7)),
        (subset, piped(subset, 2, 20, loss=4.25)),
        ("train", piped(None, 2, 20, loss=4.5, train_wall=8)),
    ]


def write_log(path: Path, messages: list[tuple[str, str]], head: str = "", plain: bool = False) -> Path:
    """plain: as --log-file writes it, without times and loggers."""
    whole = [
        ("fairseq_cli.train", head or configuration()),
        ("fairseq_cli.train", "num. shared model params: 1,234 (num. trained: 1,200)"),
        *messages,
        ("fairseq_cli.train", "done training in 3.0 seconds"),
    ]
    lines = [message if plain else stamped(name, message, at) for at, (name, message) in enumerate(whole)]
    path.write_text("\n".join(lines) + "\n")
    return path


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
    (run,) = find_runs(str(write_log(tmp_path / "a.log", json_messages())))
    assert run.by_updates
    assert run.curve("valid_loss") == {5: 4.5, 10: 4.0, 20: 4.25}
    assert run.curve("valid_loss", by_updates=False) == {1: 4.0, 2: 4.25}
    assert run.best("valid_loss") == {
        "epoch": 1,
        "update": 10,
        "valid_loss": 4.0,
        "valid_loss_bits": 4.0,
        "valid_loss_nats": pytest.approx(2.772588722),
    }


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


def test_a_checkpoint_given_as_a_run(tmp_path: Path) -> None:
    """The folder of its run is named, which may be the one above its own."""
    saved = tmp_path / "run" / "checkpoints"
    saved.mkdir(parents=True)
    for file, record, expected in (
        (saved / "model.pt", None, "a run folder, a log or a save directory"),
        (saved / "checkpoint_best.pt", None, f"the folder of its run, {saved}"),
        (saved / "checkpoint_best.pt", tmp_path / "run" / "result.json", f"the folder of its run, {tmp_path / 'run'}"),
        (saved / "checkpoint_best.pt", saved / "train.log", f"the folder of its run, {saved}"),
    ):
        file.touch()
        if record is not None:
            record.touch()
        with pytest.raises(DataError) as error:
            find_runs(f"mine={file}")
        assert str(error.value) == f"{file}: a checkpoint; give {expected}"


def test_a_save_directory_without_a_log(tmp_path: Path) -> None:
    """fairseq counts an epoch up when it saves at its end; every validation counts once."""
    cfg = {
        "common": {"seed": 2},
        "checkpoint": {"best_checkpoint_metric": "bleu", "maximize_best_checkpoint_metric": True},
        "model": {"arch": "transformer", "task": "translation", "embed_init": None},
    }
    places = {"1": (2, 0, 10, 7.0), "_2_15": (2, 5, 15, 9.0), "2": (3, 0, 20, 8.0), "_last": (3, 0, 20, 8.0)}
    for name, (epoch, iterations, updates, bleu) in places.items():
        iterator = {"epoch": epoch, "iterations_in_epoch": iterations}
        extra = {"train_iterator": iterator, "val_loss": bleu}
        state = {"model": {}, "cfg": cfg, "extra_state": extra, "optimizer_history": [{"num_updates": updates}]}
        torch.save(state, tmp_path / f"checkpoint{name}.pt")
    (run,) = find_runs(str(tmp_path))
    assert run.labels == {"task": "translation", "arch": "transformer", "seed": "2"}
    assert [(v.epoch, v.updates, v.values) for v in run.validations] == [
        (1, 10, {"valid_bleu": 7.0}),
        (2, 15, {"valid_bleu": 9.0}),
        (2, 20, {"valid_bleu": 8.0}),
    ]
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
    cfg = {
        "common": {"seed": 2},
        "model": {"_name": "tupe_tiny", "rel_pos": True},
        "task": {"_name": "masked_lm", "data": "d"},
        "embed_init": "pretrained",
        "optimizer": {"_name": "adam"},
    }
    extra = {"train_iterator": {"epoch": 2, "iterations_in_epoch": 0}, "val_loss": 3.0}
    state = {"model": {}, "cfg": cfg, "extra_state": extra, "optimizer_history": [{"num_updates": 7}]}
    (tmp_path / "saved").mkdir()
    torch.save(state, tmp_path / "saved" / "checkpoint_last.pt")
    (run,) = find_runs(str(tmp_path / "saved"))
    assert run.labels == {"task": "masked_lm", "arch": "tupe_tiny", "init": "pretrained", "seed": "2"}


def test_a_log_without_its_end_is_of_an_unfinished_run(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.log", json_messages())
    path.write_text(path.read_text().replace("done training", "still training"))
    (run,) = find_runs(str(path))
    assert not is_finished(run)


@pytest.mark.parametrize("metric", ["ppl", "nll_loss", "perplexity"])
def test_losses_and_perplexities_are_best_when_they_are_lowest(tmp_path: Path, metric: str) -> None:
    values = {1: 9.0, 2: 4.0, 3: 5.0}
    messages = [
        ("valid", json_line("valid", epoch, 10 * epoch, bleu=1, **{metric: value})) for epoch, value in values.items()
    ]
    (run,) = find_runs(str(write_log(tmp_path / "a.log", messages, configuration("bleu", higher=True))))
    assert run.best(f"valid_{metric}")["epoch"] == 2
