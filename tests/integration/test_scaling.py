"""docs/scaling.md in small: two processes on a CPU, started by torchrun and by (an imitation of) SLURM,
train like one process that takes two batches for an update."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

VENV = Path(sys.prefix)  # several processes: really started, not imitated
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "wikibooks" / "train.sh"
UPDATES = 4

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]

TRAIN = {"UPDATES": str(UPDATES), "SAVE_EVERY": str(UPDATES), "BATCH": "8", "DEVICE_BATCH": "4"}
OPTIONS = """--arch tupe_tiny --dropout 0 --attention-dropout 0 --warmup-updates 1 --lr 0.01 --tokens-per-sample 32
    --encoder-layers 1 --encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-attention-heads 2""".split()

#: what srun does, as far as fairseq can tell: a copy of the program for each task, with its number
SRUN = """\
#!/usr/bin/env bash
export SLURM_STEP_NODELIST=localhost SLURM_NNODES=1 SLURM_NTASKS=2 SLURM_NTASKS_PER_NODE=2 SLURM_NODEID=0
SLURM_PROCID=1 SLURM_LOCALID=1 "$@" &
SLURM_PROCID=0 SLURM_LOCALID=0 "$@"
wait
"""
SCONTROL = '#!/usr/bin/env bash\n[[ "$1 $2" == "show hostnames" ]] && echo "$3"\n'


@pytest.fixture(scope="module")
def data(monolingual: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What prepare.sh would have made, as far as train.sh looks at it."""
    folder = tmp_path_factory.mktemp("scaling")
    shutil.copytree(monolingual, folder / "bin")
    return folder


def start(data: Path, run: Path, *options: str, **variables: str) -> subprocess.Popen:
    outer = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "MASTER_"))}
    outer |= {"VENV": str(VENV), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "DATA": str(data), "RUN": str(run)}
    command = ["bash", str(SCRIPT), *OPTIONS, *options]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env={**outer, **TRAIN, **variables}, **pipe)


def loss(run: Path, started: subprocess.Popen, update_freq: int, devices: int) -> float:
    """Of the one validation, which one process alone prints."""
    said = started.communicate()[0]
    log = (run / "train.log").read_text() if (run / "train.log").is_file() else ""
    assert started.returncode == 0, said + log
    assert f"--update-freq {update_freq} " in json.loads((run / "training.json").read_text())["command"]
    assert f"training on {devices} devices" in log
    found = [json.loads(line.partition("| valid | ")[2]) for line in log.splitlines() if "| valid | " in line]
    assert [int(record["valid_num_updates"]) for record in found] == [UPDATES]
    return float(found[0]["valid_loss"])


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    run = tmp_path_factory.mktemp("alone")
    return loss(run, start(data, run), update_freq=2, devices=1)


def test_two_tasks_of_slurm_train_like_one_process(data, alone, tmp_path):
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    options = ["--distributed-world-size", "2", "--distributed-port", "29617"]
    started = start(data, tmp_path, *options, DEVICES="2", LAUNCH="srun", PATH=path)
    assert loss(tmp_path, started, update_freq=1, devices=2) == pytest.approx(alone, abs=2e-3)


def test_a_second_machine_trains_along_and_leaves_the_records_to_the_first(data, alone, tmp_path):
    """As on two machines without SLURM: train.sh by torchrun on each, the second with WORKER=1."""
    torchrun = "torchrun --nnodes 2 --nproc-per-node 1 --master-addr localhost --master-port 29618 --no-python"
    launch = {rank: {"DEVICES": "2", "LAUNCH": f"{torchrun} --node-rank {rank}"} for rank in (0, 1)}
    second = start(data, tmp_path / "other", WORKER="1", **launch[1])
    first = start(data, tmp_path, **launch[0])
    assert loss(tmp_path, first, update_freq=1, devices=2) == pytest.approx(alone, abs=2e-3)
    said = second.communicate()[0]
    assert second.returncode == 0, said
    assert not (tmp_path / "other" / "training.json").exists()
