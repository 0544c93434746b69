"""scripts/textcls: which runs there are and how they are started, processes, tables."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import run_result
from textcls import pool, records, runs, table
from textcls.corpus import FileError

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
VECTORS = {name: runs.Vectors(name, Path(f"/{name}"), dim) for name, dim in (("a", 6), ("b", 25), ("c", 300))}


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["couples"], ["a+a", "a+b", "a+c", "b+b", "b+c", "c+c"]),
        (["b+a", "b+a", "mlp"], ["b+a", "mlp"]),
        (["transformer", "transformer:a", "tfidf_lr"], ["transformer", "transformer:a", "tfidf_lr"]),
    ],
)
def test_names_of_models(texts, expected):
    assert runs.list_models(texts, VECTORS) == expected


@pytest.mark.parametrize("name", ["a", "svm", "a+b+c", "transformer:", "transformer:d", "a+d", "mlp:a", "a+", ":a"])
def test_unknown_models_are_named(name):
    with pytest.raises(FileError, match=re.escape(f"--models {name}: ")):
        runs.list_models([name], VECTORS)


def test_couples_need_vectors():
    with pytest.raises(FileError, match="--models couples needs --vectors"):
        runs.list_models(["couples"], {})


def test_runs_are_listed_seed_by_seed_and_only_couples_have_an_attention():
    listed = runs.list_runs(["a+b", "transformer:a", "mlp"], ["softmax", "linear"], [3, 1])
    assert [run.name for run in listed] == [
        *("a+b.softmax.3", "a+b.linear.3", "transformer=a.3", "mlp.3"),
        *("a+b.softmax.1", "a+b.linear.1", "transformer=a.1", "mlp.1"),
    ]


def test_vectors_are_looked_at(tmp_path):
    path = tmp_path / "v.txt"
    path.write_text("one 1 2 3\ntwo 4 5 6\n")
    assert runs.parse_vectors([f"name={path}"])["name"] == runs.Vectors("name", path.resolve(), 3)
    (tmp_path / "empty").write_text("")
    (tmp_path / "dict").write_text("one 2\ntwo 1\n")
    for text, message in (
        (f"n={tmp_path}/missing", "no such file"),
        (f"n={tmp_path}/empty", "empty"),
        (f"n={tmp_path}/dict", "looks like a fairseq dictionary"),
        (str(path), "NAME=FILE is needed"),
        (f"a+b={path}", "NAME=FILE is needed"),
    ):
        with pytest.raises(FileError, match=f"--vectors {re.escape(text)}: .*{message}"):
            runs.parse_vectors([text])
    with pytest.raises(FileError, match="the name n occurs twice"):
        runs.parse_vectors([f"n={path}", f"n={path}"])


def value_of(command, flag):
    """The last one counts, as for argparse."""
    return command[len(command) - 1 - command[::-1].index(flag) + 1]


def test_commands_of_fairseq(tmp_path):
    prepared = runs.Prepared(tmp_path, {}, {"labels": 4, "longest": 900})
    training = runs.Training(200, 10, "1e-3", 64, ("--lr", "0.5"))
    command = runs.training_command(runs.Run("a+c", 7, "linear"), prepared, VECTORS, training, tmp_path / "run")
    expected = {
        "--arch": "duo_classifier",
        "--duo-attention": "linear",
        "--encoder-dim-s": "6",
        "--encoder-dim-p": "300",
        "--num-classes": "4",
        "--max-positions": "901",
        "--patience": "10",
        "--max-epoch": "200",
        "--seed": "7",
        "--batch-size": "64",
        "--optimizer": "adam",
        "--adam-betas": "(0.9, 0.98)",
        "--adam-eps": "1e-9",
        "--lr-scheduler": "fixed",
        "--lr": "0.5",
        "--save-dir": f"{tmp_path}/run/checkpoints",
    }
    assert {flag: value_of(command, flag) for flag in expected} == expected
    assert command[:2] == ["fairseq-train", f"{tmp_path}/seeds/7/bin"]
    at = command.index("--embed-init-path")
    assert command[at + 1 : at + 3] == ["encoder=/a", "encoder_p=/c"]
    command = runs.training_command(runs.Run("transformer:b", 1), prepared, VECTORS, training, tmp_path)
    assert value_of(command, "--encoder-embed-dim") == "25"
    assert value_of(command, "--encoder-attention-heads") == "5"
    assert value_of(command, "--embed-init-path") == "encoder=/b"
    assert "--embed-init" not in runs.training_command(runs.Run("transformer", 1), prepared, {}, training, tmp_path)


def test_defaults_of_a_training(monkeypatch):
    """Those of docs/duo_classifier.md."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which the import would leave behind
    from textcls import train

    monkeypatch.setattr(sys, "argv", ["train", "--data", "d", "--output", "o", "--models", "mlp"])
    args, _ = train.read_arguments()
    assert (args.epochs, args.patience, args.lr, args.batch) == (200, 10, "1e-3", 128)


def test_a_folder_that_was_not_prepared_is_named(tmp_path):
    with pytest.raises(FileError, match=f"--data {tmp_path}: not prepared; run prepare.sh"):
        runs.read_prepared(tmp_path)


JOBS = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from textcls.pool import Job, run_jobs
here = os.getpid()
def bad():
    print("first line")
    raise ValueError("the reason")
def silent():
    sys.exit(0)
def good():
    print("printed", file=sys.stderr)
    os.system("echo by another program")
    return f"another process: {os.getpid() != here}"
jobs = [Job(call.__name__, Path(sys.argv[2], f"{call.__name__}.log"), call) for call in (bad, silent, good)]
print(run_jobs(jobs, 2))
"""


def test_jobs_run_in_processes_of_their_own_and_failures_are_told(tmp_path):
    command = [sys.executable, "-c", JOBS, str(SCRIPTS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert sorted(eval(done.stdout)) == ["bad", "silent"]
    assert "good: another process: True" in done.stderr
    assert "bad: FAILED (ValueError: the reason)" in done.stderr
    assert f"silent: FAILED (see {tmp_path}/silent.log)" in done.stderr
    assert "[3/3]" in done.stderr
    assert set((tmp_path / "good.log").read_text().splitlines()) == {"printed", "by another program"}
    assert "first line" in (tmp_path / "bad.log").read_text()


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("ValueError: first\nat last\n\n", "at last"),
        (
            "a.FloatingPointError: nan\n\nDuring handling of it\n  next()\nStopIteration\n",
            "a.FloatingPointError: nan",
        ),
        ("  next()\nStopIteration\n", "StopIteration"),
        ("ValueError: one\nValueError: other\n", "ValueError: other"),
        ("\n", "see "),
    ],
)
def test_the_reason_of_a_failure_says_more_than_the_name_of_an_error(tmp_path, log, expected):
    (tmp_path / "log").write_text(log)
    assert pool.reason(tmp_path / "log") in (expected, f"{expected}{tmp_path}/log")


TURNS = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from textcls.corpus import FileError
from textcls.pool import Job, run_jobs
folder, seconds = Path(sys.argv[2]), float(sys.argv[3])
def call():
    print("begun by", sys.argv[4], flush=True)
    time.sleep(seconds)
    (folder / "result").write_text(sys.argv[4])
    return "done"
def finished():
    if (folder / "result").is_file() and sys.argv[4] == "stranger":
        raise FileError("a run of other options")
    return (folder / "result").is_file()
print(run_jobs([Job("job", folder / "log", call, finished)], 1))
"""


def start_turn(folder, seconds, name):
    command = [sys.executable, "-c", TURNS, str(SCRIPTS), str(folder), str(seconds), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path):
    for _ in range(400):
        if path.is_file() and path.read_text():
            return
        time.sleep(0.05)
    pytest.fail(f"no {path}")


@pytest.mark.parametrize("killed", [False, True])
def test_a_job_that_another_program_has_begun_is_waited_for(tmp_path, killed):
    first = start_turn(tmp_path / "run", 2, "first")
    wait_for(tmp_path / "run" / "log")
    if killed:  # its job lives on
        first.kill()
    others = [start_turn(tmp_path / "run", 0, name) for name in ("second", "stranger")]
    (second, said), (stranger, refused) = (process.communicate(timeout=60) for process in others)
    first.communicate(timeout=60)
    assert "job: waiting for another program that works in" in said
    assert "[1/1] job: done by another program" in said
    assert second == "[]\n"
    assert "job: FAILED (a run of other options)" in refused
    assert stranger == "['job']\n"
    assert (tmp_path / "run" / "result").read_text() == "first"
    assert (tmp_path / "run" / "log").read_text() == "begun by first\n"


def test_vectors_that_have_changed_are_named(tmp_path):
    paths = [tmp_path / "one", tmp_path / "other"]
    for path in paths:
        path.write_text("one 1 2\n")
    vectors = {name: runs.Vectors(name, path, 2) for name, path in zip("ab", paths)}
    record = {"vectors": records.vector_hashes(runs.Run("a+b", 1), vectors)}
    assert list(record["vectors"]) == ["a", "b"]
    assert records.vector_hashes(runs.Run("mlp", 1), vectors) == {}
    result = tmp_path / "run" / "result.json"
    records.check_vectors(result, record, vectors)
    records.check_vectors(result, record, {"a": runs.Vectors("a", paths[1], 2)})  # another place, the same vectors
    paths[1].write_text("one 1 3\n")
    with pytest.raises(FileError, match=f"--vectors b={paths[1]}: {tmp_path}/run holds .* has changed since"):
        records.check_vectors(result, record, vectors)
    records.check_vectors(result, {}, vectors)  # of an older version
    with pytest.raises(FileError, match=f"the file is another file than {paths[0]}"):
        records.check_vectors(result, record, {"a": runs.Vectors("a", paths[1], 2)})


def test_a_run_that_another_program_made_with_other_vectors_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which the import would leave behind
    from textcls import train

    monkeypatch.setattr(train, "_hash", lambda data: "of the data")
    (tmp_path / "v").write_text("one 1 2\n")
    prepared = runs.Prepared(tmp_path, {}, {"labels": 2, "longest": 5})
    vectors, run = {"v": runs.Vectors("v", tmp_path / "v", 2)}, runs.Run("v+v", 1, "softmax")
    grid = train.Grid(prepared, vectors, runs.Training(1, 1, "1", 1), tmp_path, keep_checkpoints=False)
    record = {"labels": {}, "command": shlex.join(grid.command(run)), "data": {"all": "of the data"}}
    grid.folder(run).mkdir()
    result = grid.folder(run) / "result.json"
    result.write_text(json.dumps({**record, "vectors": records.vector_hashes(run, vectors)}))
    assert grid.is_finished(run)
    (tmp_path / "v").write_text("one 1 3\n")
    with pytest.raises(FileError, match=r"--vectors v=.* has changed since"):
        grid.is_finished(run)
    result.write_text("{")
    with pytest.raises(FileError, match=r"result\.json: not JSON"):
        grid.is_finished(run)


def test_vectors_are_hashed_once_and_folders_by_their_files(tmp_path):
    run_result._sha256.cache_clear()
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "model" / name).write_text(name)
    first = records.sha256(tmp_path / "model")
    assert records.sha256(tmp_path / "model") == first
    assert run_result._sha256.cache_info().misses == 2
    (tmp_path / "model" / "model.safetensors").write_text("other")
    assert records.sha256(tmp_path / "model") != first
    assert run_result._sha256.cache_info().misses == 3


def test_no_more_jobs_run_at_a_time_than_allowed(tmp_path):
    def call():
        (tmp_path / f"{os.getpid()}.running").touch()
        seen = len(list(tmp_path.glob("*.running")))
        time.sleep(0.1)
        (tmp_path / f"{os.getpid()}.running").unlink()
        (tmp_path / f"{os.getpid()}.seen").write_text(str(seen))
        return ""

    jobs = [pool.Job(str(number), tmp_path / str(number) / "log", call) for number in range(7)]
    assert pool.run_jobs(jobs, 2) == []
    seen = [int(path.read_text()) for path in tmp_path.glob("*.seen")]
    assert len(seen) == 7
    assert max(seen) == 2


STOPPED = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from textcls.pool import Job, run_jobs
folder = Path(sys.argv[2])
def call():
    (folder / "started").touch()
    time.sleep(2)
    (folder / "survived").touch()
try:
    run_jobs([Job("one", folder / "one.log", call)] * 2, 1)
except KeyboardInterrupt:
    (folder / "interrupted").touch()
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopping_stops_what_runs(tmp_path, how):
    # what a shell starts in the background ignores Ctrl-C, and so would all that it starts
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(SCRIPTS), str(tmp_path)],
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    for _ in range(200):
        if (tmp_path / "started").exists():
            break
        time.sleep(0.05)
    os.killpg(process.pid, how) if how == signal.SIGINT else process.send_signal(how)
    assert process.wait(timeout=20) == 0
    time.sleep(2.2)
    assert {path.name for path in tmp_path.iterdir()} == {"started", "interrupted", "one.log"}


def result(folder, model, seed, accuracy, attention="", protocol="textgcn", dims=(50, 300), **more):
    names = model.split("+") if "+" in model else [model.partition(":")[2]]
    slots = {
        slot: {"dim": dim, "coverage_types": 0.25, "coverage_tokens": 0.5, "source": {"name": f"{name}.txt", "rows": 9}}
        for slot, dim, name in zip(("encoder", "encoder_p"), dims, names)
    }
    record = {
        "labels": {"task": "MR", "protocol": protocol, "model": model, "seed": str(seed), "words": "clean kim"},
        "parameters": {"all": 10_000, "trained": 1234},
        "best": {"epoch": 7, "valid_loss_nats": 0.5},
        "init": {"slots": slots} if names[0] else None,
        "scores": {"test_accuracy": accuracy},
        "time": {"wall_s": 8.0},
        "data": {"all": f"{seed}", "input0/test.bin": "0123456789abcdef0"},
        "hardware": {"cpu": "a processor", "cores": 2, "threads": 1, "gpus": []},
        "versions": {"fairseq": "0.12.2"},
    }
    if attention:
        record["labels"]["attention"] = attention
    path = folder / "runs" / protocol / f"{model}.{attention}.{seed}"
    path.mkdir(parents=True)
    (path / "training.json").write_text("{}")
    (path / "result.json").write_text(json.dumps({**record, **more}))


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """A function that makes the tables: their rows without the two lines of headings, and the text."""

    def make():
        monkeypatch.setattr(sys, "argv", ["table", f"--runs={tmp_path / 'runs'}", f"--output={tmp_path}"])
        table.main()
        text = (tmp_path / "results.md").read_text()
        parts = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
        return [[[c.strip() for c in line.split("|")[1:-1]] for line in part.splitlines()] for part in parts], text

    return make


def test_table_of_models_and_of_couples(tmp_path, tables):
    for seed, accuracy in ((1, 80.0), (2, 81.0), (3, 85.0)):
        result(tmp_path, "g+h", seed, accuracy, "softmax")
    result(tmp_path, "g+g", 1, 70.0, "softmax", dims=(50, 50))
    result(tmp_path, "h+h", 1, 75.0, "softmax", dims=(300, 300))
    result(tmp_path, "h+g", 1, 60.0, "linear", dims=(300, 50))
    result(tmp_path, "mlp", 1, 76.0)
    result(tmp_path, "transformer:h", 1, 65.0, dims=(300,))
    (models, softmax, linear, vectors), text = tables()
    assert [row[0] for row in models[2:]] == [
        "TF-IDF, MLP with 1,024 hidden units",
        "transformer, h",
        "Duo (softmax), g + h",
        "Duo (softmax), h + h",
        "Duo (softmax), g + g",
        "Duo (linear), h + g",
    ]
    deviation = statistics.stdev([80, 81, 85])
    assert models[4][1:] == ["3", "1,234", f"82.00 ± {deviation:.2f}", "0.500 ± 0.000", "7.0 ± 0.0", "8 ± 0.0"]
    assert softmax == [
        ["softmax (3 runs)", "g", "h"],
        ["---", "---:", "---:"],
        ["g", "70.00 (1)", f"82.00 ± {deviation:.2f}"],
        ["h", "-", "75.00 (1)"],
    ]
    assert linear[0] == ["linear (1 run)", "g", "h"]
    assert linear[2:] == [["g", "-", "60.00"], ["h", "-", "-"]]
    assert vectors[2:] == [["g", "g.txt", "9", "50", "25.0", "50.0"], ["h", "h.txt", "9", "300", "25.0", "50.0"]]
    assert "## MR, protocol textgcn: " in text
    assert "* seeds: 1, 2, 3\n" in text


def test_protocols_are_not_mixed(tmp_path, tables):
    result(tmp_path, "mlp", 1, 76.0)
    result(tmp_path, "mlp", 1, 66.0, protocol="inductive")
    (tmp_path / "runs" / "inductive" / "late").mkdir()
    (tmp_path / "runs" / "inductive" / "late" / "training.json").write_text("{}")
    (inductive, textgcn), text = tables()
    assert (inductive[2][3], textgcn[2][3]) == ("66.00", "76.00")
    assert text.index("protocol inductive: ") < text.index("protocol textgcn: ")
    assert "Not finished yet: inductive/late." in text
