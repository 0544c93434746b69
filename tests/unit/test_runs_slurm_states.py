"""embinit grid on Slurm: how a job ends that Slurm takes away, and one whose command cannot save; states by squeue."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from embinit_fairseq.runs import jobs

pytest.importorskip("submitit")
from embinit_fairseq.runs import slurm_states

RUNNING, PREEMPTED = "JobId=9 JobState=RUNNING Reason=None\n PreemptTime={}\n Command=a b=c", "2026-11-28T20:00:00"
REQUEUE = ["scontrol", "requeue", "7_2"]


@pytest.fixture
def scontrol(monkeypatch) -> SimpleNamespace:
    """Slurm's program: what it prints about a job (`told`), and how it was called; this process is task 2 of job 7."""

    def run(command: list[str], **options: object) -> SimpleNamespace:
        fake.calls.append(command)
        return SimpleNamespace(stdout=fake.told)

    fake = SimpleNamespace(told=RUNNING.format("None"), calls=[])
    for name, value in (("JOB_ID", "7"), ("ARRAY_JOB_ID", "7"), ("ARRAY_TASK_ID", "2")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.setattr(slurm_states.subprocess, "run", run)
    return fake


@pytest.mark.parametrize("told", [RUNNING.format("None"), "JobState=RUNNING", ""])  # "": scontrol fails
def test_a_job_that_slurm_leaves_alone_ends_as_its_command(scontrol, told) -> None:
    scontrol.told = told
    slurm_states.continue_later()
    assert scontrol.calls == [["scontrol", "--oneliner", "show", "job", "7_2"]]


@pytest.mark.parametrize(
    ("told", "requeues"),
    [
        (RUNNING.format(PREEMPTED), [REQUEUE]),  # in its time of grace; at its end Slurm would requeue it
        (RUNNING.format(PREEMPTED).replace("RUNNING", "PREEMPTED"), []),
        (RUNNING.format("None").replace("RUNNING", "COMPLETING"), []),  # scontrol requeue, by somebody
        (RUNNING.format("None").replace("RUNNING", "CANCELLED"), []),
    ],
)
def test_a_job_that_slurm_takes_away_has_no_result(scontrol, told, requeues) -> None:
    scontrol.told = told
    with pytest.raises(SystemExit, match="job 7_2"):
        slurm_states.continue_later()
    assert scontrol.calls[1:] == requeues


@pytest.fixture
def ended(tmp_path: Path, monkeypatch):
    """A task whose command ends with this exit status; `signalled`: after submitit has let it save, and before it ends.

    Like submitit, it then leaves, unless an exception of `checkpoint` has interrupted the task.
    """

    def make(code: int, signalled: bool = False) -> jobs.Task:
        def poll() -> int | None:
            if process.returncode is None:
                process.returncode = code
                raise SystemExit(task.checkpoint())
            return process.returncode

        process = SimpleNamespace(returncode=None if signalled else code, poll=poll)
        monkeypatch.setattr(jobs, "start", lambda *args: process)
        for name in ("end", "send"):
            monkeypatch.setattr(jobs, name, lambda *args: None)
        task = jobs.Task("a", "train", tmp_path)
        return task

    return make


@pytest.mark.parametrize(("code", "looks"), [(0, 0), (75, 1), (143, 1), (3, 1)])
def test_only_a_command_that_ended_well_is_done_when_its_job_is_taken_away(scontrol, ended, code, looks) -> None:
    """A command that knows no signals is killed by that of a preemption."""
    task = ended(code)
    assert task() == code
    assert len(scontrol.calls) == looks
    assert task.is_done == (code == 0)
    scontrol.told = RUNNING.format(PREEMPTED)
    if looks:
        with pytest.raises(SystemExit):
            ended(code)()
        assert scontrol.calls[-1] == REQUEUE


@pytest.mark.parametrize(("code", "fails"), [(75, False), (0, False), (138, False), (-9, False), (1, True), (78, True)])
def test_a_command_that_fails_instead_of_saving_is_not_requeued(scontrol, ended, code, fails) -> None:
    task = ended(code, signalled=True)
    if fails:
        assert task() == code
        return
    with pytest.raises(SystemExit) as left:
        task()
    again = left.value.code.function
    assert (again.name, again.command, again.logs) == ("a", "train", task.logs)
    assert not scontrol.calls


def test_states_without_accounting(monkeypatch) -> None:
    """A job that squeue has forgotten has ended, and so has one that it lists as such; a requeued one has not."""
    queue = [b"7_0|RUNNING|a\n7_1|PENDING|\n7_2|RUNNING|b\n", b"7_1|REQUEUED|\n7_2|FAILED|b\n"]
    monkeypatch.setattr("subprocess.check_output", lambda command, shell: queue.pop(0))
    watcher, numbers = slurm_states.QueueWatcher(), ["7_0", "7_1", "7_2"]
    for expected in ([False, False, False], [True, False, True]):
        for number in numbers:
            watcher.register_job(number)
        watcher.update()
        assert [watcher.is_done(number, mode="cache") for number in numbers] == expected
