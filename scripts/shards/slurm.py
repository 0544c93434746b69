"""Run steps on Slurm: each is an array of jobs of datatrove that begins when the one before has ended well.

All steps are submitted at once. If a job fails, Slurm cancels the jobs that wait for it. LOGS/jobs.json lists the
submitted jobs, so that a second call waits for them.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from datatrove.executor import SlurmPipelineExecutor
from datatrove.utils.logging import logger
from shards.engines import Engine, Share
from shards.tasks import Step
from tqdm import tqdm

from embinit_fairseq.errors import OptionError
from embinit_fairseq.io import read_json, write_json

#: title, job, parts (of the step, one for each rank) and folder (of datatrove's logs) of a step
Submitted = dict[str, Any]
#: seconds between two looks at the queue
_LOOK = 2.0


class _Array(SlurmPipelineExecutor):
    """Run datatrove's executor without the job that sums up statistics, in the cluster's default partition."""

    def launch_merge_stats(self) -> None:
        """Submit nothing: a preparation sums up its own numbers."""

    def get_sbatch_args(self, max_array: int = 1) -> dict:
        """Return the options of sbatch that have a value."""
        return {name: value for name, value in super().get_sbatch_args(max_array).items() if value is not None}


def run(steps: Sequence[Step], engine: Engine) -> bool:
    """Submit the steps that are not done, unless an earlier call has; wait for them if `engine.wait`.

    Returns:
        whether all steps are done.

    Raises:
        OptionError: sbatch refuses a step, or a step has failed.
    """
    for program in ("sbatch", "squeue"):
        if shutil.which(program) is None:
            raise OptionError(f"EXECUTOR=slurm: there is no {program} here: start it where jobs are submitted")
    record = engine.logs / "jobs.json"
    submitted = read_json(record) if record.exists() else []
    if alive := _alive(submitted):
        print(f"jobs of an earlier call are in the queue: {', '.join(alive)} (scancel ends them)", file=sys.stderr)
    else:
        submitted = []
        with _cancelled(submitted, BaseException):  # sbatch refuses a step, the disk is full, Ctrl-C
            for step in _submit(_unfinished(steps), engine):
                submitted.append(step)
                write_json(record, submitted)
    if not engine.wait:
        print("submitted; the same call without WAIT=0 waits for the jobs and writes report.json")
        return False
    with _cancelled(submitted, KeyboardInterrupt):
        _wait(submitted)
    _check(steps, submitted)
    return True


@contextlib.contextmanager
def _cancelled(submitted: Sequence[Submitted], error: type[BaseException]) -> Iterator[None]:
    """Cancel the jobs if the block raises `error`."""
    try:
        yield
    except error:
        if submitted:
            subprocess.run(["scancel", *(step["job"] for step in submitted)], check=False)
        raise


def _unfinished(steps: Sequence[Step]) -> list[Step]:
    """Return the steps from the first that is not done."""
    for number, step in enumerate(steps):
        if step.unfinished():
            return list(steps[number:])
    return []


def _submit(steps: list[Step], engine: Engine) -> Iterator[Submitted]:
    """Submit the steps; yield title, job, number of parts and folder of each. OptionError if sbatch refuses one."""
    logger.disable("datatrove")
    own = inspect.signature(SlurmPipelineExecutor).parameters
    user_options = {name: int(value) if value.isdecimal() else value for name, value in engine.options.items()}
    options: dict[str, Any] = {"time": "12:00:00", "partition": None, "qos": None, "workers": engine.jobs}
    options |= {name: value for name, value in user_options.items() if name in own}
    sbatch = {name.replace("_", "-"): value for name, value in user_options.items() if name not in own}
    before = None
    for number, step in enumerate(steps):
        name = f"{number:02}-{step.title.replace(' ', '-')}"
        folder = engine.logs / name
        shutil.rmtree(folder, ignore_errors=True)  # marks and logs of an earlier call
        array = _Array(
            [Share(step)],
            tasks=min(engine.ranks, step.number or engine.ranks),
            logging_dir=str(folder),
            skip_completed=False,
            job_name=name,
            depends_job_id=before,
            sbatch_args={"kill-on-invalid-dep": "yes", **sbatch},
            **options,
        )
        try:
            array.launch_job()
        except subprocess.CalledProcessError:
            raise OptionError(
                f"EXECUTOR=slurm: sbatch refuses the step {step.title!r} with the message above: correct "
                f"EXECUTOR_OPTIONS (partition, time, account ...); it was given {folder / 'launch_script.slurm'}"
            ) from None
        before = str(array.job_id)
        yield {"title": step.title, "job": before, "parts": array.tasks, "folder": str(folder)}


def _alive(submitted: Sequence[Submitted]) -> dict[str, str]:
    """Return job -> reason why it waits ("None": it runs), of the jobs that have not ended."""
    jobs = {step["job"] for step in submitted}
    if not jobs:
        return {}
    for trial in range(10):  # the controller may be restarting
        queue = subprocess.run(["squeue", "--me", "--noheader", "--format=%F|%r"], capture_output=True, text=True)
        if queue.returncode == 0:
            lines = (line.partition("|") for line in queue.stdout.splitlines())
            return {job: reason for job, _, reason in lines if job in jobs}
        time.sleep(_LOOK * trial)
    raise OptionError(f"EXECUTOR=slurm: squeue fails: {queue.stderr.strip()}; the same call continues when it works")


def _wait(submitted: Sequence[Submitted]) -> None:
    """Show how many parts are done until no job is in the queue."""
    with tqdm(total=sum(step["parts"] for step in submitted), unit=" parts") as bar:
        while True:
            alive = _alive(submitted)
            bar.n = sum(len(_completed(step)) for step in submitted)
            current = next((step for step in submitted if step["job"] in alive), None)
            if current is None:
                bar.refresh()
                return
            reason = alive[current["job"]]
            bar.set_description(current["title"] + (f" ({reason})" if reason != "None" else ""))
            time.sleep(_LOOK)


def _check(steps: Sequence[Step], submitted: Sequence[Submitted]) -> None:
    """Raise OptionError if a step is not done, with the reason that the log of the first failed part has."""
    if any(step.unfinished() for step in steps):
        failed = next((step for step in submitted if len(_completed(step)) < step["parts"]), submitted[-1])
        log, line = _reason(failed)
        raise OptionError(
            f"{failed['title']}: {line} ({log}); correct that, or EXECUTOR_OPTIONS (time, mem_per_cpu_gb), then the "
            "same call continues here"
        )


def _completed(step: Submitted) -> set[int]:
    """Return the parts of a step that have ended well."""
    return {int(path.name) for path in Path(step["folder"], "completions").glob("*")}


#: a line of srun or of slurmstepd-NODE, or the last one of a traceback
_FAILURES = re.compile(r"^(\d+: )?((slurmstepd|srun)\S*: error: .*|[\w.]*(Error|Exception|Exit|Interrupt)\b.*)$")


def _reason(step: Submitted) -> tuple[Path, str]:
    """Return a log of a part that failed, and its line with the reason."""
    folder, completed = Path(step["folder"]), _completed(step)
    logs = [
        log for log in sorted(folder.glob("slurm_logs/*_*.out")) if int(log.stem.rpartition("_")[2]) not in completed
    ]
    for log in logs:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        if failure_lines := [line for line in lines if _FAILURES.match(line)]:
            own = [line for line in failure_lines if "slurmstepd" not in line and "srun:" not in line]
            return log, re.sub(r"^\d+: ", "", (own or failure_lines)[-1])
    return (logs[-1], "it ended early") if logs else (folder, "its jobs did not begin")
