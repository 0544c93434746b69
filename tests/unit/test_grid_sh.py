"""scripts/grid.sh on runs that only wait: several at a time, failures, interruptions, a second call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
#: runs of the words NAME SECONDS CODE; each leaves NAME.started, and NAME.done if it succeeds
GRID = f"""
source "{REPO}/scripts/common.sh"
source "{REPO}/scripts/grid.sh"
one_run() {{
  [[ ! -f $1.done ]] || return 0
  echo "$OMP_NUM_THREADS ${{CUDA_VISIBLE_DEVICES-none}} $BASHPID" >>"$1.started"
  "$PYTHON" -c "import time; time.sleep($2)" | cat
  [[ $3 -eq 0 ]] || die "no luck"
  touch "$1.done"
}}
run_grid "$JOBS" logs one_run <list
echo complete
"""


def start(folder: Path, runs: list[str], jobs: int = 2, **environment: str) -> subprocess.Popen:
    """A grid with a process group of its own, as a terminal would start it. EMBINIT_GPUS: torch is not asked."""
    (folder / "list").write_text("".join(f"{run}\n" for run in runs))
    variables = {"PYTHON": sys.executable, "JOBS": str(jobs), "EMBINIT_GPUS": "0", **environment}
    unset = {
        name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
    }
    command = ["bash", "-c", GRID, "grid"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    pipes["preexec_fn"] = _terminal_signals
    return subprocess.Popen(command, cwd=folder, env={**unset, **variables}, text=True, start_new_session=True, **pipes)


def _terminal_signals() -> None:
    """What a shell starts in the background ignores Ctrl-C, what nohup starts SIGHUP, and so would what these start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def wait_for(folder: Path, pattern: str, number: int) -> None:
    end = time.monotonic() + 60
    while len(list(folder.glob(pattern))) < number:
        assert time.monotonic() < end, sorted(folder.iterdir())
        time.sleep(0.02)


def lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()]


def test_a_failure_is_named_the_others_go_on_and_the_second_call_does_what_is_missing(tmp_path: Path) -> None:
    grid = start(tmp_path, ["a 0 0", "b 0 1", "c 0 0", "d 0 0"])
    out, err = grid.communicate(timeout=120)
    assert grid.returncode == 1
    assert "FAILED: b.0.1 (grid: error: no luck)" in err
    assert err.splitlines()[-1] == "grid: error: 1 run failed (b.0.1): see logs/<run>.log; start again to continue"
    assert "complete" not in out
    assert sorted(path.name for path in tmp_path.glob("*.done")) == ["a.done", "c.done", "d.done"]
    again = start(tmp_path, ["a 0 0", "b 0 0", "c 0 0", "d 0 0"])
    out, err = again.communicate(timeout=120)
    assert (again.returncode, out) == (0, "complete\n"), err
    assert {path.stem: len(lines(path)) for path in tmp_path.glob("*.started")} == {"a": 1, "b": 2, "c": 1, "d": 1}


def test_a_run_whose_steps_are_done_leaves_the_others_alone(tmp_path: Path) -> None:
    script = f"""
source "{REPO}/scripts/common.sh"
source "{REPO}/scripts/grid.sh"
wait_and_touch() {{ sleep "$1"; touch "$2"; }}
one_run() {{ step "$1" "$1/done" -- wait_and_touch "$2"; }}
run_grid 2 logs one_run < <(printf '%s\\n' "slow 1.5" "fast 0")
"""
    variables = {**os.environ, "EMBINIT_GPUS": "0"}
    done = subprocess.run(["bash", "-c", script, "grid"], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "slow" / "done").exists()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopping_the_grid_stops_its_runs(tmp_path: Path, stop: signal.Signals) -> None:
    """To the grid alone: a terminal reaches no more, since each run has a process group of its own."""
    grid = start(tmp_path, ["a 300 0", "b 300 0", "c 300 0"])
    wait_for(tmp_path, "*.started", 2)
    grid.send_signal(stop)
    # a process that holds the pipes open would keep this waiting
    out, err = grid.communicate(timeout=120)
    assert grid.returncode != 0
    assert "complete" not in out
    assert "stopped, and with it: " in err.splitlines()[-1]
    assert "start again to continue" in err
    assert not list(tmp_path.glob("*.done"))
    groups = [int(line[2]) for path in tmp_path.glob("*.started") for line in lines(path)]
    assert len(groups) == 2
    end = time.monotonic() + 10
    while any(alive(group) for group in groups):
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_only_so_many_runs_at_a_time(tmp_path: Path) -> None:
    grid = start(tmp_path, [f"{name} 1 0" for name in "abcd"], jobs=2)
    wait_for(tmp_path, "*.started", 2)
    time.sleep(0.3)
    assert len(list(tmp_path.glob("*.started"))) == 2
    assert grid.communicate(timeout=120)[0] == "complete\n"
    assert len(list(tmp_path.glob("*.done"))) == 4


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"EMBINIT_GPUS": "0"}, {"none"}),
        ({"EMBINIT_GPUS": "1"}, {"none"}),
        ({"EMBINIT_GPUS": "2"}, {"0", "1"}),
        ({"EMBINIT_GPUS": "2", "CUDA_VISIBLE_DEVICES": "5,GPU-7"}, {"5", "GPU-7"}),
    ],
)
def test_runs_side_by_side_have_a_gpu_each(tmp_path: Path, environment: dict[str, str], expected: set[str]) -> None:
    start(tmp_path, ["a 0 0", "b 0 0"], **environment).communicate(timeout=120)
    assert {lines(path)[0][1] for path in tmp_path.glob("*.started")} == expected


def test_cores_are_shared(tmp_path: Path) -> None:
    start(tmp_path, ["a 0 0"], jobs=1000).communicate(timeout=120)
    assert lines(tmp_path / "a.started")[0][0] == "1"
    start(tmp_path, ["b 0 0"], jobs=2, OMP_NUM_THREADS="3").communicate(timeout=120)
    assert lines(tmp_path / "b.started")[0][0] == "3"


#: `sbatch --wait` for an array: its tasks one after the other, each a job of its own
SBATCH = """#!/usr/bin/env bash
printf '%s\\n' "$*" >>calls
for word in "$@"; do
  case $word in
    --array=1-*) last=${word#--array=1-} ;;
    --wrap=*) command=${word#--wrap=} ;;
  esac
done
[[ ! -f broken ]] || exit 3
status=0
for ((task = 1; task <= last; task++)); do
  SLURM_JOB_ID=$((7 + task)) SLURM_ARRAY_TASK_ID=$task SLURM_CPUS_PER_TASK=5 bash -c "$command" || status=1
done
exit $status
"""


@pytest.fixture
def cluster(tmp_path: Path):
    """A grid without --jobs where there is sbatch: (exit code, standard output, standard error)."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text(SBATCH)
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    (tmp_path / "a grid.sh").write_text(GRID.replace('"$JOBS"', '"$(default_jobs)"').replace("<list", '< <(cat "$1")'))

    def run(runs: list[str], **environment: str) -> tuple[int, str, str]:
        (tmp_path / "the list").write_text("".join(f"{run}\n" for run in runs))
        inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        variables = {**inherited, "PYTHON": sys.executable, "PATH": path, "EMBINIT_GPUS": "0", **environment}
        command = ["bash", "a grid.sh", "the list"]
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    return run


def test_where_there_is_slurm_a_grid_is_one_array(tmp_path: Path, cluster) -> None:
    code, out, err = cluster(["a 0 0", "b 0 1", "c 0 0"])
    assert (code, out) == (1, ""), err
    last = err.splitlines()[-1]
    assert last == "a grid.sh: error: 1 run failed (b.0.1): see logs/<run>.log; start again to continue"
    assert "no luck" in (tmp_path / "logs" / "b.0.1.log").read_text()
    code, out, err = cluster(["a 0 0", "b 0 0", "c 0 0"])
    assert (code, out) == (0, "complete\n"), err  # once: the tasks end where the grid ends
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 2
    assert "--wait" in calls[0]
    assert "--array=1-3" in calls[0]
    assert {path.stem: len(lines(path)) for path in tmp_path.glob("*.started")} == {"a": 1, "b": 2, "c": 1}
    assert lines(tmp_path / "a.started")[0][0] == "5"  # the cores of the task


def test_in_a_job_a_grid_uses_what_the_job_has(tmp_path: Path, cluster) -> None:
    code, out, err = cluster(["a 0 0"], SLURM_JOB_ID="1")
    assert (code, out) == (0, "complete\n"), err
    assert not (tmp_path / "calls").exists()


def test_an_array_that_the_cluster_refuses_is_an_error(tmp_path: Path, cluster) -> None:
    (tmp_path / "broken").touch()
    code, out, err = cluster(["a 0 0"])
    assert (code, out) == (1, "")
    assert "the array did not come to its end" in err.splitlines()[-1]


@pytest.mark.parametrize(("task", "named"), [("", "not set"), ("0", "0"), ("3", "3")])
def test_a_task_without_a_line_does_nothing_and_says_so(tmp_path: Path, task: str, named: str) -> None:
    (tmp_path / "array.list").write_text("a 0 0\nb 0 0\n")
    grid = start(tmp_path, ["a 0 0"], EMBINIT_ARRAY=str(tmp_path / "array.list"), SLURM_ARRAY_TASK_ID=task)
    out, err = grid.communicate(timeout=120)
    assert (grid.returncode, out) == (1, "")
    assert f"SLURM_ARRAY_TASK_ID {named}: " in err
    assert not list(tmp_path.glob("*.started"))
