"""docs/scaling.md in small: two processes on a CPU train like one process that takes two batches for an update."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from programs import VENV

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "wikibooks" / "train.sh"
UPDATES = 4

NOT_THERE = not (VENV / "bin" / "fairseq-train").is_file()
pytestmark = [pytest.mark.end_to_end, pytest.mark.skipif(NOT_THERE, reason="fairseq is not installed beside pytest")]
TRAIN = {"UPDATES": str(UPDATES), "SAVE_EVERY": str(UPDATES), "BATCH": "8", "DEVICE_BATCH": "4"}
OPTIONS = """--arch tupe_tiny --dropout 0 --attention-dropout 0 --warmup-updates 1 --lr 0.01 --tokens-per-sample 32
    --encoder-layers 1 --encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-attention-heads 2""".split()


def start(data: Path, run: Path, venv: Path = Path(sys.prefix), **variables: str) -> subprocess.Popen:
    outer = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "MASTER_"))}
    outer |= {"VENV": str(venv), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "DATA": str(data), "RUN": str(run)}
    command = ["bash", str(SCRIPT), *OPTIONS]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env={**outer, **TRAIN, **variables}, **pipe)


def loss(run: Path, started: subprocess.Popen, update_freq: int, devices: int) -> float:
    """Of the one validation, which one process alone prints."""
    said = started.communicate()[0]
    log = (run / "train.log").read_text() if (run / "train.log").is_file() else ""
    assert started.returncode == 0, said + log
    command = json.loads((run / "training.json").read_text())["command"]
    assert f"--update-freq {update_freq} " in command
    assert ("--cpu" in command) == (devices == 1)  # what torchrun starts finds out where it runs
    assert f"training on {devices} devices" in log
    found = [json.loads(line.partition("| valid | ")[2]) for line in log.splitlines() if "| valid | " in line]
    assert [int(record["valid_num_updates"]) for record in found] == [UPDATES]
    return float(found[0]["valid_loss"])


def test_a_second_machine_trains_along_and_leaves_the_records_to_the_first(monolingual, tmp_path):
    """As on two machines without SLURM: train.sh by torchrun on each, the second with WORKER=1."""
    shutil.copytree(monolingual, tmp_path / "bin")  # what prepare.sh would have made, as far as train.sh looks at it
    alone = loss(tmp_path / "alone", start(tmp_path, tmp_path / "alone", VENV), update_freq=2, devices=1)
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    torchrun = f"torchrun --nnodes 2 --nproc-per-node 1 --master-addr localhost --master-port {port} --no-python"
    launch = {rank: {"DEVICES": "2", "LAUNCH": f"{torchrun} --node-rank {rank}"} for rank in (0, 1)}
    second = start(tmp_path, tmp_path / "other", WORKER="1", **launch[1])
    first = start(tmp_path, tmp_path / "run", **launch[0])
    assert loss(tmp_path / "run", first, update_freq=1, devices=2) == pytest.approx(alone, abs=2e-3)
    assert second.wait(600) == 0
    assert not (tmp_path / "other" / "training.json").exists()
