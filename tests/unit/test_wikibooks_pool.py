"""scripts/wikibooks: processes and files that survive being killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from wikibooks import pool

SCRIPTS = Path(pool.__file__).resolve().parents[1]
TASKS = """
import os, pathlib, signal, sys, time
from wikibooks.pool import run_tasks

def work(folder, name, action):
    (folder / f"{name}.{os.getpid()}").touch()
    if action == "sleep":
        time.sleep(60)
    if action == "fail":
        raise SystemExit("error: task " + name)
    if action == "die":
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    run_tasks("tasks", work, [(1, (folder, str(n), action)) for n, action in enumerate(sys.argv[3:])], int(sys.argv[2]))
"""


@pytest.fixture
def start(tmp_path: Path):
    """Start tasks in a process of their own; the folder gets one file `number.pid` per task that has begun."""
    program, folder = tmp_path / "program.py", tmp_path / "folder"
    program.write_text(TASKS)
    folder.mkdir()

    def run(jobs: int, *actions: str) -> subprocess.Popen:
        command = [sys.executable, program, folder, str(jobs), *actions]
        environment = {**os.environ, "PYTHONPATH": f"{SCRIPTS}:{SCRIPTS.parent}"}
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    return run, folder


def wait_for(condition, seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    return condition()


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process}/stat")
    return not stat.is_file() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.parametrize("jobs", [1, 2])
def test_all_tasks_are_done_in_so_many_processes(start, jobs: int) -> None:
    run, folder = start
    process = run(jobs, *["nothing"] * 5)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert sorted(path.stem for path in folder.iterdir()) == list("01234")
    assert "CPU seconds" in errors
    assert "largest process" in errors
    assert (len({path.suffix for path in folder.iterdir()} - {f".{process.pid}"}) > 0) == (jobs > 1)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failed_task_ends_all(start, jobs: int) -> None:
    run, _ = start
    process = run(jobs, "nothing", "fail", "nothing")
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "error: task 1" in errors


def test_a_killed_process_is_reported(start) -> None:
    run, _ = start
    process = run(2, "nothing", "die", "nothing")
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "fewer --jobs" in errors


def test_no_process_survives_the_first_one(start) -> None:
    run, folder = start
    process = run(2, "sleep", "sleep")
    assert wait_for(lambda: len(list(folder.iterdir())) == 2)
    workers = [int(path.suffix[1:]) for path in folder.iterdir()]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    assert wait_for(lambda: not any(map(alive, workers)))


def test_finished_shards_have_their_own_names(tmp_path: Path) -> None:
    """Not those of killed processes, of today and of earlier versions."""
    for name in ("00010", "00002", ".00003.host.77.tmp", "00004.77.part", "all.txt"):
        (tmp_path / name).mkdir()
    assert [path.name for path in pool.finished_shards(tmp_path)] == ["00002", "00010"]
