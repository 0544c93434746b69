"""embinit grid: the list, what is done, shares, environments, jobs of submitit. The commands are a shell's own."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest

from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import OptionError
from embinit_fairseq.runs import grid_runner as grids
from embinit_fairseq.runs import jobs
from embinit_fairseq.runs.grid_runner import Grid, Outcome, read_lines, run_grid


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """Done, failed and left of these lines; the current folder is the test's."""
    monkeypatch.chdir(tmp_path)

    def call(commands: list[str], jobs: int | None = 1, **options):
        tasks = read_lines("\n".join(commands), Path("logs"))
        outcome = run_grid(Grid(tasks, Path("logs"), jobs, **options), lines.append)
        return outcome.done, outcome.failed, outcome.left

    lines: list[str] = []
    call.said = lines
    return call


def wait_for(path: object) -> str:
    """A command that ends when the file is there, or after a minute."""
    return f"for _ in {{1..600}}; do [[ ! -e {path} ]] || break; sleep 0.1; done"


def test_names_and_numbers() -> None:
    for text, expected in (
        ("# a comment\n\na.seed=1: echo x: y\n  echo b: c", [("a.seed=1", "echo x: y"), ("2", "echo b: c")]),
        ("a: echo x\u2028y\x85\r\nb: z\nB=1 echo d", [("a", "echo x\u2028y"), ("b", "z"), ("3", "B=1 echo d")]),
        (
            "a: x \\\r\n  --y 1\\\n\n  --z\\\n #2\n# no \\\nb: c \\\\\nd \\",
            [("a", "x   --y 1"), ("2", "--z #2"), ("b", r"c \\"), ("4", "d")],
        ),
    ):
        assert [(task.name, task.command) for task in read_lines(text)] == expected
    for text, remedy in (
        ("# x", "give one per line"),
        ("a: x\na: y", "a name of its own"),
        ("a/b: x", "name a/b, expected"),
    ):
        with pytest.raises(OptionError, match=remedy):
            read_lines(text)


def test_what_ended_well_is_not_run_again(grid) -> None:
    commands = ["a: echo a >> count", "b: echo b >> count; [[ -f there ]]", "c: echo c >> count"]
    assert grid(commands) == (["a", "c"], ["b"], [])
    Path("there").touch()
    commands[2] += " # changed"
    assert [sorted(names) for names in grid(commands)] == [["a", "b", "c"], [], []]
    assert Path("count").read_text().split() == list("abcbc")
    grid(commands, jobs=10**9, again=True)  # more than there can be
    assert sorted(Path("count").read_text().split()[5:]) == list("abc")


def test_a_failing_command_in_a_line_ends_the_line(grid) -> None:
    _, failed, _ = grid(["a: false; echo on", "b: false | cat", "c: echo $NOBODY"], jobs=3)
    assert set(failed) == {"a", "b", "c"}
    assert "on" not in Path("logs/a.log").read_text().splitlines()


def test_a_training_that_was_stopped_and_has_saved_is_continued_by_the_next_call(grid) -> None:
    commands = ["a: echo a >> count; [[ -f there ]] || exit 75", "b: echo b >> count"]
    assert grid(commands) == (["b"], [], ["a"])
    Path("there").touch()
    with Path("logs/a.log").open("ab") as log:
        assert jobs.lock(log)
        assert grid(commands) == (["b"], ["a"], []), "another call is running it"
    assert grid(commands) == (["b", "a"], [], [])
    assert Path("count").read_text().split() == list("aba")


def test_every_line_belongs_to_one_worker() -> None:
    tasks = read_lines("".join(f"n{at}: true\n" for at in range(7)))
    shares = [Grid(tasks, Path("logs"), share=(k, 3)).chosen for k in (1, 2, 3)]
    assert [len(share) for share in shares] == [3, 2, 2]
    assert sorted((task for share in shares for task in share), key=lambda task: task.name) == tasks


@pytest.mark.parametrize("saves", [True, False])
def test_time_is_up(grid, saves, monkeypatch) -> None:
    """What a command has started may save before it ends, for some time."""
    monkeypatch.setattr(jobs, "_PATIENCE", 60.0 if saves else 0.5)
    action = "sleep 0.5; touch saved" if saves else ""
    inner = f"trap '{action}' TERM; touch begun; while [[ ! -e saved ]]; do sleep 0.1; done"
    assert grid([f'long: bash -c "{inner}"; true', "next: true"], minutes=1 / 30) == ([], [], ["long", "next"])
    assert Path("begun").exists()
    assert Path("saved").exists() == saves
    with Path("logs/long.log").open("ab") as log:
        assert jobs.lock(log), "nothing of it is left"


def test_gpus_and_cores_are_divided(grid, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(grids, "cores", lambda: 6)
    command = "echo gpu=$CUDA_VISIBLE_DEVICES threads=$OMP_NUM_THREADS; touch"
    grid([f"a: {command} a; {wait_for('b')}", f"b: {command} b; {wait_for('a')}"], jobs=None)  # one per GPU
    seen = sorted(Path(f"logs/{name}.log").read_text().splitlines()[-1] for name in "ab")
    assert seen == ["gpu=4 threads=3", "gpu=7 threads=3"]
    assert jobs.visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []


def test_progress_says_how_many_how_long_and_where_each_is(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(grids.time, "monotonic", lambda: 1000.0)
    begun = [jobs.Task(name, "true", tmp_path, since=since) for name, since in zip("abc", (940.0, 1000.0, None))]
    begun[0].log.write_text("$ train\nepoch 3: valid_loss 4.1\r\n\n")
    text = grids._progress(Outcome(["x", "y", "z"], ["w"], []), begun, 2, [100.0, 140.0])
    # 120 s per command: two that run have 60 and 120 left, three have not begun
    assert text.splitlines() == [
        "3 of 9 done, 1 failed, 2 running, about 4 min left",
        "  a: epoch 3: valid_loss 4.1",
        "  b: ",
    ]
    assert "about 3.1 h left" in grids._progress(Outcome(["x"]), begun, 2, [4500.0])
    assert grids._progress(Outcome(), begun[2:], 0, []) == "0 of 1 done"


def test_jobs_of_submitit_are_requeued_and_continued(grid, monkeypatch) -> None:
    """A job that its cluster stops is requeued; one that is killed is run by the next call."""
    submitit = pytest.importorskip("submitit")
    monkeypatch.setenv("SUBMITIT_PREEMPT_SIGNAL", "USR1")
    monkeypatch.setattr(submitit.Job, "_results_timeout_s", 0)
    first = "echo {0} >> count; if [[ ! -e {0} ]]; then touch {0}"
    commands = [
        f"stopped: {first.format('s')}; (sleep 1; kill -USR1 $PPID) & sleep 60; fi",
        f"killed: {first.format('k')}; kill -KILL $PPID; exit 3; fi",
        "fails: exit 4",
    ]
    done, failed, left = grid(commands, jobs=3, cluster="local")
    assert (done, failed, left) == (["stopped"], ["fails"], ["killed"])
    assert sorted(Path("count").read_text().split()) == list("kss")
    assert grid.said[-1] == "1 of 3 done, 1 failed"
    assert grid([*commands[:2], "fails: true"], cluster="debug") == (["stopped", "killed", "fails"], [], [])
    assert Path("count").read_text().split().count("s") == 2, "it was done"


def fake(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_slurm_has_one_array_with_limits_and_the_signal_that_saves(grid, tmp_path, monkeypatch) -> None:
    submitit = pytest.importorskip("submitit")
    monkeypatch.setattr(submitit.Job, "_results_timeout_s", 0)
    monkeypatch.setattr(submitit.slurm.slurm.SlurmJobEnvironment, "USR_SIG", "USR1")
    options = {"time": "720", "gpus-per-node": "2", "reservation": "mine"}
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path))  # without the Slurm that this machine may have
    with pytest.raises(OptionError, match="srun"):
        grid(["a: true"], None, cluster="slurm", sbatch=options)
    monkeypatch.setenv("PATH", f"{tmp_path}:{path}")
    fake(tmp_path, "srun", "exit 1")
    fake(tmp_path, "sbatch", f"cp $1 {tmp_path}/script; echo Submitted batch job 12")
    fake(tmp_path, "sacct", "echo 'JobID|State|NodeList'; echo '12_0|NODE_FAIL|n'; echo '12_1|TIMEOUT|n'")
    fake(tmp_path, "scancel", f"echo $@ >> {tmp_path}/cancelled")
    assert grid(["a: true", "b: true"], 7, cluster="slurm", sbatch=options) == ([], [], ["a", "b"])
    script = Path("script").read_text()
    for line in ("array=0-1%2", "time=720", "signal=USR1@120", "gpus-per-node=2", "reservation=mine"):
        assert f"#SBATCH --{line}\n" in script
    for given, remedy in (({}, "time=720"), ({"time": "3"}, "time=3: .* give 4")):
        with pytest.raises(OptionError, match=remedy):
            grid(["a: true"], cluster="slurm", sbatch=given)
    fake(tmp_path, "sbatch", "echo no such partition >&2; exit 1")
    with pytest.raises(OptionError, match="no such partition"):
        grid(["c: true"], cluster="slurm", sbatch=options)


def test_the_command(tmp_path, capsys, shown, refused, monkeypatch) -> None:
    logs, file = tmp_path / "logs", tmp_path / "list"
    file.write_text("good: true\nbad: echo why; exit 3\n")
    assert shown("grid", file, "--logs", logs, "--print") == "true\necho why; exit 3\n"
    assert main(["grid", str(file), "--logs", str(logs)]) == 1
    error = capsys.readouterr().err
    assert "bad: failed with exit status 3" in error
    assert "bad.log, which ends: why" in error
    assert "1 of 2 done, 1 failed" in error
    assert f"failed: bad; see {logs}" in error
    assert "absent" in refused("grid", tmp_path / "absent", "--logs", logs)
    for option in ("--jobs 0", "--minutes -1", "--worker 3/2", "--worker 2", "--worker ²/3", "--sbatch time"):
        assert option in refused("grid", file, "--logs", logs, *option.split())
    given = "a: echo \u2028é\n".encode("utf-8-sig")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given), "ascii"))  # whatever the locale
    assert shown("grid", "-", "--logs", logs, "--print") == "echo \u2028é\n"
    file.write_bytes(b"a: true\nb: \xe9\n")
    assert re.search(f"{file}:2: .*iconv", refused("grid", file, "--logs", logs))
    file.write_text("a: exit 75\n")
    assert main(["grid", str(file), "--logs", str(logs)]) == 1
    assert "1 command not finished: the same call continues" in capsys.readouterr().err
