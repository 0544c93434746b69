"""embinit run: commands, folders, records; a function that writes a log and a checkpoint replaces the training."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from run_folders import json_line, write_log

from embinit_fairseq.cli.main import main
from embinit_fairseq.cli.run import _Screen
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.runs import run_folder
from embinit_fairseq.runs import training as launch
from embinit_fairseq.runs.command import DATA, data_hashes, differences, labels_of, parse_command
from embinit_fairseq.runs.log import RunLog
from embinit_fairseq.runs.record import read_record
from embinit_fairseq.vocab.preparation_record import record_preparation, records_of_data

TRAIN = "fairseq-train bin --arch lstm --lr 0.1 --adam-betas (0.9,0.98) --fp16 --clip-norm -0.5 --max-epoch 2"


def command(text: str):
    return parse_command(text.split())


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_options_and_their_values_behind_any_launcher() -> None:
    text = "--lr 0.1 -s de --adam-betas=(0.9) --fp16 --clip-norm -0.5 --max-sentences 8 --lr 1"
    expected = {DATA: ("bin",), "--lr": ("1",), "--source-lang": ("de",), "--adam-betas": ("(0.9)",), "--fp16": ()}
    expected |= {"--clip-norm": ("-0.5",), "--batch-size": ("8",)}  # of --lr the last counts, as for argparse
    text += " --embed-init-path encoder=A --embed-init-path=decoder=B"
    expected |= {"--embed-init-path": ("encoder=A", "decoder=B")}  # all count, as for the plugin
    for start in (
        "/opt/venv/bin/fairseq-train",
        "python /src/fairseq_cli/train.py",
        "torchrun --standalone --nproc-per-node 2 --no-python fairseq-train",
        "env OMP_NUM_THREADS=2 srun --gpus-per-task 1 python3 -m fairseq_cli.train",
    ):
        found = command(f"{start} bin {text}")
        assert (found.words[: found.at], found.options) == (tuple(start.split()), expected)


def test_differences_save_dir_and_labels() -> None:
    new = "fairseq-train other --user-dir there --arch lstm --lr 0.2 --adam-betas (0.9,0.98) --clip-norm -0.5 --seed 3"
    expected = ["--lr was 0.1, is 0.2", "--fp16 was given, is not given", "--seed was not given, is 3"]
    assert differences(command(TRAIN), command(new)) == expected
    assert differences(command(TRAIN), command(f"{TRAIN} --log-interval 3 --max-epoch 9")) == []
    assert command(TRAIN).for_run(Path("x")).words[-4:] == ("--save-dir", "x", "--log-format", "json")
    same = command(f"{TRAIN} --save-dir x/ --log-format json")
    assert same.for_run(Path("x")) == same
    with pytest.raises(OptionError, match="--save-dir x/"):
        same.for_run(Path("y"))
    found = labels_of(command(f"{TRAIN} --embed-init xavier --seed 3"), {"arch": "mine", "x": "y"})
    assert found == {"arch": "mine", "x": "y", "init": "xavier", "seed": "3"}
    found = labels_of(command(f"{TRAIN} --embed-init shuffled --embed-init-std xavier"), {})
    assert found["init"] == "shuffled, std xavier"  # the control, and not the raw one


def test_hashes_of_data_and_vectors(tmp_path) -> None:
    files = {"dict.de.txt": "a 1\n", "input0/train.bin": "b", "label/dict.txt": "c"}
    for name, text in {**files, "preprocess.log": "d", "raw/train.de": "x", "hf/config.json": "{}"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    expected = {name: sha(text) for name, text in files.items()}
    assert data_hashes([tmp_path]) == {"all": sha("".join(f"{n} {v}\n" for n, v in expected.items())), **expected}
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: has no files"):
        data_hashes([tmp_path / "empty"])
    (tmp_path / "linked").mkdir()
    for name in ("input0", "label"):  # on another disk
        (tmp_path / "linked" / name).symlink_to(tmp_path / name)
    assert list(data_hashes([tmp_path / "linked"])) == ["all", "input0/train.bin", "label/dict.txt"]
    several = [tmp_path / "label", tmp_path / "input0"]
    names = [f"{tmp_path.as_posix()}/{name}" for name in ("label/dict.txt", "input0/train.bin")]
    assert list(data_hashes(several).items())[1:] == [(names[0], sha("c")), (names[1], sha("b"))]
    words = ["fairseq-train", "--user-dir", f"{tmp_path}/hf", "--fp16", f"{tmp_path}/raw"]
    assert parse_command([*words, f"{tmp_path}/label"]).data() == [tmp_path / "label"]  # the one with a dictionary
    vectors, folder = f"{tmp_path}/dict.de.txt", f"{tmp_path}/hf"
    paths = [f"encoder=concat-l2:glove={vectors},nowhere", f"decoder={folder}", "encoder_p=nowhere"]
    hashes = {vectors: sha("a 1\n"), folder: sha(f"config.json {sha('{}')}\n")}
    assert parse_command(["fairseq-train", "bin", "--embed-init-path", *paths]).vector_hashes() == hashes


class Training:
    """In place of `launch._train`: epochs up to --max-epoch, 10 updates and a second of two processors each."""

    def __init__(self) -> None:
        self.calls, self.code, self.losses, self.saves = 0, 0, {1: 4.0, 2: 3.0, 3: 3.5}, True

    def __call__(self, folder, given, program, record, log_file, watch) -> int:
        self.calls, self.given = self.calls + 1, given
        lines = write_log(folder / "one", self.messages(int(given.option("--max-epoch", "1")))).read_text()
        (folder / "one").unlink()
        log_file.write((lines if not self.code else lines.replace("done training", "no")).encode())
        log_file.flush()
        if self.saves:
            (folder / "checkpoints").mkdir(exist_ok=True)
            (folder / "checkpoints/checkpoint_last.pt").touch()
        record["sessions"] = [*record["sessions"], {"wall_s": 1.5, "cpu_s": 2.0, "exit": self.code}]
        launch.write_json(folder / "training.json", record)
        return self.code

    def messages(self, last):
        for epoch in range(1, last + 1):
            yield "valid", json_line("valid", epoch, 10 * epoch, loss=self.losses[epoch])
            yield "train", json_line("train", epoch, 10 * epoch, loss=5.0 - epoch)


@pytest.fixture
def training(monkeypatch) -> Training:
    training = Training()
    monkeypatch.setattr(launch, "_train", training)
    monkeypatch.setattr(launch.shutil, "which", lambda name, path: name)
    monkeypatch.setattr(launch, "versions", lambda: {"revision": "r"})
    monkeypatch.setattr(launch, "hardware", lambda: {"cpu": "c", "cores": 2, "threads": 1, "gpus": []})
    return training


@pytest.fixture
def call(tmp_path, training):
    """launch.run with the data tmp_path/bin."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/dict.txt").write_text("a 1\n")

    def run(*options: str, **request: object) -> launch.Outcome:
        words = ["fairseq-train", str(tmp_path / "bin"), "--arch", "lstm", *options]
        return launch.run(tmp_path / "run", words, **request)

    return run


def result(tmp_path: Path) -> dict:
    return read_record(tmp_path / "run/result.json")


def test_a_run_leaves_its_record_and_its_result(tmp_path, call, training, monkeypatch) -> None:
    training.code = 3
    assert (call("--max-epoch", "3").code, (tmp_path / "run/result.json").exists()) == (3, False)
    with monkeypatch.context() as patch:
        patch.setattr(launch, "_train", lambda *_: 0)
        assert call("--max-epoch", "3").code == 1, "its log does not say that training is done"
    training.code = 0
    outcome = call("--max-epoch", "3", labels={"direction": "de-en"})
    found = result(tmp_path)
    assert (outcome.code, outcome.started, found["data"]["dict.txt"]) == (0, True, sha("a 1\n"))
    assert found["labels"] == {"direction": "de-en", "arch": "lstm", "init": "none", "seed": "1"}
    assert (found["best"]["epoch"], found["epochs"]["3"]["train_loss"]) == (2, 2.0)
    assert (found["time"]["cpu_s"], found["time"]["wall_s"]) == (4.0, 3.0)  # of both


def test_the_same_call_again_does_nothing_and_more_epochs_go_on(tmp_path, call, training) -> None:
    file = tmp_path / "run/result.json"
    call("--max-epoch", "2", labels={"direction": "de-en"})
    again = call("--max-epoch", "2")
    assert (again.started, training.calls) == (False, 1)
    assert "finished before" in again.notes[0]
    assert not call("--max-epoch", "1").started, "it has two"
    assert not call("--max-epoch", "2", "--patience", "9").started, "no epoch is missing"
    assert not call("--max-epoch", "2", "--num-workers", "3").started, "no reason to train"
    scored = {**result(tmp_path), "scores": {"bleu": {"score": 1.0, "signature": "s"}}}
    file.write_text(json.dumps(scored))
    call("--max-epoch", "2")
    assert result(tmp_path)["scores"] == scored["scores"]
    file.unlink()  # killed before it was written
    assert not call("--max-epoch", "2").started
    assert result(tmp_path)["best"]["epoch"] == 2
    file.write_text(json.dumps(scored))
    texts = [tmp_path / "run" / f"test.{name}.text" for name in ("hypothesis", "reference")]
    for path in texts:
        path.write_text("a\n")
    assert call("--max-epoch", "3", labels={"size": "small"}).started
    assert not any(path.exists() for path in texts)
    assert list(result(tmp_path)["epochs"]) == ["1", "2", "3"]
    assert (result(tmp_path)["time"]["cpu_s"], result(tmp_path)["scores"]) == (4.0, {})  # scores were another model's
    assert result(tmp_path)["labels"].items() >= {"direction": "de-en", "size": "small"}.items()
    old, new = command(TRAIN), command(f"{TRAIN} --max-update 20")
    assert "--max-update 20" in str(
        run_folder.reached(old, new, RunLog(saved_updates=20))
    )  # killed after its last save
    assert run_folder.reached(old, new, RunLog(saved_updates=19)) is None


def test_scores_of_a_replaced_model_are_dropped_also_if_the_call_that_trained_was_killed(
    tmp_path, call, training, monkeypatch
) -> None:
    call("--max-epoch", "2")
    (tmp_path / "run/result.json").write_text(json.dumps({**result(tmp_path), "scores": {"bleu": {"score": 1.0}}}))
    texts = tmp_path / "run/test.hypothesis.text"
    texts.write_text("a\n")
    with monkeypatch.context() as patch:
        patch.setattr(launch, "_finish", lambda *_, **__: None)  # killed, while the training itself goes on to its end
        call("--max-epoch", "3")
    assert not call("--max-epoch", "3").started
    assert (list(result(tmp_path)["epochs"]), result(tmp_path)["scores"]) == (["1", "2", "3"], {})
    assert not texts.exists()


def test_a_training_that_was_stopped_and_has_saved_is_continued(tmp_path, call, training, capsys) -> None:
    training.code = 75
    words = [str(tmp_path / "run"), "--", "fairseq-train", str(tmp_path / "bin"), "--arch", "lstm", "--max-epoch", "2"]
    assert main(["run", *words]) == 75
    said = capsys.readouterr().err
    assert "the same call continues" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run/result.json").exists()
    training.code = 0
    assert main(["run", *words]) == 0
    assert (training.calls, result(tmp_path)["best"]["epoch"]) == (2, 2)


def test_all_sessions_of_a_folder_are_one_run_of_weights_and_biases(tmp_path, call, training, monkeypatch) -> None:
    """Another folder, and a training that starts again, are other runs."""
    for name in ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_DIR", "WANDB_NAME"):
        monkeypatch.delenv(name, raising=False)
    seen = []

    def train(folder, given, program, record, *rest) -> int:
        seen.append(launch._wandb_variables(folder, given, record))
        return training(folder, given, program, record, *rest)

    monkeypatch.setattr(launch, "_train", train)
    for saves, code, options in ((False, 1, []), (True, 1, []), (True, 0, ["--max-epoch", "2"])):
        training.saves, training.code = saves, code
        call("--wandb-project", "p", *options)
    call("--max-epoch", "3")
    failed, first, continued, without = seen
    assert failed["WANDB_RUN_ID"] != first["WANDB_RUN_ID"]
    here = {"WANDB_RESUME": "allow", "WANDB_DIR": str(tmp_path / "run"), "WANDB_NAME": "run"}
    assert first == continued == {"WANDB_RUN_ID": result(tmp_path)["wandb_run_id"], **here}
    assert without == {}
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    own = launch._wandb_variables(Path("x"), command("fairseq-train bin --wandb-project p"), {})
    assert (own["WANDB_RUN_ID"], own["WANDB_NAME"]) == ("mine", "x")


def test_warnings_and_the_plugins_records_are_shown_and_what_its_option_needs(capsys) -> None:
    log, screen = RunLog(), _Screen(verbose=False)
    places = ("INFO | fairseq.trainer", "WARNING | fairseq.trainer", "INFO | xembinit", "INFO | embinit_fairseq.fill")
    lines = [f"2024-01-01 10:00:00 | {place} | look here" for place in places]
    for line in lines:
        log.take(line)
        screen.show(line, log)
    assert capsys.readouterr().err.splitlines() == lines[1::2]
    for option, has_plugin, needed in (
        ("--embed-init xavier", False, True),
        ("--embed-init-paths a", True, False),
        ("--nobody-knows", False, False),
    ):
        screen.tail = ["  --lr LR", f"fairseq-train: error: unrecognized arguments: {option}"]
        said = screen.show_last(has_plugin)
        assert said.startswith(screen.tail[-1])
        assert ("--user-dir" in said) == needed
        assert capsys.readouterr().err == ""
    line = "2024-01-01 10:00:00 | ERROR | fairseq_compat.fixes.saved_stops | job 7: its limit"
    log.take(line)
    screen.show(line, log)
    assert (screen.show_last(True), capsys.readouterr().err) == ("job 7: its limit; ", f"{line}\n")
    screen.tail = ["Traceback", f"RuntimeError: {'x' * 300}"]
    assert (screen.show_last(True), capsys.readouterr().err) == (f"{screen.tail[-1]}; ", "Traceback\n")  # said once


def test_the_cause_of_a_failed_torchrun_is_that_of_its_process(capsys) -> None:
    log, screen = RunLog(), _Screen(verbose=False)
    head = "1129 01:29:48.891000 4505 torch/distributed/elastic/multiprocessing/api.py"
    for line in (
        "RuntimeError: the cause",
        f"W{head}:908] Sending process 4598 closing signal SIGTERM",
        f"E{head}:1002] failed (exitcode: 1) local_rank: 0 (pid: 4597) of binary: python",
        "Traceback (most recent call last):",
        "=" * 60,
    ):
        log.take(line)
        screen.show(line, log)
    assert (screen.show_last(True), capsys.readouterr().err) == ("RuntimeError: the cause; ", "")


def test_without_a_checkpoint_the_command_may_be_repaired(tmp_path, call, training) -> None:
    training.code, training.saves = 1, False
    call("--lr", "0.1")
    training.code = 0
    assert call("--lr", "0.2").code == 0
    assert (tmp_path / "run/train.log").read_text().count("num. shared model params") == 1, "the log begins again"


def test_without_the_last_checkpoint_a_run_is_not_begun_again(tmp_path, call, training) -> None:
    training.saves = False
    call("--max-epoch", "1", "--no-save")
    run, checkpoints = tmp_path / "run", tmp_path / "run/checkpoints"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert not call("--max-epoch", "1", "--no-save").started, "it is finished"
    with pytest.raises(DataError, match=r"checkpoint_last\.pt: missing.*; choose another folder"):
        call("--max-epoch", "2", "--no-save")
    checkpoints.mkdir()
    (checkpoints / "checkpoint1.pt").touch()
    with pytest.raises(DataError, match=r"copy checkpoint1\.pt to this name.*or choose another folder"):
        call("--max-epoch", "2", "--no-save")
    assert {path: path.read_bytes() for path in before} == before
    (checkpoints / "checkpoint1.pt").rename(checkpoints / "checkpoint_last-shard0.pt")
    assert call("--max-epoch", "2", "--no-save").started


def test_a_run_that_began_with_another_checkpoint_is_continued(tmp_path, call, training) -> None:
    words = []
    resets = "--reset-optimizer --restore-file=other.pt --reset-meters --reset-dataloader --reset-lr-scheduler".split()
    for epochs in ("1", "2"):
        call("--restore-file", "first.pt", "--max-epoch", epochs, *resets)
        words.append(training.given.words)
    assert {"first.pt", *resets} <= set(words[0])
    data, save = [str(tmp_path / "bin"), "--arch", "lstm", "--max-epoch", "2"], str(tmp_path / "run/checkpoints")
    assert words[1] == ("fairseq-train", *data, "--save-dir", save, "--log-format", "json")
    assert "--restore-file first.pt" in json.loads((tmp_path / "run/training.json").read_text())["command"]


def test_a_run_whose_files_are_missing_or_damaged(tmp_path, call, training) -> None:
    call("--max-epoch", "2")
    run, record = tmp_path / "run", (tmp_path / "run/training.json").read_text()
    log = (run / "train.log").read_bytes()
    (run / "train.log").unlink()
    for epochs in ("2", "1"):
        assert not call("--max-epoch", epochs).started, "its result says that it is finished, with two epochs"
    (run / "train.log").write_bytes(log)
    for content, error in (("{", "training.json: not JSON"), ('{"labels": {}}', "command is missing")):
        (run / "training.json").write_text(content)
        with pytest.raises(DataError, match=error):
            call("--max-epoch", "3")
    for name in ("training.json", "result.json"):
        (run / name).unlink()
    with pytest.raises(DataError, match=r"run: has checkpoints .*choose another folder"):
        call("--max-epoch", "2")
    assert ((run / "train.log").read_bytes(), training.calls) == (log, 1)
    (run / "training.json").write_text(record)
    assert not call("--max-epoch", "2").started, "its log says that it is finished"


def test_an_earlier_record_without_sessions_goes_on(tmp_path, call, training) -> None:
    call("--max-epoch", "1")
    file = tmp_path / "run/training.json"
    new = ("sessions", "times", "data", "vector_files")
    before = {key: value for key, value in json.loads(file.read_text()).items() if key not in new}
    file.write_text(json.dumps({**before, "times": {"10": {"wall_s": 7.5, "cpu_s": 3.0}}}))
    assert call("--max-epoch", "2").code == 0
    assert result(tmp_path)["times"] == {"10": {"wall_s": 7.5, "cpu_s": 3.0}, "20": {"wall_s": 8.0, "cpu_s": None}}
    assert "cpu_s" not in result(tmp_path)["time"], "the first session did not say it"


@pytest.mark.parametrize("name", ["train.log", "thesis.tex", "other/x"])
def test_a_folder_of_something_else_is_left_alone(tmp_path, call, training, name) -> None:
    file = tmp_path / "run" / name
    file.parent.mkdir(parents=True)
    file.touch()
    (tmp_path / "run/settings").touch()  # of a recipe
    assert call().started
    shutil.rmtree(tmp_path / "run")
    file.parent.mkdir(parents=True)
    file.write_text("years of work")
    with pytest.raises(DataError, match=rf"has {file.relative_to(tmp_path / 'run').parts[0]}.*name another folder"):
        call()
    assert [path for path in (tmp_path / "run").rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "years of work"
    file.unlink()
    file = tmp_path / "run/checkpoints/checkpoint1.pt"  # of fairseq-train alone
    file.parent.mkdir(exist_ok=True)
    file.touch()
    with pytest.raises(DataError, match="no record of how they were made"):
        call()
    assert [path for path in (tmp_path / "run").rglob("*") if path.is_file()] == [file]


@pytest.mark.parametrize(("change", "ended"), [("options", True), ("data", True), ("gone", True), ("vectors", False)])
def test_another_run_is_refused(tmp_path, call, training, ended, change) -> None:
    (tmp_path / "v.txt").write_text("a 1 2\n")
    vectors = ["--embed-init-path", f"encoder={tmp_path}/v.txt"]
    (tmp_path / "bin/train.bin").touch()
    training.code = 0 if ended else 1
    call("--max-epoch", "2", *vectors)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    expected = {"options": "--lr was not given, is 0.2", "data": "dict.txt", "vectors": f"{tmp_path}/v.txt"}
    if change == "gone":
        (tmp_path / "bin/train.bin").unlink()
    elif change != "options":
        (tmp_path / {"data": "bin/dict.txt", "vectors": "v.txt"}[change]).write_text("b 1\n")
    with pytest.raises((OptionError, DataError)) as error:
        call("--max-epoch", "3", *vectors, *(["--lr", "0.2"] if change == "options" else []))
    assert expected.get(change, "DATA") in str(error.value)
    assert "choose another folder" in str(error.value)
    assert {path: path.read_bytes() for path in before} == before
    assert training.calls == 1
    if change == "vectors":  # also after a call without the file
        (tmp_path / "v.txt").unlink()
        call("--max-epoch", "3", *vectors)
        (tmp_path / "v.txt").write_text("b 1\n")
        with pytest.raises(DataError, match=r"v\.txt has changed"):
            call("--max-epoch", "3", *vectors)


def test_a_metric_that_no_validation_has_is_replaced_or_computed(tmp_path, call, training) -> None:
    """As the error about it says. Nothing else may change, and once there is a value, neither may the metric."""
    chosen = ["--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"]
    training.code = 1
    call(*chosen)
    with pytest.raises(OptionError, match="--lr was not given"):
        call("--lr", "0.2")
    with pytest.raises(OptionError, match="add --maximize-best-checkpoint-metric"):
        call("--best-checkpoint-metric", "accuracy")
    training.code = 0
    call(*chosen, "--eval-bleu", "--max-epoch", "2")
    call("--best-checkpoint-metric", "loss", "--max-epoch", "3")
    assert (result(tmp_path)["metric"], result(tmp_path)["higher_is_better"]) == ("valid_loss", False)
    assert result(tmp_path)["best"]["epoch"] == 2
    with pytest.raises(OptionError, match="--best-checkpoint-metric was loss, is bleu"):
        call(*chosen, "--max-epoch", "3")


def test_wrong_calls_leave_nothing(tmp_path, refused) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/dict.txt").touch()
    for arguments, message in (
        ("{}/a", "fairseq-train DATA"),
        ("{}/a -- python -x fairseq_cli.train", "python -x"),
        ("{}/a -- fairseq-hydra-train x=y", "fairseq-train DATA"),
        ("{}/a -- fairseq-train {}/none", "DATA {}/none"),
        ("{}/a --label x -- fairseq-train {}/bin", "--label x"),
        ("{}/a --label =x -- fairseq-train {}/bin", "--label =x"),
        ("{}/a -- no-such fairseq-train {}/bin", "no-such: no such program"),
        ("{}/a -- SEED=1 fairseq-train {}/bin", "-- env SEED=1 fairseq-train"),
        ("{}/bin/dict.txt -- fairseq-train {}/bin", "{}/bin/dict.txt: cannot be written"),
        ("{}/a -- fairseq-train {}/bin --best-checkpoint-metric bleu", "add --maximize-best-checkpoint-metric"),
        ("{}/a -- fairseq-train {}/bin --maximize-best-checkpoint-metric", "leave out --maximize"),
        ("{}/a --metric bleu -- fairseq-train {}/bin", "--higher"),
    ):
        said = refused("run", *arguments.replace("{}", str(tmp_path)).split())
        assert message.replace("{}", str(tmp_path)) in said
    assert not (tmp_path / "a").exists()


def test_how_the_text_was_prepared_is_in_the_runs_folder(tmp_path, call, training) -> None:
    data = tmp_path / "bin"
    (data / "dict.de.txt").write_text("a 1\n")
    (data / "codes").write_text("#version: 0.2\na b\n")
    steps = [{"step": "lowercase"}, {"step": "bpe"}]
    written = record_preparation(data, {"dict.de.txt": steps}, {"codes": data / "codes"})["dict.de.txt"]
    before = (data / "preparation.json").read_text()
    call("--max-epoch", "1")
    copied = records_of_data([tmp_path / "run"])["dict.de.txt"]
    assert copied.is_same(written)
    assert Path(copied.path_of("codes")).resolve() == (data / "codes").resolve()
    assert json.loads(before)["versions"] == json.loads((tmp_path / "run/preparation.json").read_text())["versions"]
    call("--max-epoch", "2")
    record_preparation(data, {"dict.de.txt": steps[1:]}, {"codes": data / "codes"})
    with pytest.raises(DataError, match=r"by bpe as the data says, by lowercase,bpe .*choose another folder"):
        call("--max-epoch", "3")
    with pytest.raises(DataError, match="of one preparation"):
        records_of_data([tmp_path / "run", data])
    (data / "preparation.json").unlink()
    call("--max-epoch", "3")
    assert records_of_data([tmp_path / "run"])["dict.de.txt"].is_same(written), "the run knows what its data have lost"
