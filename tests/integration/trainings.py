"""A tiny translation model's training, and what is looked at after one: losses, models, a run that was killed."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import torch
from programs import PYTHON

from embinit_fairseq.checkpoints.loading import load_checkpoint

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN = ["--user-dir", str(REPOSITORY / "embinit_fairseq")]
TRAIN = [
    *(*PLUGIN, "--task", "translation", "--arch", "transformer_iwslt_de_en"),
    *("--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "8", "--encoder-layers", "1"),
    *("--decoder-embed-dim", "8", "--decoder-ffn-embed-dim", "8", "--decoder-layers", "1"),
    *("--encoder-attention-heads", "2", "--decoder-attention-heads", "2"),
    *("--optimizer", "adam", "--lr", "0.005", "--batch-size", "20", "--required-batch-size-multiple", "1", "--cpu"),
    *("--log-format", "json", "--log-interval", "1", "--num-workers", "0", "--no-epoch-checkpoints"),
]
SAVE_OFTEN = ["--save-interval-updates", "4", "--keep-interval-updates", "1"]


def command(data, run, *flags):
    return [PYTHON, "-m", "fairseq_cli.train", str(data), *TRAIN, "--save-dir", str(run), *flags]


def train(data, run, *flags):
    return run_to_end(command(data, run, *flags))


def train_command(data, *flags):
    """fairseq-train with the plugin and these flags alone."""
    return [PYTHON, "-m", "fairseq_cli.train", str(data), *PLUGIN, *map(str, flags)]


def binarise(folder, destination, name="", *flags, splits=("train", "valid")):
    """fairseq-preprocess of the texts SPLIT.NAME; without a name, of the pair of languages that flags say."""
    texts = [f"--{split}pref={folder / split}{'.' if name else ''}{name}" for split in splits]
    one = ["--only-source"] if name else []
    command_line = [PYTHON, "-m", "fairseq_cli.preprocess", *one, *texts, *flags, f"--destdir={destination}"]
    subprocess.run(command_line, check=True, capture_output=True)


def in_two_processes(command_line, store):
    """Run a training as two processes, as torchrun would start them, and return its log. store: a new file."""
    words = "--distributed-backend gloo --distributed-world-size 2 --distributed-no-spawn".split()
    words += ["--distributed-init-method", f"file://{store}", "--distributed-rank"]
    other = subprocess.Popen([*command_line, *words, "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        log = run_to_end([*command_line, *words, "0"])
        assert other.wait(timeout=600) == 0
        return log
    finally:
        other.kill()
        other.wait()


def run_to_end(command_line):
    """The log of a training that must succeed."""
    done = subprocess.run(command_line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    return done.stderr + done.stdout


def losses(log):
    """("train" or "valid", num_updates) -> loss of every training update and every validation."""
    found = {}
    for line in log.splitlines():
        head, _, body = line.rpartition(" | ")
        numbers = json.loads(body) if body.startswith('{"') else {}
        if head.endswith("train_inner"):
            found["train", numbers["num_updates"]] = numbers["loss"]
        elif "valid_loss" in numbers:
            found["valid", numbers["valid_num_updates"]] = numbers["valid_loss"]
    return found


def model_of(path):
    return load_checkpoint(path)["model"]


def same(one, other):
    return set(one) == set(other) and all(torch.equal(one[key], other[key]) for key in one)


def kill_9_and_resume(arguments, folder, at_update):
    """Losses of a run that was killed at an update and started again: those of a whole run, as its final model is."""
    whole = losses(run_to_end([*arguments, "--save-dir", str(folder / "whole")]))
    rest = killed_and_resumed([*arguments, "--save-dir", str(folder / "killed")], at_update)
    assert all(whole[key] == loss for key, loss in rest.items())
    assert same(*(model_of(folder / run / "checkpoint_last.pt") for run in ("whole", "killed")))
    return rest


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


def killed_and_resumed(command_line, at_update):
    """Kill a training with signal 9 after an update; -> the losses of a second start."""
    python, _, program, *arguments = command_line
    assert program == "fairseq_cli.train"
    killed = subprocess.run([python, "-c", KILLED.replace("UPDATE", str(at_update)), *arguments], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    rest = losses(run_to_end(command_line))
    assert min(int(updates) for _, updates in rest) > 1, "it started anew"
    return rest


def validation_loss(data, checkpoint):
    """Mean cross-entropy a token (base e) of the validation text, in double precision."""
    from fairseq import checkpoint_utils

    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], {"data": str(data)})
    task.load_dataset("valid")
    samples = task.dataset("valid")
    batch = samples.collater([samples[at] for at in range(len(samples))])
    model = model.double().eval()
    logits = model(**batch["net_input"])[0].transpose(1, 2)
    return float(torch.nn.functional.cross_entropy(logits, batch["target"], ignore_index=1))
