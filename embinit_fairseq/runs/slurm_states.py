"""States of jobs for submitit on a Slurm without accounting, where sacct fails and a killed job would never end."""

from __future__ import annotations

import subprocess

from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

#: seconds between two looks at most
_LOOK = 10


class QueueWatcher(SlurmInfoWatcher):
    """Reads states from squeue, which forgets a job some minutes after its end."""

    def _make_command(self) -> list[str] | None:
        if self._registered <= self._finished:
            return None
        return ["squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i|%T|%N"]

    def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
        """Return the states of all jobs; one that was in the queue and is not any more has ended."""
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
