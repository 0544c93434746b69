"""Running fairseq's commands as a user does, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

try:  # in the repository of the plugin that this grew in, programs are forks of one that has imported torch
    from programs import PYTHON, VENV
except ImportError:
    PYTHON, VENV = sys.executable, Path(sys.prefix)

TINY = """--encoder-layers 1 --encoder-embed-dim 16 --encoder-ffn-embed-dim 32 --encoder-attention-heads 2
    --optimizer adam --lr 0.01 --seed 1 --cpu --log-format json --log-interval 1 --no-epoch-checkpoints""".split()
DECODER = "--decoder-layers 1 --decoder-embed-dim 16 --decoder-ffn-embed-dim 32 --decoder-attention-heads 2".split()
EVAL_BLEU = ["--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 10}', "--eval-bleu-print-samples"]


def script(name: str) -> list:
    """A console script of this environment, such as ``fairseq-train``."""
    return [VENV / "bin" / name]


def module(name: str) -> list:
    """``python -m name``."""
    return [PYTHON, "-m", name]


def translation(data: Path, folder: Path, *options) -> list:
    """Arguments of fairseq-train for a tiny translation model."""
    model = ["--arch", "transformer", *TINY, *DECODER, "--max-tokens", "500"]
    return [data, "--save-dir", folder, *model, *options]


def run(command: list, check: bool = True, cwd: Path | None = None, **environment) -> subprocess.CompletedProcess:
    """Run a command to its end; ``environment`` is added to ours, with ``check`` the command must succeed."""
    words, variables = [str(word) for word in command], {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, env=variables, cwd=cwd)
    assert not check or done.returncode == 0, f"{words} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


#: of a fairseq-train that kills itself: another process may come too late on a busy machine
KILLED = """
import os
from fairseq.trainer import Trainer
from fairseq_cli.train import cli_main
def step(trainer, *args, do=Trainer.train_step, **options):
    if trainer.get_num_updates() == UPDATE:
        os.kill(os.getpid(), 9)
    return do(trainer, *args, **options)
Trainer.train_step = step
cli_main()
"""


def kill(arguments: list, at_update: int) -> None:
    """Start a fairseq-train that is killed with signal 9 after this update."""
    done = run([PYTHON, "-c", KILLED.replace("UPDATE", str(at_update)), *arguments], check=False)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def logged(log: str, kind: str = "train_inner", what: str = "loss") -> list[str]:
    """A number of all lines of a kind (``train_inner``: every update; ``valid``) in a log in JSON format."""
    lines = [line.partition(f"| {kind} | ")[2] for line in log.splitlines()]
    return [json.loads(line)[what] for line in lines if line]


def hypotheses(output: str) -> list[str]:
    """The translations printed by fairseq-generate or fairseq-interactive, by number of the sentence."""
    lines = [line.split("\t") for line in output.splitlines() if line.startswith("H-")]
    return [words for _, _, words in sorted(lines, key=lambda line: int(line[0][2:]))]
