"""Running fairseq's commands as a user does, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from programs import PYTHON, VENV

TINY = [
    *("--encoder-layers", "1", "--decoder-layers", "1", "--encoder-embed-dim", "16", "--decoder-embed-dim", "16"),
    *("--encoder-ffn-embed-dim", "32", "--decoder-ffn-embed-dim", "32"),
    *("--encoder-attention-heads", "2", "--decoder-attention-heads", "2"),
]
TRAINING = [
    *("--optimizer", "adam", "--lr", "0.01", "--max-tokens", "500", "--seed", "1", "--cpu"),
    *("--log-format", "json", "--log-interval", "1", "--no-epoch-checkpoints"),
]
EVAL_BLEU = ["--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 10}', "--eval-bleu-print-samples"]


class Trained(NamedTuple):
    """A folder with checkpoints (read-only), and what the training wrote to its streams."""

    folder: Path
    output: str
    errors: str


def run(command: list, check: bool = True, **environment: str) -> subprocess.CompletedProcess:
    """Run a command with both streams captured as text; ``environment`` is added to ours.

    Raises:
        AssertionError: ``check`` is set and the exit code is not 0; the message ends with the command's output.
    """
    process = subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=300)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)  # its workers, too
        raise
    if check:
        assert process.returncode == 0, f"{command} exited with {process.returncode}:\n{output}\n{errors[-4000:]}"
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def script(name: str) -> list:
    """A console script of this environment, such as ``fairseq-train``."""
    return [VENV / "bin" / name]


def module(name: str) -> list:
    """``python -m name``."""
    return [PYTHON, "-m", name]


def torchrun(processes: int) -> list:
    """The start of a command that runs the ``fairseq-train`` script in several processes."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    return [*start, Path(sys.executable).with_name("fairseq-train")]


def training(data: Path, folder: Path, *options: str) -> list:
    """Arguments of fairseq-train for a tiny translation model."""
    return [data, "--save-dir", folder, "--arch", "transformer", *TINY, *TRAINING, *options]


def losses(log: str, kind: str = "train_inner") -> list[str]:
    """The losses of all lines of a kind (``train_inner``: every update; ``valid``) in a log in JSON format."""
    key = "valid_loss" if kind == "valid" else "loss"
    lines = [line.partition(f"| {kind} | ")[2] for line in log.splitlines()]
    return [json.loads(line)[key] for line in lines if line]


def hypotheses(output: str) -> list[str]:
    """The translations printed by fairseq-generate or fairseq-interactive, by number of the sentence."""
    lines = [line.split("\t") for line in output.splitlines() if line.startswith("H-")]
    return [words for _, _, words in sorted(lines, key=lambda line: int(line[0][2:]))]
