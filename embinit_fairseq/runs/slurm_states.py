"""Find states of jobs that submitit does not see: on a Slurm without accounting, and of a job that Slurm preempts.

Without accounting sacct fails, and a killed job would never end. submitit ignores SIGTERM, by which Slurm preempts.
"""

from __future__ import annotations

import subprocess

from submitit import JobEnvironment
from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

#: largest number of seconds between two looks
_LOOK = 10


class QueueWatcher(SlurmInfoWatcher):
    """Read states from squeue, which forgets a job some minutes after its end."""

    def _make_command(self) -> list[str] | None:
        if self._registered <= self._finished:
            return None
        return ["squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i|%T|%N"]

    def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
        """Return the states of all jobs; a job that has left the queue has ended."""
        text = string if isinstance(string, str) else string.decode()
        info = {job: {"JobID": job, "State": "ENDED"} for job in self._info_dict}
        for line in text.splitlines():
            job, state, nodes = line.split("|")
            info[job] = {"JobID": job, "State": state, "NodeList": nodes}
        return info


def watch_queue_without_accounting() -> None:
    """Let submitit look at squeue if sacct fails here."""
    if subprocess.run(["sacct", "--noheader", "-j", "1"], capture_output=True).returncode != 0:
        SlurmJob.watcher = QueueWatcher(delay_s=_LOOK)


def continue_later() -> None:
    """End this process if Slurm preempts its job; a command that has saved in time would end the job for good.

    Raises:
        SystemExit: Slurm preempts, requeues or cancels the job; a preempted one is requeued.
    """
    job = JobEnvironment().job_id  # ARRAY_TASK: SLURM_JOB_ID of one task of an array is that of the array
    output = subprocess.run(["scontrol", "--oneliner", "show", "job", job], capture_output=True, text=True).stdout
    state = dict(word.split("=", 1) for word in output.split() if "=" in word)
    is_running, is_preempted = state.get("JobState") == "RUNNING", state.get("PreemptTime", "None") != "None"
    if is_running and is_preempted:  # within the grace time of the job, after which Slurm requeues it
        subprocess.run(["scontrol", "requeue", job], check=True)
    if state and (is_preempted or not is_running):
        raise SystemExit(f"job {job} was taken away by Slurm; it continues if it is requeued")
