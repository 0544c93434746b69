"""docs/scaling.md in small: two machines train like one process that takes two batches for an update."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import VENV
from trainings import REPOSITORY

SCRIPT = REPOSITORY / "scripts" / "wikibooks" / "train.sh"
UPDATES = 4

NOT_THERE = not (VENV / "bin" / "fairseq-train").is_file()
pytestmark = [pytest.mark.end_to_end, pytest.mark.skipif(NOT_THERE, reason="fairseq is not installed beside pytest")]
TRAIN = {"UPDATES": str(UPDATES), "SAVE_EVERY": "2", "BATCH": "8", "DEVICE_BATCH": "4"}
OPTIONS = """--arch tupe_tiny --dropout 0 --attention-dropout 0 --warmup-updates 1 --lr 0.01 --tokens-per-sample 32
    --encoder-layers 1 --encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-attention-heads 2""".split()
#: starts torchrun as the process whose number is in the file
LAUNCH = 'echo $$ > "$1"; shift; exec torchrun "$@"'
#: a --user-dir that kills its process and torchrun before the fourth update
KILLS = f"""
import os
from argparse import Namespace
from fairseq.trainer import Trainer
from fairseq.utils import import_user_module

import_user_module(Namespace(user_dir={str(REPOSITORY / "embinit_fairseq")!r}))
def step(trainer, *args, do=Trainer.train_step, **options):
    if trainer.get_num_updates() == 3:
        os.kill(int(open(__file__ + ".torchrun").read()), 9)
        os.kill(os.getpid(), 9)
    return do(trainer, *args, **options)
Trainer.train_step = step
"""


def start(data: Path, run: Path, *options: object, before=(), **variables: str) -> subprocess.Popen:
    """Start train.sh. before: words in front of the command."""
    outer = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "MASTER_"))}
    outer |= {"VENV": str(VENV), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "DATA": str(data), "RUN": str(run)}
    command = [*before, "bash", str(SCRIPT), *OPTIONS, *map(str, options)]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env={**outer, **TRAIN, **variables}, **pipe)


def losses(run: Path, started: subprocess.Popen, update_freq: int, devices: int) -> dict[int, float]:
    """Return number of updates -> loss of all validations, which one process alone prints."""
    said = started.communicate()[0]
    log = (run / "train.log").read_text() if (run / "train.log").is_file() else ""
    assert started.returncode == 0, said + log
    command = json.loads((run / "training.json").read_text())["command"]
    assert f"--update-freq {update_freq} " in command
    assert ("--cpu" in command) == (devices == 1)  # what torchrun starts finds out where it runs
    assert f"training on {devices} devices" in log
    found = [json.loads(line.partition("| valid | ")[2]) for line in log.splitlines() if "| valid | " in line]
    assert [int(record["valid_num_updates"]) for record in found] == [2, UPDATES]
    return {int(record["valid_num_updates"]): float(record["valid_loss"]) for record in found}


@pytest.fixture(scope="module")
def data(monolingual: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What prepare.sh would have made, as far as train.sh looks at it."""
    folder = tmp_path_factory.mktemp("data")
    shutil.copytree(monolingual, folder / "bin")
    return folder


@pytest.fixture(scope="module")
def alone(data: Path) -> dict[int, float]:
    """Losses of one process that takes two batches for an update."""
    return losses(data / "alone", start(data, data / "alone"), update_freq=2, devices=1)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Make two network namespaces with a cable between them; none where that is not allowed.

    Yields the names of the namespaces, which are those of their interfaces, too.
    """
    names = [f"emb{os.getpid()}{end}" for end in "ab"]
    commands = [f"netns add {name}" for name in names]
    commands += [f"link add {names[0]} netns {names[0]} type veth peer {names[1]} netns {names[1]}"]
    for number, name in enumerate(names):
        commands += [f"-n {name} addr add 10.77.0.{number + 1}/24 dev {name}"]
        commands += [f"-n {name} link set {device} up" for device in (name, "lo")]
    try:
        for command in commands:
            subprocess.run(["ip", *command.split()], check=True, capture_output=True)
        yield names
    except (OSError, subprocess.CalledProcessError):
        yield []
    finally:
        if shutil.which("ip"):
            for name in names:
                subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def test_two_machines_of_which_one_is_killed_continue(hosts, data, alone, tmp_path):
    """As without SLURM: train.sh by torchrun on each, the second with WORKER=1. When one is killed the other ends by
    itself; both started again continue from the checkpoint of the second update."""
    kills, launch, run = tmp_path / "kills" / "__init__.py", tmp_path / "launch.sh", tmp_path / "run"
    kills.parent.mkdir()
    kills.write_text(KILLS)
    launch.write_text(LAUNCH)

    def both(*options_of_second: object) -> list[subprocess.Popen]:
        with socket.create_server(("localhost", 0)) as free:
            address = f"--master-addr {'10.77.0.1' if hosts else 'localhost'} --master-port {free.getsockname()[1]}"
        torchrun = f"--nnodes 2 --nproc-per-node 1 {address} --no-python --node-rank"
        places = [{"before": ["ip", "netns", "exec", name], "GLOO_SOCKET_IFNAME": name} for name in hosts] or [{}, {}]
        return [
            start(data, run, *options, DEVICES="2", LAUNCH=f"bash {launch} {number} {torchrun} {rank}", **more)
            for rank, (number, options, more) in enumerate(
                [
                    (tmp_path / "first.torchrun", (), places[0]),
                    (f"{kills}.torchrun", options_of_second, {"WORKER": "1", **places[1]}),
                ]
            )
        ]

    for process in both("--user-dir", kills.parent):
        process.communicate(timeout=600)
        assert process.returncode != 0
    first, second = both()
    assert losses(run, first, update_freq=1, devices=2) == pytest.approx(alone, abs=2e-3)
    assert "(epoch 1 @ 2 updates)" in (run / "train.log").read_text()
    assert second.wait(600) == 0
    assert len(json.loads((run / "training.json").read_text())["sessions"]) == 2  # the first machine's
