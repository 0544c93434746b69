"""embinit grid: the list, what is done, shares, environments. What is started is a shell's own `echo` and `sleep`."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path

import pytest

from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import OptionError
from embinit_fairseq.runs import grid as grids
from embinit_fairseq.runs.grid import Grid, Line, default_share, read_lines, run_grid, visible_gpus


def lines(*commands: str) -> list[Line]:
    return read_lines("\n".join(commands))


def test_names_and_numbers() -> None:
    assert lines("# a comment", "", "a.seed=1: echo x: y", "  echo b: c", "B=1 echo d") == [
        Line("a.seed=1", "echo x: y"),
        Line("2", "echo b: c"),
        Line("3", "B=1 echo d"),
    ]


@pytest.mark.parametrize(("text", "remedy"), [("# x", "give one per line"), ("a: x\na: y", "a name of its own")])
def test_lists_that_cannot_be_run(text: str, remedy: str) -> None:
    with pytest.raises(OptionError, match=remedy):
        read_lines(text)


def test_what_ended_well_is_not_run_again(tmp_path: Path) -> None:
    count = tmp_path / "count"
    commands = [f"a: echo a >> {count}", f"b: echo b >> {count}; [[ -f {tmp_path}/there ]]", f"c: echo c >> {count}"]
    first = run_grid(Grid(lines(*commands), tmp_path / "logs", jobs=1))
    assert (first.done, first.failed, first.left) == (("a", "c"), ("b",), ())
    (tmp_path / "there").touch()
    commands[2] += " # changed"
    second = run_grid(Grid(lines(*commands), tmp_path / "logs", jobs=1))
    assert (second.done, second.failed) == (("a", "b", "c"), ())
    assert count.read_text().split() == list("abcbc")
    run_grid(Grid(lines(*commands), tmp_path / "logs", jobs=2, again=True))
    assert sorted(count.read_text().split()[5:]) == list("abc")


def test_a_failing_command_in_a_line_ends_the_line(tmp_path: Path) -> None:
    outcome = run_grid(Grid(lines("a: false; echo on", "b: false | cat", "c: echo $NOBODY"), tmp_path, jobs=3))
    assert set(outcome.failed) == {"a", "b", "c"}
    assert "on" not in (tmp_path / "a.log").read_text().splitlines()


def test_every_line_belongs_to_one_worker(tmp_path: Path) -> None:
    of = lines(*(f"n{i}: true" for i in range(7)))
    shares = [run_grid(Grid(of, tmp_path / str(k), jobs=2, share=(k, 3))).done for k in (1, 2, 3)]
    assert sorted(name for share in shares for name in share) == [line.name for line in of]


def test_time_is_up(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    of = lines(f"long: echo $$ > {pid}; sleep 60 & wait", "next: true")
    started = time.monotonic()
    outcome = run_grid(Grid(of, tmp_path / "logs", jobs=1, minutes=1 / 60))
    assert time.monotonic() - started < 20
    assert (outcome.done, outcome.left) == ((), ("long", "next"))
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()


def test_two_calls_share_no_line(tmp_path: Path) -> None:
    of = lines(f"a: touch {tmp_path}/begun; while [[ ! -f {tmp_path}/end ]]; do sleep 0.05; done")
    first = []
    thread = threading.Thread(target=lambda: first.append(run_grid(Grid(of, tmp_path / "logs", jobs=1))))
    thread.start()
    while not (tmp_path / "begun").exists():
        time.sleep(0.02)
    second = run_grid(Grid(of, tmp_path / "logs", jobs=1))
    (tmp_path / "end").touch()
    thread.join()
    assert second.failed == ("a",)
    assert first[0].done == ("a",)


def test_gpus_and_cores_are_divided(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(grids.machine, "cores", lambda: 6)
    command = "echo gpu=$CUDA_VISIBLE_DEVICES threads=$OMP_NUM_THREADS; sleep 0.5"
    run_grid(Grid(lines(f"a: {command}", f"b: {command}"), tmp_path, jobs=2))
    seen = sorted((tmp_path / f"{name}.log").read_text().splitlines()[-1] for name in "ab")
    assert seen == ["gpu=4 threads=3", "gpu=7 threads=3"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []


def test_the_share_of_a_slurm_task() -> None:
    task = {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_COUNT": "4"}
    assert default_share(task) == (3, 4)
    assert default_share({}) == (1, 1)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--jobs", "0"], ["--jobs 0", "from 1"]),
        (["--minutes", "-1"], ["--minutes -1", "above 0"]),
        (["--worker", "3/2"], ["--worker 3/2", "K from 1 to N"]),
        (["--worker", "2"], ["--worker 2", "K/N"]),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, capsys, monkeypatch, options: list[str], parts: list[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("true\n"))
    assert main(["grid", "-", "--logs", str(tmp_path / "logs"), *options]) == 2
    error = capsys.readouterr().err
    assert all(part in error for part in parts)
    assert not (tmp_path / "logs").exists()


def test_the_command(tmp_path: Path, capsys, monkeypatch) -> None:
    logs = str(tmp_path / "logs")
    file = tmp_path / "list"
    file.write_text("good: true\nbad: exit 3\n")
    assert main(["grid", str(file), "--logs", logs, "--print"]) == 0
    assert capsys.readouterr().out == "true\nexit 3\n"
    assert main(["grid", str(file), "--logs", logs]) == 1
    error = capsys.readouterr().err
    assert "bad: failed with exit status 3" in error
    assert f"failed: bad; see {logs}" in error
    assert main(["grid", str(tmp_path / "absent"), "--logs", logs]) == 2
    assert "absent" in capsys.readouterr().err
