"""docs/scaling.md on a real Slurm of two nodes: arrays, requeues, preemption, trainings over nodes, corpora."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import slurm as installed
from corpora import assert_same, prepare, write_text
from programs import PYTHON, VENV
from trainings import TRAIN, losses, run_to_end

WHY = installed.missing()
pytestmark = [pytest.mark.end_to_end, pytest.mark.skipif(WHY is not None, reason=str(WHY))]
BIN = VENV / "bin"
#: of a fairseq-train that has a signal sent to its job at another moment after each restart: before the first update,
#: within an epoch, and within a validation, when a job of the partition that preempts it needs its node
SIGNALLED = """
import os, subprocess, time
from fairseq.trainer import Trainer
from fairseq_cli.train import cli_main
from fairseq_compat.fixes.saved_stops import State
MOMENTS = [("__init__", 0), ("train_step", 3), ("valid_step", 5)]
job, restart = os.environ["SLURM_JOB_ID"], int(os.environ.get("SLURM_RESTART_COUNT", 0))
signal = ["scancel", "--signal=USR1", job]
if restart == 2:
    node = "--nodelist=" + os.environ["SLURMD_NODENAME"]
    signal = ["sbatch", "--partition=high", node, "--exclusive", "--output=/dev/null", "--wrap", "true"]
if restart < len(MOMENTS):
    name, update = MOMENTS[restart]
    def moment(trainer, *args, do=getattr(Trainer, name), **options):
        if not State.requested and (name == "__init__" or trainer.get_num_updates() == update):
            subprocess.run(signal, check=True)
            while not State.requested:
                time.sleep(0.1)
        return do(trainer, *args, **options)
    setattr(Trainer, name, moment)
cli_main()
"""
#: the last node is for the training that is stopped, which waits most of the time and runs beside the other tests
ITS_NODE = f"--nodelist={installed.NODES[-1]}"
OTHER_NODES = f"exclude={installed.NODES[-1]}"
GRID = ["embinit", "grid", "list", "--logs", "logs", "--cluster", "slurm", "--sbatch", "time=5", "mem=100"]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[installed.Slurm]:
    with installed.cluster(tmp_path_factory.mktemp("slurm")) as running:
        running.environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        running.environment["PATH"] = f"{BIN}:{running.environment['PATH']}"
        yield running


def training(data: Path, run: Path, *options: object) -> list[str]:
    """The arguments of a training of ten updates in two epochs."""
    arguments = [str(data), *TRAIN, "--dropout", "0", "--batch-size", "10"]
    return [*arguments, "--save-dir", str(run), "--max-epoch", "2", *map(str, options)]


@pytest.fixture(scope="module")
def alone(toy_translation: Path, tmp_path_factory) -> dict:
    """The losses of one process that takes four batches for an update, which no one disturbs."""
    options = training(toy_translation, tmp_path_factory.mktemp("alone"), "--update-freq", 4)
    return losses(run_to_end([PYTHON, "-m", "fairseq_cli.train", *options]))


@pytest.fixture(scope="module")
def stopped(slurm, toy_translation: Path, tmp_path_factory) -> tuple[str, Path]:
    """The job of the training that is stopped again and again, submitted before the first test, and its folder."""
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "program.py").write_text(SIGNALLED)
    command = [PYTHON, folder / "program.py", *training(toy_translation, folder / "run", "--update-freq", 4)]
    words = " ".join(f"'{word}'" for word in command)
    script = f"srun {words}\nstatus=$?\n[ $status -ne 75 ] || scontrol requeue $SLURM_JOB_ID\nexit $status"
    return slurm.submit(script, folder, "--partition=low", ITS_NODE, "--requeue", "--mem=2000"), folder


def start_grid(slurm, folder: Path) -> subprocess.Popen:
    """Start embinit grid with folder/list; its output is folder/said."""
    with open(folder / "said", "w") as said:
        return subprocess.Popen([*GRID, OTHER_NODES], cwd=folder, env=slurm.environment, stdout=said, stderr=said)


@pytest.fixture(scope="module")
def listed(slurm, tmp_path_factory) -> tuple[subprocess.Popen, Path]:
    """A grid that runs beside the first test, and its folder; `killed` ends its job, as the kernel would."""
    folder = tmp_path_factory.mktemp("listed")
    (folder / "list").write_text("good: echo one\nbad: echo why; exit 3\nkilled: kill -9 $PPID\n")
    return start_grid(slurm, folder), folder


@pytest.mark.usefixtures("listed", "stopped")
def test_corpora_by_slurm_are_those_of_the_pool_and_a_failed_step_ends_the_rest(slurm, tmp_path: Path) -> None:
    """A file is in the place of the folder of the encoded shards; when it is gone the same call continues there."""
    text, folder = write_text(tmp_path / "text"), tmp_path / "slurm"
    options = f"mem_per_cpu_gb=1 time=00:10:00 comment=ours {OTHER_NODES}"
    common = {"VENV": VENV, "EXECUTOR": "slurm", "JOBS": 2, "EXECUTOR_OPTIONS": options}
    by_slurm = partial(prepare, text, environment=slurm.environment, **common)
    refused = by_slurm(tmp_path / "nowhere", EXECUTOR_OPTIONS="partition=nowhere")
    assert refused.returncode != 0
    assert "correct EXECUTOR_OPTIONS (partition" in refused.stderr
    (folder / "work").mkdir(parents=True)
    (folder / "work" / "encoded").write_text("")
    failed = by_slurm(folder, RANKS=1)
    assert failed.returncode != 0
    last = failed.stderr.strip().splitlines()[-1]
    assert re.search(r"encoding: .*work/encoded.*\.out\); correct that, .* the same call continues", last)
    submitted = {job["job"] for job in json.loads((folder / "work" / "logs" / "jobs.json").read_text())}
    assert not submitted & {*slurm.run("squeue", "--noheader", "--format=%F").stdout.split()}
    script = (folder / "work" / "logs" / "00-shards" / "launch_script.slurm").read_text()
    assert {"#SBATCH --comment=ours", "#SBATCH --mem-per-cpu=1G"} <= {*script.splitlines()}  # of sbatch, of datatrove
    (folder / "work" / "encoded").unlink()
    assert "the same call without WAIT=0" in by_slurm(folder, WAIT=0).stdout
    jobs = json.loads((folder / "work" / "logs" / "jobs.json").read_text())
    assert [job["title"] for job in jobs] == ["encoding", "dictionary", "binarising", "joining"]
    assert "jobs of an earlier call are in the queue" in by_slurm(folder).stderr
    prepare(text, tmp_path / "pool", JOBS=1, VENV=VENV)
    assert_same(folder, tmp_path / "pool")


def test_a_list_is_an_array_whose_failures_are_named(listed) -> None:
    process, folder = listed
    assert process.wait(600) == 1
    text = (folder / "said").read_text()
    assert "1 of 3 done, 1 failed" in text
    assert "killed: its job has ended early" in text
    assert "bad: failed with exit status 3" in text


def test_preempted_jobs_of_a_list_go_on(slurm, tmp_path: Path) -> None:
    """`long` saves when it is preempted; it loops, as bash may notice the end of `sleep` before a signal of its own."""
    (tmp_path / "list").write_text(
        f"short: true\nlong: echo started >>{tmp_path}/starts; trap 'exit 75' USR1 TERM; "
        f"[ $(wc -l <{tmp_path}/starts) = 2 ] || {{ touch {tmp_path}/runs; while :; do sleep 0.1 || :; done; }}\n"
    )
    nowhere = slurm.run(*GRID, "partition=nowhere", cwd=tmp_path, check=False)
    assert "sbatch has refused the jobs: sbatch: error: invalid partition" in nowhere.stderr
    grid = start_grid(slurm, tmp_path)
    while not (tmp_path / "runs").exists():
        assert grid.poll() is None, (tmp_path / "said").read_text()
        time.sleep(0.1)
    slurm.submit("true", tmp_path, "--partition=high", f"--nodelist={installed.NODES[0]}", "--exclusive")
    assert grid.wait(600) == 0, (tmp_path / "said").read_text()
    assert len((tmp_path / "starts").read_text().split()) == 2


def test_a_training_that_slurm_stops_again_and_again_is_the_uninterrupted_one(slurm, alone, stopped) -> None:
    job, folder = stopped
    ended = slurm.wait(job)
    said = (folder / f"{job}.out").read_text()
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "3"), said
    assert losses(said) == alone
    assert "Traceback" not in said


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_training_over_two_nodes_is_that_of_one_process(slurm, alone, toy_translation: Path, tmp_path, tasks) -> None:
    world = 2 * tasks
    options = ["--distributed-world-size", world, "--distributed-port", installed.free_port()]
    options += ["--update-freq", 4 // world]
    command = [BIN / "fairseq-train", *training(toy_translation, tmp_path / "run", *options)]
    place = ["srun", "--nodes=2", f"--ntasks-per-node={tasks}", "--mem=2000", "--kill-on-bad-exit"]
    done = slurm.run(*place, *command)
    found = losses(done.stdout + done.stderr)
    assert f"training on {world} devices" in done.stdout + done.stderr
    for key, loss in alone.items():
        assert float(found[key]) == pytest.approx(float(loss), abs=5e-3), key


def test_another_number_of_devices_than_srun_starts_is_refused(slurm, toy_translation: Path, tmp_path: Path) -> None:
    options = ["--distributed-world-size", 3, "--distributed-port", installed.free_port()]
    place = ["srun", "--nodes=2", "--ntasks-per-node=1", "--mem=2000"]
    command = [BIN / "fairseq-train", *training(toy_translation, tmp_path / "run", *options)]
    done = slurm.run(*place, *command, check=False)
    assert done.returncode != 0
    assert re.search(r"--distributed-world-size 3: give 2", done.stderr)
    assert not (tmp_path / "run" / "checkpoint_last.pt").exists()
