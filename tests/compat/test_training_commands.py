"""What is special about some trainings: numbered checkpoints, several processes without torchrun, a folder in use."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from fairseq_commands import losses, run, script, training

pytest.importorskip("fairseq")
pytestmark = pytest.mark.end_to_end


def test_a_run_goes_on_from_the_numbered_checkpoint_of_an_epochs_end(toy_translation: Path, tmp_path: Path) -> None:
    """Four updates an epoch, a checkpoint every two of them."""
    options = ["--max-epoch", "2", "--save-interval-updates", "2"]
    whole = run([*script("fairseq-train"), *training(toy_translation, tmp_path / "whole", *options)]).stdout
    names = {path.name for path in (tmp_path / "whole").iterdir()}
    assert names >= {"checkpoint_1_2.pt", "checkpoint_1_4.pt", "checkpoint_2_6.pt", "checkpoint_2_8.pt"}
    (tmp_path / "resumed").mkdir()
    shutil.copy(tmp_path / "whole" / "checkpoint_1_4.pt", tmp_path / "resumed" / "checkpoint_last.pt")
    resumed = run([*script("fairseq-train"), *training(toy_translation, tmp_path / "resumed", *options)]).stdout
    assert losses(resumed) == losses(whole)[4:]
    assert len(losses(resumed)) == 4


def test_two_processes_without_torchrun(toy_translation: Path, tmp_path: Path) -> None:
    options = ["--max-epoch", "1", "--distributed-world-size", "2", "--num-workers", "0"]
    output = run([*script("fairseq-train"), *training(toy_translation, tmp_path, *options)]).stdout
    assert "training on 2 devices" in output
    assert len(losses(output)) == 2  # of the four batches each process has two
    assert (tmp_path / "checkpoint_last.pt").exists()


def test_a_folder_in_which_a_training_runs(toy_translation: Path, tmp_path: Path) -> None:
    command = [*script("fairseq-train"), *training(toy_translation, tmp_path, "--max-epoch")]
    first = subprocess.Popen([*map(str, command), "100000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (tmp_path / "checkpoint_last.pt").exists():
            assert first.poll() is None
            time.sleep(0.2)
        second = run([*command, "1"], check=False)
        assert first.poll() is None
    finally:
        first.kill()
        first.wait()
    assert second.returncode != 0
    message = second.stderr.strip().splitlines()[-1]
    assert f"--save-dir {tmp_path}: another training is running" in message
    assert "choose another --save-dir" in message
    assert "Loaded checkpoint" in run([*command, "1"]).stdout  # the lock went with the process


@pytest.mark.parametrize("flag", ["--restore-file", "--finetune-from-model"])
def test_a_broken_checkpoint_to_start_from(flag: str, toy_translation: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pt"
    broken.write_bytes(b"PK\x03\x04 and no more")
    command = [*script("fairseq-train"), *training(toy_translation, tmp_path / "run", "--max-epoch", "1", flag, broken)]
    result = run(command, check=False)
    assert result.returncode != 0
    assert f"checkpoint {broken} cannot be loaded: the file was cut short" in result.stderr.strip().splitlines()[-1]
    assert list((tmp_path / "run").iterdir()) == []
