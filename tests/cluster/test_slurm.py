"""docs/scaling.md on a real Slurm of two nodes: arrays, requeues, preemption, trainings over nodes, corpora."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import slurm as installed
from trainings import REPOSITORY, TRAIN, losses

WHY = installed.missing()
pytestmark = [pytest.mark.end_to_end, pytest.mark.skipif(WHY is not None, reason=str(WHY))]
BIN = Path(sys.prefix) / "bin"
PYTHON = str(BIN / "python")
#: of a fairseq-train that has a signal sent to its job at another moment after each restart: before the first update,
#: within an epoch, within a validation, and by a job of the partition that preempts it
SIGNALLED = """
import os, subprocess, time
from fairseq.trainer import Trainer
from fairseq_cli.train import cli_main
from fairseq_compat.fixes.saved_stops import State
MOMENTS = [("__init__", 0), ("train_step", 3), ("valid_step", 5), ("train_step", 7)]
job, restart = os.environ["SLURM_JOB_ID"], int(os.environ.get("SLURM_RESTART_COUNT", 0))
signal = ["scancel", "--signal=USR1", job]
if restart == 3:
    signal = ["sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "true"]
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


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[installed.Slurm]:
    with installed.cluster(tmp_path_factory.mktemp("slurm")) as running:
        running.environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        running.environment["PATH"] = f"{BIN}:{running.environment['PATH']}"
        yield running


def training(data: Path, run: Path, *options: object) -> list[str]:
    """The command of a training of ten updates in two epochs."""
    command = [str(BIN / "fairseq-train"), str(data), *TRAIN, "--dropout", "0", "--batch-size", "10"]
    return [*command, "--save-dir", str(run), "--max-epoch", "2", *map(str, options)]


@pytest.fixture(scope="module")
def alone(slurm, toy_translation: Path, tmp_path_factory) -> dict:
    """The losses of one process that takes four batches for an update, which no one disturbs."""
    run = tmp_path_factory.mktemp("alone")
    done = slurm.run(*training(toy_translation, run, "--update-freq", 4))
    return losses(done.stdout + done.stderr)


def test_a_list_is_an_array_whose_failures_are_named_and_whose_requeued_jobs_go_on(slurm, tmp_path: Path) -> None:
    """`killed` ends the process of its job, as the kernel does when memory runs out."""
    (tmp_path / "list").write_text(
        f"good: echo one\nbad: echo why; exit 3\nkilled: kill -9 $PPID\n"
        f"long: echo started >>{tmp_path}/starts; trap 'exit 75' USR1 TERM; "
        f"[ $(wc -l <{tmp_path}/starts) = 2 ] || {{ touch {tmp_path}/runs; sleep 60 & wait; }}\n"
    )
    options = f"--logs {tmp_path}/logs --cluster slurm --sbatch time=5 partition=low mem=100"
    script = f"cd {tmp_path}; embinit grid list {options} >said 2>&1; echo $? >status"
    grid = slurm.submit(script, tmp_path, "--partition=low", "--mem=100")
    while not (tmp_path / "runs").exists():
        assert slurm.state(grid)["JobState"] in ("PENDING", "RUNNING", "CONFIGURING"), (tmp_path / "said").read_text()
    running = slurm.run("squeue", "--noheader", "--states=RUNNING", "--format=%i").stdout.split()
    (job,) = [name for name in running if name.endswith("_3")]
    slurm.run("scontrol", "requeue", job)
    slurm.wait(grid)
    said = (tmp_path / "said").read_text()
    assert (tmp_path / "status").read_text() == "1\n", said
    assert "2 of 4 done, 1 failed" in said
    assert "killed: its job has ended early" in said
    assert "bad: failed with exit status 3" in said
    assert len((tmp_path / "starts").read_text().split()) == 2


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_training_over_two_nodes_is_that_of_one_process(slurm, alone, toy_translation: Path, tmp_path, tasks) -> None:
    world = 2 * tasks
    options = ["--distributed-world-size", world, "--distributed-port", installed.free_port()]
    command = training(toy_translation, tmp_path / "run", "--update-freq", 4 // world, *options)
    place = ["srun", "--nodes=2", f"--ntasks-per-node={tasks}", "--mem=2000"]
    done = slurm.run(*place, *command)
    found = losses(done.stdout + done.stderr)
    assert f"training on {world} devices" in done.stdout + done.stderr
    for key, loss in alone.items():
        assert float(found[key]) == pytest.approx(float(loss), abs=5e-3), key


def test_another_number_of_devices_than_srun_starts_is_refused(slurm, toy_translation: Path, tmp_path: Path) -> None:
    options = ["--distributed-world-size", 3, "--distributed-port", installed.free_port()]
    place = ["srun", "--nodes=2", "--ntasks-per-node=1", "--mem=2000"]
    done = slurm.run(*place, *training(toy_translation, tmp_path / "run", *options), check=False)
    assert done.returncode != 0
    assert re.search(r"--distributed-world-size 3: give 2", done.stderr)
    assert not (tmp_path / "run" / "checkpoint_last.pt").exists()


def test_a_training_that_slurm_stops_again_and_again_is_the_uninterrupted_one(slurm, alone, toy_translation, tmp_path):
    (tmp_path / "program.py").write_text(SIGNALLED)
    command = training(toy_translation, tmp_path / "run", "--update-freq", 4)[1:]
    words = " ".join(f"'{word}'" for word in [PYTHON, tmp_path / "program.py", *command])
    script = f"srun {words}\nstatus=$?\n[ $status -ne 75 ] || scontrol requeue $SLURM_JOB_ID\nexit $status"
    job = slurm.submit(script, tmp_path, "--partition=low", "--requeue", "--mem=2000")
    ended = slurm.wait(job)
    said = (tmp_path / f"{job}.out").read_text()
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "4"), said
    assert losses(said) == alone
    assert "Traceback" not in said


def test_corpora_by_slurm_are_those_of_the_pool_and_a_failed_step_ends_the_rest(slurm, tmp_path: Path) -> None:
    """A file is in the place of the folder of the encoded shards; when it is gone the same call continues there."""
    text = slurm.run(PYTHON, "-m", "wikibooks.synthetic", "--megabytes", "0.1", cwd=REPOSITORY / "scripts").stdout
    (tmp_path / "text").write_text(text)
    small = {"BPE_MERGES": "150", "VOCABULARY": "160", "VALID_EVERY": "7", "SHARD_MB": "0.04", "DUPLICATES": "none"}

    def prepare(output: Path, check: bool = True, **variables: str):
        environment = {**slurm.environment, **small, "OUTPUT": str(output), "VENV": sys.prefix, **variables}
        script = REPOSITORY / "scripts" / "wikibooks" / "prepare.sh"
        return slurm.run("bash", script, tmp_path / "text", env=environment, check=check)

    by_slurm = {
        "EXECUTOR": "slurm",
        "JOBS": "2",
        "RANKS": "2",
        "EXECUTOR_OPTIONS": "mem_per_cpu_gb=1 time=00:10:00 comment=ours",
    }
    refused = prepare(tmp_path / "nowhere", check=False, **{**by_slurm, "EXECUTOR_OPTIONS": "partition=nowhere"})
    assert refused.returncode != 0
    assert "correct EXECUTOR_OPTIONS (partition" in refused.stderr
    (tmp_path / "slurm" / "work").mkdir(parents=True)
    (tmp_path / "slurm" / "work" / "encoded").write_text("")
    failed = prepare(tmp_path / "slurm", check=False, **by_slurm)
    assert failed.returncode != 0
    last = failed.stderr.strip().splitlines()[-1]
    assert re.search(r"encoding: .*work/encoded.*\.out\); correct that, then the same call continues", last)
    assert not slurm.run("squeue", "--noheader").stdout
    script = (tmp_path / "slurm" / "work" / "logs" / "00-shards" / "launch_script.slurm").read_text()
    assert {"#SBATCH --comment=ours", "#SBATCH --mem-per-cpu=1G"} <= {*script.splitlines()}  # of sbatch, of datatrove
    (tmp_path / "slurm" / "work" / "encoded").unlink()
    submitted = prepare(tmp_path / "slurm", **by_slurm, WAIT="0").stdout
    assert "the same call without WAIT=0" in submitted
    jobs = json.loads((tmp_path / "slurm" / "work" / "logs" / "jobs.json").read_text())
    assert [job["title"] for job in jobs] == ["encoding", "dictionary", "binarising", "joining"]
    assert "jobs of an earlier call are in the queue" in prepare(tmp_path / "slurm", **by_slurm).stderr
    prepare(tmp_path / "pool", JOBS="1")
    for path in (tmp_path / "pool" / "bin").iterdir():
        assert path.read_bytes() == (tmp_path / "slurm" / "bin" / path.name).read_bytes(), path.name
