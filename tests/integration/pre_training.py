"""The trainings that tests/integration shares: their data, their commands, and what is compared after them.

ARCHITECTURES says what is trained; an architecture joins the contract of test_architectures_training.py by an entry.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from programs import PYTHON
from trainings import run_to_end

from embinit_fairseq.models.duo_classifier import DuoClassifier
from embinit_fairseq.models.duo_transformer import DuoTransformerModel
from embinit_fairseq.models.electra import ElectraModel
from embinit_fairseq.models.embinit_classifier import EmbinitClassifier
from embinit_fairseq.models.tupe import TupeModel
from embinit_fairseq.models.tupe_transformer import TupeTransformerModel

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN = ["--user-dir", str(REPOSITORY / "embinit_fairseq")]
WORDS = 12
FROM_ANOTHER_RUN = "--reset-optimizer --reset-dataloader --reset-meters".split()
# Batches are made in the main thread: fairseq's thread that reads ahead would draw masks at the same time.
TRAINING = """--optimizer adam --batch-size 40 --required-batch-size-multiple 1 --cpu --log-format json
    --log-interval 1 --num-workers 0 --data-buffer-size 0""".split()


def train_command(data, *flags):
    return [PYTHON, "-m", "fairseq_cli.train", str(data), *PLUGIN, *map(str, flags)]


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


def binarise(folder, destination, name="", *flags, splits=("train", "valid")):
    """fairseq-preprocess of the texts SPLIT.NAME; without a name, of the pair of languages that flags say."""
    texts = [f"--{split}pref={folder / split}{'.' if name else ''}{name}" for split in splits]
    one = ["--only-source"] if name else []
    command_line = [PYTHON, "-m", "fairseq_cli.preprocess", *one, *texts, *flags, f"--destdir={destination}"]
    subprocess.run(command_line, check=True, capture_output=True)


def write(folder, split, **columns):
    for name, lines in columns.items():
        (folder / f"{split}.{name}").write_text("".join(f"{line}\n" for line in lines))


def binarise_corpus(folder):
    """`text` for masked_lm and `classes` for sentence_prediction, with one dictionary."""
    binarise(folder, folder / "text", "text")
    binarise(folder, folder / "classes" / "input0", "input0", "--srcdict", str(folder / "text" / "dict.txt"))
    binarise(folder, folder / "classes" / "label", "label")
    return folder


def ladders(folder):
    """Sentences that count up or down, w3 w4 w5 ... or w3 w2 w1 ...: a masked word follows from its neighbours and
    their order. `text` to pre-train on; in `classes` the label is the direction."""
    generator = np.random.default_rng(0)
    for split, size in (("train", 160), ("valid", 60)):
        steps = 2 * generator.integers(2, size=size) - 1
        rows = (generator.integers(WORDS, size=(size, 1)) + steps[:, None] * np.arange(7)) % WORDS
        lines = [" ".join(f"w{word}" for word in row) for row in rows]
        write(folder, split, text=lines, input0=lines, label=(steps + 1) // 2)
    return binarise_corpus(folder)


def reversed_words(folder):
    """2 to 6 words out of 12, English one word per German word in reversed order; one dictionary. `text` is it."""
    generator = np.random.default_rng(1)
    for split, sentences in (("train", 600), ("valid", 40), ("test", 40)):
        rows = [generator.integers(0, WORDS, size=generator.integers(2, 7)) for _ in range(sentences)]
        german = [" ".join(f"d{word}" for word in row) for row in rows]
        write(folder, split, de=german, en=[" ".join(f"e{word}" for word in row[::-1]) for row in rows])
    flags = ["-s", "de", "-t", "en", "--joined-dictionary"]
    binarise(folder, folder / "text", "", *flags, splits=("train", "valid", "test"))
    return folder


def pairs(folder):
    """Pairs of sentences whose label is whether the first holds `good`; `bin` is for sentence_prediction."""
    generator, words = np.random.default_rng(0), np.array(["good", "bad", *(f"w{i}" for i in range(12))])
    for split, size in (("train", 240), ("valid", 60)):
        first, second = (words[generator.integers(1, len(words), size=(size, length))].tolist() for length in (6, 3))
        labels = generator.integers(2, size=size)
        for row in np.flatnonzero(labels):
            first[row][generator.integers(6)] = "good"
        write(folder, split, input0=map(" ".join, first), input1=map(" ".join, second), label=labels)
    for column in ("input0", "input1", "label"):
        same = ["--srcdict", str(folder / "bin" / "input0" / "dict.txt")] if column == "input1" else []
        binarise(folder, folder / "bin" / column, column, *same)
    return folder


MASKED_LM = """--task masked_lm --sample-break-mode eos --tokens-per-sample 32 --max-positions 32
    --encoder-embed-dim 16 --encoder-attention-heads 2"""
CLASSES = """--task sentence_prediction --num-classes 2 --separator-token 2 --criterion sentence_prediction_metrics
    --glue-metrics accuracy mcc --best-checkpoint-metric mcc --maximize-best-checkpoint-metric"""


class Architecture(NamedTuple):
    """What is trained: on which data, with which flags."""

    model: type
    data: Callable  # writes it into a folder
    place: str  # of the binarised data in that folder
    flags: str
    no_dropout: str = "--dropout 0"  # in a training without random numbers
    ddp: str = "pytorch_ddp"  # fairseq's default, which does not forgive parameters without a part in the loss

    def command(self, folder, *flags):
        """fairseq-train on this data; flags given here win."""
        return train_command(folder / self.place, *TRAINING, *self.flags.split(), *flags)


NO_DROPOUT = "--dropout 0 --attention-dropout 0"
ARCHITECTURES = {
    "tupe": Architecture(
        *(TupeModel, ladders, "text"),
        f"""{MASKED_LM} --arch tupe_tiny --rel-pos --criterion masked_lm --encoder-layers 2
            --encoder-ffn-embed-dim 32 --embedding-normalize --dropout 0 --lr 0.01 --batch-size 16""",
        *(NO_DROPOUT, "legacy_ddp"),
    ),
    "electra": Architecture(
        *(ElectraModel, ladders, "text"),
        f"""{MASKED_LM} --arch electra_tupe_tiny --criterion electra --encoder-layers 1 --encoder-ffn-embed-dim 64
            --generator-layers 1 --generator-embed-dim 8 --generator-ffn-embed-dim 8 --generator-attention-heads 2
            --leave-unmasked-prob 0 --random-token-prob 0 --dropout 0 --lr 0.003 --batch-size 10""",
        *(NO_DROPOUT, "legacy_ddp"),
    ),
    "duo_transformer": Architecture(
        *(DuoTransformerModel, reversed_words, "text"),
        "--task translation --arch duo_transformer_tiny --share-all-embeddings --lr 0.003",
    ),
    "tupe_transformer": Architecture(
        *(TupeTransformerModel, reversed_words, "text"),
        """--task translation --arch tupe_transformer --rel-pos --encoder-layers 1 --decoder-layers 1 --dropout 0.1
            --encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-attention-heads 4 --decoder-attention-heads 4
            --lr 0.005""",
    ),
    "embinit_classifier": Architecture(
        *(EmbinitClassifier, pairs, "bin"),
        f"""{CLASSES} --arch embinit_classifier --init-token 0 --encoder-embed-dim 8 --encoder-ffn-embed-dim 16
            --encoder-layers 1 --encoder-attention-heads 2 --batch-size 24 --lr 0.02""",
    ),
    "duo_classifier": Architecture(
        *(DuoClassifier, pairs, "bin"),
        f"""{CLASSES} --arch duo_classifier --encoder-dim-s 5 --encoder-dim-p 8 --duo-ffn-dim 16
            --dropout 0.1 --batch-size 24 --lr 0.02""",
    ),
}


def validations(log):
    """Metrics of every validation in a log."""
    lines = [line.partition("| valid | ")[2] for line in log.splitlines()]
    return [{k.removeprefix("valid_"): float(v) for k, v in json.loads(line).items()} for line in lines if line]


def validated(place, checkpoint, *flags):
    """What fairseq-validate says: metric -> value."""
    arguments = [str(place), *PLUGIN, "--path", str(checkpoint), "--batch-size", "16", "--cpu", "--log-format", "json"]
    log = run_to_end([PYTHON, "-m", "fairseq_cli.validate", *arguments, *flags])
    return validations(log)[-1]


def generated(data, checkpoint, *flags, program="generate"):
    """What fairseq-generate (or -interactive) prints with beam 4."""
    arguments = [str(data), *PLUGIN, "--path", str(checkpoint), "--beam", "4", "--cpu", *map(str, flags)]
    return run_to_end([PYTHON, "-m", f"fairseq_cli.{program}", *arguments])


def lines(output, kind):
    """Number of the sentence -> the fields of its H, A, ... line."""
    found = (line.split("\t") for line in output.splitlines() if line.startswith(f"{kind}-"))
    return {int(first.removeprefix(f"{kind}-")): rest for first, *rest in found}
