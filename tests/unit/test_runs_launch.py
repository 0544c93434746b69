"""embinit run without a training: what a command says, what a folder holds, what is refused, what is recorded.

The training is replaced by a function that writes a log and a checkpoint; `integration/test_run.py` has real ones.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folders import configuration, json_line, stamped, write_log

from embinit_fairseq import machine
from embinit_fairseq.cli.main import main
from embinit_fairseq.cli.run import _Screen as Screen
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.runs import launch
from embinit_fairseq.runs.command import DATA, data_hashes, differences, labels_of, parse_command
from embinit_fairseq.runs.logs import LogReader, RunLog
from embinit_fairseq.runs.record import read_record

TRAIN = "fairseq-train bin --arch lstm --lr 0.1 --adam-betas (0.9,0.98) --fp16 --clip-norm -0.5 --max-epoch 2"


def command(text: str):
    return parse_command(text.split())


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "start",
    [
        "/opt/venv/bin/fairseq-train",
        "python /src/fairseq_cli/train.py",
        "torchrun --standalone --nproc-per-node 2 --no-python fairseq-train",
        "env OMP_NUM_THREADS=2 srun --gpus-per-task 1 python3 -m fairseq_cli.train",
    ],
)
def test_the_training_is_found_behind_any_launcher(start) -> None:
    found = command(f"{start} bin --arch lstm")
    assert (found.launcher, found.arguments) == (tuple(start.split()), ("bin", "--arch", "lstm"))
    assert found.options == {DATA: ("bin",), "--arch": ("lstm",)}


def test_options_and_their_values() -> None:
    text = "--lr 0.1 -s de --adam-betas=(0.9) --fp16 --clip-norm -0.5 --max-sentences 8 --lr 1"
    expected = {DATA: ("bin",), "--lr": ("1",), "--source-lang": ("de",), "--adam-betas": ("(0.9)",), "--fp16": ()}
    expected |= {"--clip-norm": ("-0.5",), "--batch-size": ("8",)}  # of --lr the last counts, as for argparse
    assert command(f"fairseq-train bin {text}").options == expected


def test_data_behind_an_option_are_found_where_there_are_any(tmp_path) -> None:
    for name in ("bin/dict.txt", "plugin/dict.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    words = ["fairseq-train", "--user-dir", str(tmp_path / "plugin"), "--fp16", str(tmp_path / "bin")]
    found = parse_command(words)
    assert (found.data(), found.options["--fp16"]) == ([tmp_path / "bin"], ())
    with pytest.raises(DataError, match="fairseq-train DATA"):
        parse_command(words[:-1]).data()
    with pytest.raises(DataError, match=r"DATA nowhere: no such folder.*fairseq-preprocess"):
        command("fairseq-train nowhere --fp16").data()


@given(st.lists(st.sampled_from(["--max-epoch", "--lr", "--fp16", "--log-interval", "3", "-1"]), max_size=8))
def test_free_options_make_no_difference(words) -> None:
    """Oracle: the options of the words that are not free, taken one by one."""
    old, new = command("fairseq-train bin"), parse_command(["fairseq-train", "bin", *words])
    expected = {flag for flag in ("--lr", "--fp16") if flag in words}
    assert {text.split()[0] for text in differences(old, new) if text.startswith("--")} == expected


def test_differences_save_dir_and_labels() -> None:
    new = "torchrun fairseq-train other --arch lstm --lr 0.2 --adam-betas (0.9,0.98) --clip-norm -0.5 --seed 3"
    expected = ["--lr was 0.1, is 0.2", "--fp16 was given, is not given", "--seed was not given, is 3"]
    assert differences(command(TRAIN), command(new)) == expected
    assert command(TRAIN).saving_to(Path("x")).words[-2:] == ("--save-dir", "x")
    same = command(f"{TRAIN} --save-dir x/")
    assert same.saving_to(Path("x")) == same
    with pytest.raises(OptionError, match="--save-dir x/"):
        same.saving_to(Path("y"))
    found = labels_of(command(f"{TRAIN} --embed-init xavier --seed 3"), {"arch": "mine", "x": "y"})
    assert found == {"arch": "mine", "x": "y", "init": "xavier", "seed": "3"}


def test_hashes_of_data_and_vectors(tmp_path) -> None:
    files = {"dict.de.txt": "a 1\n", "input0/train.bin": "b", "label/dict.txt": "c"}
    for name, text in {**files, "preprocess.log": "d", "raw/train.de": "x", "hf/config.json": "{}"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    expected = {name: sha(text) for name, text in files.items()}
    assert data_hashes([tmp_path]) == {"all": sha("".join(f"{n} {v}\n" for n, v in expected.items())), **expected}
    found = data_hashes([tmp_path / "raw", tmp_path / "label"])
    assert list(found) == ["all", f"{tmp_path}/raw/train.de", f"{tmp_path}/label/dict.txt"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: holds no files"):
        data_hashes([tmp_path / "empty"])
    vectors, folder = f"{tmp_path}/dict.de.txt", f"{tmp_path}/hf"
    words = ["--embed-init-path", f"encoder={vectors}", f"decoder={folder}", "encoder_p=nowhere"]
    found = parse_command(["fairseq-train", "bin", *words]).vector_hashes()
    assert found == {vectors: sha("a 1\n"), folder: sha(f"config.json {sha('{}')}\n")}


class Training:
    """In place of `launch._train`: epochs up to --max-epoch, 10 updates and a second of two processors each."""

    def __init__(self) -> None:
        self.calls, self.code, self.losses, self.saves = 0, 0, {1: 4.0, 2: 3.0, 3: 3.5}, True

    def __call__(self, folder, given, record, log_file, watch) -> int:
        self.calls += 1
        lines = write_log(folder / "one", self.messages(int(given.option("--max-epoch", "1")))).read_text()
        (folder / "one").unlink()
        log_file.write((lines if not self.code else lines.replace("done training", "no")).encode())
        log_file.flush()
        if self.saves:
            (folder / "checkpoints").mkdir(exist_ok=True)
            (folder / "checkpoints/checkpoint_last.pt").touch()
        record["sessions"] = [*record["sessions"], {"wall_s": 1.5, "cpu_s": 2.0, "exit": self.code}]
        launch.write_record(folder / "training.json", record)
        return self.code

    def messages(self, last):
        for epoch in range(1, last + 1):
            yield "valid", json_line("valid", epoch, 10 * epoch, loss=self.losses[epoch])
            yield "train", json_line("train", epoch, 10 * epoch, loss=5.0 - epoch)


@pytest.fixture
def training(monkeypatch) -> Training:
    training = Training()
    monkeypatch.setattr(launch, "_train", training)
    monkeypatch.setattr(launch, "_check_program", lambda command: None)
    monkeypatch.setattr(machine, "git_revision", lambda: "r")
    monkeypatch.setattr(machine, "hardware", lambda: {"cpu": "c", "cores": 2, "threads": 1, "gpus": []})
    return training


@pytest.fixture
def call(tmp_path, training):
    """launch.run with the data tmp_path/bin."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/dict.txt").write_text("a 1\n")

    def run(*options: str, **request: object) -> launch.Outcome:
        words = ["fairseq-train", str(tmp_path / "bin"), "--arch", "lstm", *options]
        return launch.run(launch.TrainingRequest(tmp_path / "run", words, **request))

    return run


def result(tmp_path: Path) -> dict:
    return read_record(tmp_path / "run/result.json")


def test_a_run_leaves_its_record_and_its_result(tmp_path, call, training) -> None:
    training.code = 3
    assert (call("--max-epoch", "3").code, (tmp_path / "run/result.json").exists()) == (3, False)
    training.code = 0
    outcome = call("--max-epoch", "3", labels={"direction": "de-en"})
    assert (outcome.code, outcome.started) == (0, True)
    found = result(tmp_path)
    assert found["labels"] == {"direction": "de-en", "arch": "lstm", "init": "none", "seed": "1"}
    assert (found["best"]["epoch"], found["epochs"]["3"]["train_loss"]) == (2, 2.0)
    assert (found["time"]["cpu_s"], found["time"]["wall_s"]) == (4.0, 3.0)  # of both
    assert found["data"]["dict.txt"] == sha("a 1\n")
    assert f"--save-dir {tmp_path}/run/checkpoints" in found["command"]
    (tmp_path / "run/training.json").write_text('{"labels"')
    with pytest.raises(DataError, match=r"training\.json: not JSON"):
        call("--max-epoch", "3")


def test_the_same_call_again_does_nothing_and_more_epochs_go_on(tmp_path, call, training) -> None:
    file, report = tmp_path / "run/result.json", tmp_path / "run/checkpoints/embed_init.json"
    report.parent.mkdir(parents=True)
    report.write_text('{"slots": {}}')
    call("--max-epoch", "2")
    again = call("--max-epoch", "2")
    assert (again.started, training.calls) == (False, 1)
    assert "finished before" in again.notes[0]
    assert not call("--max-epoch", "1").started, "it has two"
    assert not call("--max-epoch", "2", "--num-workers", "3").started, "no reason to train"
    scored = {**result(tmp_path), "scores": {"bleu": {"score": 1.0, "signature": "s"}}}
    file.write_text(json.dumps(scored))
    report.unlink()
    call("--max-epoch", "2")
    assert (result(tmp_path)["scores"], result(tmp_path)["init"]) == (scored["scores"], {"slots": {}})
    file.unlink()  # killed before it was written
    assert not call("--max-epoch", "2").started
    assert result(tmp_path)["best"]["epoch"] == 2
    file.write_text(json.dumps(scored))
    assert call("--max-epoch", "3").started
    assert list(result(tmp_path)["epochs"]) == ["1", "2", "3"]
    assert result(tmp_path)["time"]["cpu_s"] == 4.0
    assert result(tmp_path)["scores"] == {}, "they were those of another model"


def test_without_a_checkpoint_the_command_may_be_repaired(tmp_path, call, training) -> None:
    training.code, training.saves = 1, False
    call("--lr", "0.1")
    training.code = 0
    assert call("--lr", "0.2").code == 0
    assert (tmp_path / "run/train.log").read_text().count("num. shared model params") == 1, "the log begins anew"
    assert result(tmp_path)["time"]["cpu_s"] == 2.0


@pytest.mark.parametrize(
    ("change", "ended"), [("options", False), ("options", True), ("data", True), ("vectors", False)]
)
def test_another_run_is_refused(tmp_path, call, training, ended, change) -> None:
    (tmp_path / "v.txt").write_text("a 1 2\n")
    vectors = ["--embed-init-path", f"encoder={tmp_path}/v.txt"]
    training.code = 0 if ended else 1
    call("--max-epoch", "2", *vectors)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    expected = {"options": "--lr was not given, is 0.2", "data": "dict.txt", "vectors": f"{tmp_path}/v.txt"}[change]
    if change != "options":
        (tmp_path / {"data": "bin/dict.txt", "vectors": "v.txt"}[change]).write_text("b 1\n")
    with pytest.raises((OptionError, DataError)) as error:
        call("--max-epoch", "3", *vectors, *(["--lr", "0.2"] if change == "options" else []))
    assert expected in str(error.value)
    assert "choose another folder" in str(error.value)
    assert {path: path.read_bytes() for path in before} == before
    assert training.calls == 1


def test_labels_and_metric_stay_unless_they_are_given_again(tmp_path, call) -> None:
    command = ["--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"]
    outcome = call(*command, labels={"a": "1", "b": "2"})
    assert (outcome.record["metric"], outcome.record["higher_is_better"]) == ("valid_bleu", True)
    assert outcome.record["best"] == {}
    assert "valid_bleu: not logged" in outcome.notes[0]
    assert "valid_loss" in outcome.notes[0]
    call(*command, metric="ppl", higher=True)
    call(*command, labels={"b": "3"})
    found = result(tmp_path)
    assert {key: found["labels"][key] for key in "ab"} == {"a": "1", "b": "3"}
    assert (found["metric"], found["higher_is_better"]) == ("valid_ppl", True)
    call(*command, metric="valid_loss")
    assert (result(tmp_path)["metric"], result(tmp_path)["best"]["valid_loss"]) == ("valid_loss", 4.0)


def test_the_last_checkpoint_of_max_update_is_the_end(tmp_path, call, training) -> None:
    """fairseq would do one update more if it were started again: it saves, and only then says that it is done."""
    training.code = 137
    call("--max-update", "10")
    with (tmp_path / "run/train.log").open("a") as log:
        log.write("... | Saved checkpoint x/checkpoint_last.pt (epoch 1 @ 10 updates, score 4.0) ...\n")
    assert not call("--max-update", "10").started
    assert result(tmp_path)["best"]["epoch"] == 1


def test_folders_of_earlier_versions_go_on(tmp_path, call, training) -> None:
    """training.json without sessions and times; a result whose log is gone."""
    call("--max-epoch", "2")
    old = {key: value for key, value in result(tmp_path).items() if key not in ("sessions", "times")}
    for name in ("training.json", "result.json"):
        (tmp_path / "run" / name).write_text(json.dumps(old))
    (tmp_path / "run/train.log").unlink()
    assert not call("--max-epoch", "2").started
    assert list(result(tmp_path)["epochs"]) == ["1", "2"]
    assert call("--max-epoch", "3").started
    assert result(tmp_path)["sessions"][0]["cpu_s"] is None
    assert "cpu_s" not in result(tmp_path)["time"], "the first session's is not known"


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["{}/a"], ["no command", "fairseq-train DATA"]),
        (["{}/a", "--", "python", "-x", "fairseq_cli.train"], ["python -x", "fairseq-train DATA"]),
        (["{}/a", "--", "fairseq-hydra-train", "x=y"], ["fairseq-hydra-train", "the same options to fairseq-train"]),
        (["{}/a", "--", "fairseq-train", "{}/none"], ["DATA {}/none", "fairseq-preprocess"]),
        (["{}/a", "--label", "x", "--", "fairseq-train", "{}/bin"], ["--label x", "KEY=VALUE"]),
        (["{}/a", "--", "no-such", "fairseq-train", "{}/bin"], ["no-such: no such program"]),
        (["{}/file", "--", "fairseq-train", "{}/bin"], ["{}/file: cannot be written", "another folder"]),
    ],
)
def test_wrong_calls_leave_nothing(tmp_path, refused, arguments, messages) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/dict.txt").touch()
    (tmp_path / "file").touch()
    message = refused("run", *(text.format(tmp_path) for text in arguments))
    assert all(text.format(tmp_path) in message for text in messages), message
    assert not (tmp_path / "a").exists()


def test_what_the_command_prints(tmp_path, call, shown, capsys) -> None:
    words = ["--", "fairseq-train", str(tmp_path / "bin"), "--max-epoch", "2"]
    assert "best valid_loss 3 bits at epoch 2 of 2" in shown("run", tmp_path / "run", "--label", "x=y", *words)
    assert main(["run", str(tmp_path / "run"), "--json", *words]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["labels"]["x"] == "y"
    assert "finished before" in captured.err


@pytest.fixture
def on_screen(capsys):
    def call(lines: list[str], verbose: bool = False, failed: bool = False) -> list[str]:
        """What stands on standard error after these lines of a log."""
        screen, reader = Screen(verbose), LogReader(Path("log"))
        for line in lines:
            reader.take(line)
            screen.show(line, reader)
        if failed:
            screen.show_last()
        return capsys.readouterr().err.splitlines()

    return call


def test_validations_warnings_our_own_records_and_failures_are_shown(on_screen) -> None:
    lines = [
        stamped("fairseq_cli.train", configuration(), 1),
        stamped("fairseq_cli.train", "LSTMModel(", 2),
        stamped("embinit_fairseq.hooks", "encoder  64 x 8  xavier", 3),
        "  coverage 100 %",
        stamped("train_inner", json.dumps({"epoch": 1, "update": 0.9, "loss": "5.0", "num_updates": "8"}), 4),
        stamped("fairseq.tasks", "no such word", 5).replace("INFO", "WARNING"),
        stamped("valid", json_line("valid", 1, 1250, loss=4.0, ppl=16, best_loss=4.0, wps=9), 6),
        stamped("train", json_line("train", 1, 1250, loss=5.0), 7),
    ]
    wanted = [lines[2], lines[3], lines[5], "epoch 1, update 1,250: valid_loss 4, valid_ppl 16"]
    assert on_screen(lines) == wanted
    assert on_screen(lines, verbose=True) == lines
    # why a training has failed
    record = stamped("fairseq_cli.train", "begin", 1)
    usage = ["usage: fairseq-train [-h]", "fairseq-train: error: unrecognized arguments: --x"]
    assert on_screen([record, *usage], failed=True) == usage[1:]
    traceback = ["Traceback (most recent call last):", "  File x", "ValueError: of something"]
    assert on_screen([record, *traceback], failed=True) == [record, *traceback]


def test_torch_is_asked_unless_the_answer_is_known(tmp_path, monkeypatch) -> None:
    """One thread and no device: a process that imports torch would only cost seconds."""
    answer = SimpleNamespace(stdout='a warning\n{"threads": 7, "gpus": ["G"]}\n')
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: answer)
    for threads, device in (("1", None), ("2", None), ("", None), ("1", "nvidia0")):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        monkeypatch.setattr(machine, "has_gpu_device", lambda device=device: device is not None)
        known = threads == "1" and device is None
        assert machine.hardware().items() >= {"threads": 1 if known else 7, "gpus": [] if known else ["G"]}.items()
    monkeypatch.undo()
    assert not machine.has_gpu_device(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert machine.has_gpu_device(tmp_path)


def test_times_of_validations_are_those_of_all_sessions() -> None:
    record = {"sessions": [{"wall_s": 10.0, "cpu_s": 7.0}, {"wall_s": 2.0, "cpu_s": 1.0}], "times": {"5": "earlier"}}
    log, timed = RunLog(validations={10: {}}), set()
    launch._note_validations(record, log, timed)
    record["sessions"][-1]["wall_s"] = 3.0
    log.validations[20] = {}
    launch._note_validations(record, log, timed)
    expected = {"5": "earlier", "10": {"wall_s": 12.0, "cpu_s": 8.0}, "20": {"wall_s": 13.0, "cpu_s": 8.0}}
    assert record["times"] == expected
    record["sessions"][0]["cpu_s"] = None
    launch._note_validations(record, RunLog(validations={30: {}}), timed)
    assert record["times"]["30"] == {"wall_s": 13.0, "cpu_s": None}
