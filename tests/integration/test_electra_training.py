"""ELECTRA through real fairseq commands: pre-train, kill -9, resume, two processes, fine-tune, use from Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pre_training import (
    WORDS,
    assert_filled,
    assert_two_processes_equal_one,
    binarise_corpus,
    train_command,
    validations,
    vectors_of,
    write_corpus,
)
from trainings import SAVE_OFTEN, kill_9_and_resume, model_of, run_to_end

from embinit_fairseq.errors import OptionError
from embinit_fairseq.models.electra import ElectraModel

# Batches are made in the main thread: fairseq's workers go on masking as in the epoch they were started in, and its
# thread that reads ahead may be cut off by --max-update (exit code 134).
SMALL = """--encoder-layers 1 --encoder-embed-dim 16 --encoder-ffn-embed-dim 64 --encoder-attention-heads 2
    --attention-dropout 0 --optimizer adam --lr 0.01 --batch-size 40 --cpu --log-format json --num-workers 0
    --data-buffer-size 0 --required-batch-size-multiple 1 --no-epoch-checkpoints""".split()
GENERATOR = """--generator-layers 1 --generator-embed-dim 8 --generator-ffn-embed-dim 8
    --generator-attention-heads 2""".split()
MASKING = """--task masked_lm --criterion electra --leave-unmasked-prob 0 --random-token-prob 0
    --sample-break-mode eos --tokens-per-sample 32""".split()
CLASSES = """--task sentence_prediction --criterion sentence_prediction --num-classes 2 --init-token 0
    --max-positions 128 --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric""".split()
pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def echoes(tmp_path_factory):
    """Sentences of one word, w3 w3 w3 ..., so that a replaced one stands out: `text` to pre-train on. In `classes` the
    label is 1 if that word is of the upper half of the vocabulary; the first word is any."""
    folder, generator = tmp_path_factory.mktemp("echoes"), np.random.default_rng(0)
    for split, size in (("train", 400), ("valid", 60)):
        words = generator.integers(WORDS, size=size)
        labels = (words >= WORDS // 2).astype(int)
        first = generator.integers(WORDS, size=size)
        inputs = [f"w{one} " + " ".join([f"w{word}"] * 5) for one, word in zip(first, words)]
        write_corpus(folder, split, [" ".join([f"w{word}"] * 8) for word in words], inputs, labels)
    return binarise_corpus(folder)


def pre_training(echoes, *flags, arch="electra_tupe_tiny"):
    return train_command(echoes / "text", *SMALL, "--arch", arch, *GENERATOR, *MASKING, *flags)


def fine_tuning(echoes, *flags):
    return train_command(echoes / "classes", *SMALL, "--arch", "electra_tupe_tiny", *CLASSES, *flags)


@pytest.fixture(scope="module")
def pre_trained(echoes, tmp_path_factory):
    """-> the folder of a pre-training, its log."""
    folder = tmp_path_factory.mktemp("pre_trained")
    flags = ["--dropout", "0", "--lr", "0.003", "--batch-size", "20", "--max-epoch", "18", "--log-interval", "100"]
    flags += ["--save-dir", folder]
    return folder, run_to_end(pre_training(echoes, *flags))


def test_both_networks_learn(pre_trained):
    """More than how frequent words are, and how many tokens are replaced."""
    seen = validations(pre_trained[1])
    assert min(values["mlm_loss"] for values in seen) < math.log2(WORDS)
    assert min(values["rtd_loss"] / entropy(values["replaced"] / 100) for values in seen) < 0.85
    assert seen[-1]["loss"] == pytest.approx(seen[-1]["mlm_loss"] + 50 * seen[-1]["rtd_loss"], abs=3e-3)
    assert seen[-1]["best_loss"] == min(values["loss"] for values in seen)


def entropy(share):
    """Bits of a yes with this share."""
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)


def test_both_networks_from_python(pre_trained, echoes):
    folder, _ = pre_trained
    hub = ElectraModel.from_pretrained(str(folder), "checkpoint_best.pt", str(echoes / "text"))
    assert hub.extract_features(hub.encode("w3 w3 w3")).shape == (1, 5, 16)
    (_, probability, token), *_ = hub.fill_mask("w3 w3 w3 <mask> w3 w3 w3 w3", topk=WORDS)
    assert token in {f"w{number}" for number in range(WORDS)}
    assert probability > 1 / WORDS
    rows = [hub.encode(f"w{n} w{n} w{n} w{(n + 5) % WORDS} w{n} w{n} w{n} w{n}") for n in range(WORDS)]
    with torch.no_grad():
        replaced = hub.model.encoder.rtd_head(hub.extract_features(torch.stack(rows))).sigmoid()
    assert replaced.shape == (WORDS, 10)
    odd, others = replaced[:, 4], torch.cat([replaced[:, 1:4], replaced[:, 5:9]], dim=1)
    assert odd.mean() > 3 * others.mean()


def test_fine_tuning_takes_the_discriminator_alone(pre_trained, echoes, tmp_path):
    folder, _ = pre_trained
    start = ["--restore-file", folder / "checkpoint_last.pt", "--reset-optimizer", "--reset-dataloader"]
    run = ["--batch-size", "20", "--dropout", "0", "--log-interval", "100", "--save-dir", tmp_path]
    log = run_to_end(fine_tuning(echoes, *run, *start, "--reset-meters", "--max-update", "1", "--lr", "0"))
    assert log.count("tensors of the pre-training are left out: generator, replaced-token head") == 1
    before, model = (model_of(path / "checkpoint_last.pt") for path in (folder, tmp_path))
    assert not [key for key in model if "generator" in key or "rtd_head" in key]
    assert all(torch.equal(value, before[key]) for key, value in model.items() if key.startswith("encoder."))
    # goes on with the fine-tuned checkpoint
    log = run_to_end(fine_tuning(echoes, *run, "--max-epoch", "6", "--lr", "0.003"))
    assert "left out" not in log
    assert max(values["accuracy"] for values in validations(log)) > 80  # half of the labels are 1

    hub = ElectraModel.from_pretrained(str(tmp_path), "checkpoint_best.pt", str(echoes / "classes"))
    tokens = torch.stack([hub.encode("w1 w1 w1 w1 w1 w1"), hub.encode("w7 w1 w1 w1 w1 w1")])
    probabilities = hub.predict("sentence_classification_head", tokens).exp()
    torch.testing.assert_close(probabilities.sum(1), torch.ones(2))
    with pytest.raises(OptionError, match="no generator"):
        hub.fill_mask("w1 <mask> w1")


def test_kill_9_and_resume_gives_the_same_losses(echoes, tmp_path):
    arguments = pre_training(echoes, "--max-epoch", "3", "--log-interval", "1", *SAVE_OFTEN)
    assert ("valid", "30") in kill_9_and_resume(arguments, tmp_path, at_update=14)


@pytest.mark.parametrize("arch", ["electra_tiny", "electra_tupe_tiny"])
def test_two_processes_equal_one_with_twice_the_update_freq(echoes, tmp_path, arch):
    flags = ["--max-epoch", "2", "--dropout", "0", "--batch-size", "20", "--log-interval", "1"]
    one, two = map(validations, assert_two_processes_equal_one(pre_training(echoes, *flags, arch=arch), tmp_path))
    for values, others in zip(one, two):
        for name in ("mlm_loss", "rtd_loss", "mlm_accuracy", "replaced", "rtd_recall", "rtd_original"):
            assert values[name] == pytest.approx(others[name], abs=2e-3), name


def test_embed_init_fills_the_shared_table(echoes, tmp_path):
    init = ["--embed-init", "pretrained", "--embed-init-path", f"encoder={vectors_of(tmp_path)}"]
    run_to_end(pre_training(echoes, *init, "--max-update", "1", "--lr", "0", "--save-dir", tmp_path / "run"))
    model = model_of(tmp_path / "run" / "checkpoint_last.pt")
    for key in ("encoder.sentence_encoder.embed_tokens.weight", "generator.lm_head.weight"):
        assert_filled(model[key], echoes / "text" / "dict.txt")
