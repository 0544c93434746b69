"""What the trainings of tupe_* and electra_* have in common: data, commands, comparisons."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from programs import PYTHON
from trainings import losses, model_of, run_to_end

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN = ["--user-dir", str(REPOSITORY / "embinit_fairseq")]
WORDS = 12
FROM_ANOTHER_RUN = "--reset-optimizer --reset-dataloader --reset-meters".split()


def write_corpus(folder, split, sentences, inputs, labels):
    """Plain text: `text` to pre-train on, `input0` and `label` to fine-tune on."""
    for name, lines in (("text", sentences), ("input0", inputs), ("label", labels)):
        (folder / f"{split}.{name}").write_text("".join(f"{line}\n" for line in lines))


def binarise_corpus(folder):
    """`text` for masked_lm and `classes` for sentence_prediction, with one dictionary."""
    _binarise(folder, "text", folder / "text")
    _binarise(folder, "input0", folder / "classes" / "input0", "--srcdict", str(folder / "text" / "dict.txt"))
    _binarise(folder, "label", folder / "classes" / "label")
    return folder


def _binarise(folder, name, destination, *flags):
    prefixes = [f"--{split}pref={folder / split}.{name}" for split in ("train", "valid")]
    command_line = [PYTHON, "-m", "fairseq_cli.preprocess", "--only-source", *prefixes, *flags]
    subprocess.run([*command_line, f"--destdir={destination}"], check=True, capture_output=True)


def train_command(data, *flags):
    return [PYTHON, "-m", "fairseq_cli.train", str(data), *PLUGIN, *map(str, flags)]


def in_two_processes(command_line, *ddp):
    """A training as two workers on this machine; ddp: flags of the way in which gradients are added."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m"]
    return [*torchrun, *command_line[2:], "--distributed-backend", "gloo", *ddp]


def validations(log):
    """Metrics of every validation in a log."""
    lines = [line.partition("| valid | ")[2] for line in log.splitlines()]
    return [{k.removeprefix("valid_"): float(v) for k, v in json.loads(line).items()} for line in lines if line]


def assert_two_processes_equal_one(command_line, folder):
    """The same losses and models as one process with twice the --update-freq; returns both logs."""
    logs = [
        run_to_end([*command_line, "--update-freq", "2", "--save-dir", str(folder / "one")]),
        run_to_end(in_two_processes([*command_line, "--save-dir", str(folder / "two")], "--ddp-backend", "legacy_ddp")),
    ]
    expected, got = map(losses, logs)
    assert set(expected) == set(got)
    assert len(got) == 22
    for key, loss in expected.items():
        assert abs(float(loss) - float(got[key])) <= 2e-3 + 1e-6, key  # printed with 3 digits
    models = [model_of(folder / run / "checkpoint_last.pt") for run in ("one", "two")]
    for name, value in models[0].items():
        torch.testing.assert_close(models[1][name], value, rtol=1e-4, atol=1e-5, msg=name)
    return logs


def vectors_of(folder, dim=16):
    """GloVe text with a vector for each of the words w0, w1, ...; -> its path."""
    rows = [f"w{word} " + " ".join(f"{(word + at) / 40:.3f}" for at in range(dim)) for word in range(WORDS)]
    (folder / "vectors.txt").write_text("\n".join(rows) + "\n")
    return folder / "vectors.txt"


def assert_filled(table, dictionary):
    """Every word has its vector of `vectors_of`."""
    words = [line.split()[0] for line in dictionary.read_text().splitlines()]
    for row, word in enumerate(words, start=4):
        if word.startswith("w"):
            expected = torch.tensor([(int(word[1:]) + at) / 40 for at in range(table.shape[1])])
            torch.testing.assert_close(table[row], expected, rtol=0, atol=6e-4)
