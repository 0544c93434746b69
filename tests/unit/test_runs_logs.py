"""Logs of fairseq-train in all formats, and what is made of them."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from enum import Enum
from pathlib import Path

import pytest
import torch
from run_folders import CONFIGURATION, configuration, json_line, json_messages, piped_messages, stamped, write_log

from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import DataError
from embinit_fairseq.runs.compare import compare
from embinit_fairseq.runs.folders import find_runs, is_finished, options_of_sections, options_of_text
from embinit_fairseq.runs.logs import LogReader, read_log
from embinit_fairseq.runs.run import Run, Validation
from embinit_fairseq.runs.warnings import SHOWN, warnings


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
        "train_loss_bits": 5.0,
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


# ---- options of trainings that left no command -----------------------------------------------------------------------


def printed(**options: object) -> str:
    """As fairseq prints it: sections, some with a namespace of all options in them."""
    seed, lr, path = (options.get(name) for name in ("seed", "lr", "embed_init_path"))
    model = Namespace(arch="lstm", seed=seed, lr=lr, save_dir=f"runs/{seed}", no_progress_bar=False)
    sections = {
        "_name": None,
        "common": {"_name": None, "seed": seed, "log_interval": 10 * seed},
        "checkpoint": {"_name": None, "save_dir": f"runs/{seed}"},
        "model": model,
        "optimizer": {"_name": "adam", "lr": lr, "betas": "(0.9, 0.98)", "eps": float("inf")},
        "embed_init": {"_name": "pretrained", "embed_init_path": path},
    }
    return str(sections)


def write_small_log(path, **options: object) -> None:
    messages = [
        f"fairseq_cli.train | {printed(**options)}",
        'valid | {"epoch": 1, "valid_loss": "2.5", "valid_num_updates": "10"}',
        "fairseq_cli.train | done training in 1 s",
    ]
    path.write_text("".join(f"2024-01-01 10:00:00 | INFO | {message}\n" for message in messages), encoding="utf-8")


@pytest.mark.parametrize(
    ("second", "named"),
    [
        ({"seed": 2}, []),
        ({"seed": 2, "lr": [0.002]}, ["lr [0.001]: A; [0.002]: B"]),
        ({"seed": 2, "embed_init_path": ["b.txt"]}, ["embed_init_path ['a.txt']: A; ['b.txt']: B"]),
    ],
)
def test_logs_of_one_row_that_do_not_agree(tmp_path, capsys, second, named) -> None:
    first = {"seed": 1, "lr": [0.001], "embed_init_path": ["a.txt"]}
    write_small_log(tmp_path / "A.log", **first)
    write_small_log(tmp_path / "B.log", **{**first, **second})
    assert main(["compare", str(tmp_path), "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert len(table["rows"]) == 1
    said = [text.replace(f"{tmp_path}/", "").replace(".log", "") for text in table["warnings"]]
    assert [text for text in said if "different options" in text] == [
        f"{table['rows'][0]['name']}: runs with different options are averaged ({text})" for text in named
    ]


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


def test_many_differences_are_counted() -> None:
    def run(name, value):
        record = {"labels": {"seed": name}, "scores": {}}
        options = {f"o{number}": value for number in range(SHOWN + 3)}
        return Run(name, None, record, (Validation(1, 1, {"valid_loss": 1.0}),), configuration=options)

    (table,) = compare([run("1", "x"), run("2", "y")])
    (text,) = warnings(table)
    assert text.count("x: 1; y: 2") == SHOWN
    assert text.endswith("; and 3 more)")


def test_a_line_of_many_beginnings_takes_no_minutes(tmp_path):
    """Patterns that are tried at each of many places take quadratic time; here a fraction of a second."""
    reader, started = LogReader(tmp_path / "log"), time.process_time()
    for text in ("Saved checkpoint ", "epoch 001 | ", "loaded ", "2026-01-01 00:00:00 | ", '{"a_num_updates": '):
        for end in (" @ ", "num_updates ", ""):
            reader.take("2026-01-01 00:00:00 | INFO | x | " + text * ((1 << 20) // len(text)) + end)
    assert time.process_time() - started < 20
    reader.take("x | Saved checkpoint Saved checkpoint /c.pt (epoch 1 @ 12 updates, score 3.0) (writing took 1 s)")
    assert reader.end().saved_updates == 12
