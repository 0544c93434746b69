"""GLUE's metrics and --warmup-ratio through fairseq-train: one process, two processes, a run that was killed."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from pre_training import in_two_processes, train_command
from trainings import run_to_end

EPOCHS, BATCH, WARMUP, PEAK = 2, 7, 0.1, 0.02
UPDATES = EPOCHS * 18  # of 240 pairs, two batches an update; 35 batches and 9 to validate: one of two workers gets less

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def command(sentiment, tmp_path_factory):
    """A function: folder, flags -> a training. Data are the pairs of sentences with a grade to predict: how often
    `good` is in the first, and a bit for each `w1`."""
    data = tmp_path_factory.mktemp("grades") / "bin"
    shutil.copytree(sentiment / "bin", data)
    for split in ("train", "valid"):
        lines = [line.split() for line in (sentiment / f"{split}.input0").read_text().splitlines()]
        grades = "".join(f"{line.count('good') + line.count('w1') / 5}\n" for line in lines)
        (data / "label" / f"{split}.label").write_text(grades)
    flags = f"""--task sentence_prediction --arch embinit_classifier --regression-target --num-classes 1
        --encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-layers 1 --encoder-attention-heads 2 --dropout 0
        --init-token 0 --separator-token 2 --criterion sentence_prediction_metrics --maximize-best-checkpoint-metric
        --best-checkpoint-metric spearman --optimizer adam --lr {PEAK} --lr-scheduler polynomial_decay_epochs
        --warmup-ratio {WARMUP} --max-epoch {EPOCHS} --batch-size {BATCH} --required-batch-size-multiple 1 --cpu
        --num-workers 0 --log-format json --log-interval 1 --no-epoch-checkpoints"""
    return lambda folder, *more: train_command(data, *flags.split(), "--save-dir", folder, *more)


@pytest.fixture(scope="module")
def alone(command, tmp_path_factory):
    """The folder and the log of a run of one process that accumulates two batches for an update."""
    folder = tmp_path_factory.mktemp("alone")
    return folder, run_to_end(command(folder, "--update-freq", "2", "--save-interval-updates", "25"))


def records(log, kind):
    """The JSON records of a kind in a log, by number of updates."""
    lines = [line.partition(f"| {kind} | ")[2] for line in log.splitlines()]
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return {int(record.get("num_updates") or record["valid_num_updates"]): record for record in found}


def test_rates_follow_the_epochs(alone):
    """The rate after n updates: rising from 0 for int(36 * 0.1) updates, then falling to 0 at the end of epoch 2."""
    warmup = int(UPDATES * WARMUP)
    logged = {update: float(record["lr"]) for update, record in records(alone[1], "train_inner").items()}
    assert set(logged) == set(range(1, UPDATES + 1))
    for update, rate in logged.items():
        expected = PEAK * (update / warmup if update <= warmup else (UPDATES - update) / (UPDATES - warmup))
        assert rate == pytest.approx(expected, rel=1e-5)  # logged with six digits


def test_the_best_checkpoint_is_the_best(alone):
    best = torch.load(alone[0] / "checkpoint_best.pt", weights_only=True, map_location="cpu")["extra_state"]
    assert best["val_loss"] == max(float(record["valid_spearman"]) for record in records(alone[1], "valid").values())


def test_two_workers_equal_one(alone, command, tmp_path):
    log = in_two_processes(command(tmp_path, "--ddp-backend", "legacy_ddp"), tmp_path / "store")
    for kind, keys in (("train_inner", ["lr"]), ("valid", ["valid_loss", "valid_pearson", "valid_spearman"])):
        one, two = records(alone[1], kind), records(log, kind)
        # validated once more by `alone`, where it saved in the middle of an epoch
        assert set(two) == set(one) - {25 if kind == "valid" else None}
        for update, key in ((update, key) for update in two for key in keys):
            assert float(two[update][key]) == pytest.approx(float(one[update][key]), abs=0.02), (update, key)


def test_a_killed_run_goes_on_with_the_same_rates(alone, command, tmp_path):
    """From the checkpoint in the middle of epoch 2, which also holds the meters of a validation."""
    shutil.copy(alone[0] / "checkpoint_2_25.pt", tmp_path / "checkpoint_last.pt")
    log = run_to_end(command(tmp_path, "--update-freq", "2"))
    for kind in ("train_inner", "valid"):
        before, after = records(alone[1], kind), records(log, kind)
        assert set(after) == {update for update in before if update > 25}
        for update, record in after.items():
            timeless = [key for key in record if not key.endswith(("wps", "ups", "wall"))]
            assert {key: record[key] for key in timeless} == {key: before[update][key] for key in timeless}
