"""embinit grid: the list, what is done, shares, environments. What is started is a shell's own `echo` and `sleep`."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pytest

from embinit_fairseq.cli.main import main
from embinit_fairseq.errors import OptionError
from embinit_fairseq.runs import grid as grids
from embinit_fairseq.runs.grid import Grid, Line, default_share, read_lines, run_grid, visible_gpus


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """Done, failed and left of these lines; the current folder is the test's."""
    monkeypatch.chdir(tmp_path)

    def call(commands: list[str], jobs: int = 1, **options):
        outcome = run_grid(Grid(read_lines("\n".join(commands)), Path("logs"), jobs, **options))
        return outcome.done, outcome.failed, outcome.left

    return call


def wait_for(path: object) -> str:
    """A command that ends when the file is there, or after a minute."""
    return f"for _ in {{1..600}}; do [[ ! -e {path} ]] || break; sleep 0.1; done"


def test_names_and_numbers() -> None:
    found = read_lines("# a comment\n\na.seed=1: echo x: y\n  echo b: c\nB=1 echo d")
    assert found == [Line("a.seed=1", "echo x: y"), Line("2", "echo b: c"), Line("3", "B=1 echo d")]
    assert read_lines("a: echo x\u2028y\x85\r\nb: z") == [Line("a", "echo x\u2028y"), Line("b", "z")]
    many = [f"n{at}: true" for at in range(100_000)]
    started = time.process_time()
    assert len(read_lines("\n".join(many))) == 100_000
    assert time.process_time() - started < 30  # minutes, were every name compared with every other
    wrong = (("# x", "give one per line"), ("a: x\na: y", "a name of its own"))
    for text, remedy in wrong:
        with pytest.raises(OptionError, match=remedy):
            read_lines(text)


def test_what_ended_well_is_not_run_again(grid) -> None:
    commands = ["a: echo a >> count", "b: echo b >> count; [[ -f there ]]", "c: echo c >> count"]
    assert grid(commands) == (("a", "c"), ("b",), ())
    Path("there").touch()
    commands[2] += " # changed"
    assert grid(commands) == (("a", "b", "c"), (), ())
    assert Path("count").read_text().split() == list("abcbc")
    grid(commands, jobs=2, again=True)
    assert sorted(Path("count").read_text().split()[5:]) == list("abc")


def test_a_failing_command_in_a_line_ends_the_line(grid) -> None:
    _, failed, _ = grid(["a: false; echo on", "b: false | cat", "c: echo $NOBODY"], jobs=3)
    assert set(failed) == {"a", "b", "c"}
    assert "on" not in Path("logs/a.log").read_text().splitlines()


def test_a_training_that_was_stopped_and_has_saved_is_continued_by_the_next_call(grid) -> None:
    commands = ["a: echo a >> count; [[ -f there ]] || exit 75", "b: echo b >> count"]
    assert grid(commands) == (("b",), (), ("a",))
    Path("there").touch()
    assert grid(commands) == (("a", "b"), (), ())
    assert Path("count").read_text().split() == list("aba")


def test_every_line_belongs_to_one_worker(grid) -> None:
    names = [f"n{at}" for at in range(7)]
    shares = [grid([f"{name}: true" for name in names], jobs=2, share=(k, 3), again=True)[0] for k in (1, 2, 3)]
    assert sorted(name for share in shares for name in share) == names


def slurm_task(**numbers: int) -> dict[str, str]:
    return {f"SLURM_ARRAY_TASK_{name}": str(number) for name, number in numbers.items()}


def test_every_task_of_a_slurm_array_has_a_share_of_its_own() -> None:
    """--array=3-6, 0-10:2 and 7; an array with gaps (1,3,7 or 0-4,10) is refused by each of its tasks."""
    for ids, step in ((range(3, 7), 1), (range(0, 11, 2), 2), ([7], 1)):
        tasks = [slurm_task(ID=n, MIN=ids[0], MAX=ids[-1], STEP=step, COUNT=len(ids)) for n in ids]
        assert [default_share(task) for task in tasks] == [(k, len(ids)) for k in range(1, len(ids) + 1)]
    for ids in ([1, 3, 7], [0, 1, 2, 3, 4, 10]):
        for n in ids:
            with pytest.raises(OptionError, match=f"--array=0-{len(ids) - 1}"):
                default_share(slurm_task(ID=n, MIN=ids[0], MAX=ids[-1], STEP=1, COUNT=len(ids)))
    assert default_share({}) == (1, 1)


def test_more_jobs_than_there_can_be(grid) -> None:
    assert grid(["a: true", "b: true"], jobs=10**21)[0] == ("a", "b")


def test_time_is_up(grid, monkeypatch) -> None:
    started, start = [], grids.start
    monkeypatch.setattr(grids, "start", lambda *given: started.append(start(*given)) or started[-1])
    assert grid(["long: sleep 60 & wait", "next: true"], minutes=1 / 60) == ((), (), ("long", "next"))
    assert [line.returncode is None for line in started] == [False]


def test_gpus_and_cores_are_divided(grid, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(grids, "cores", lambda: 6)
    command = "echo gpu=$CUDA_VISIBLE_DEVICES threads=$OMP_NUM_THREADS; touch"
    grid([f"a: {command} a; {wait_for('b')}", f"b: {command} b; {wait_for('a')}"], jobs=2)
    seen = sorted(Path(f"logs/{name}.log").read_text().splitlines()[-1] for name in "ab")
    assert seen == ["gpu=4 threads=3", "gpu=7 threads=3"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []


def test_the_command(tmp_path, capsys, shown, refused, monkeypatch) -> None:
    logs, file = tmp_path / "logs", tmp_path / "list"
    file.write_text("good: true\nbad: echo why; exit 3\n")
    assert shown("grid", file, "--logs", logs, "--print") == "true\necho why; exit 3\n"
    assert main(["grid", str(file), "--logs", str(logs)]) == 1
    error = capsys.readouterr().err
    assert "bad: failed with exit status 3" in error
    assert "bad.log, which ends: why" in error
    assert f"failed: bad; see {logs}" in error
    assert "absent" in refused("grid", tmp_path / "absent", "--logs", logs)
    for option in ("--jobs 0", "--minutes -1", "--worker 3/2", "--worker 2", "--worker ²/3"):
        assert option in refused("grid", file, "--logs", logs, *option.split())
    given = "a: echo \u2028é\n".encode("utf-8-sig")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given), "ascii"))  # whatever the locale
    assert shown("grid", "-", "--logs", logs, "--print") == "echo \u2028é\n"
    file.write_bytes(b"a: true\nb: \xe9\n")
    assert re.search(f"{file}:2: .*iconv", refused("grid", file, "--logs", logs))
