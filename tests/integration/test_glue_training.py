"""GLUE's metrics and --warmup-ratio through fairseq-train: one process, two processes, a run that was killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from programs import PYTHON

import embinit_fairseq  # noqa: F401  the architecture, for a checkpoint that is loaded here

USER_DIR = Path(__file__).resolve().parents[2] / "embinit_fairseq"
EPOCHS, BATCH, WARMUP, PEAK = 2, 7, 0.1, 0.02
BATCHES = 35  # of 240 pairs; an odd number, as that of the 9 validation batches: one of two workers gets one less
UPDATES = EPOCHS * 18

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def grades(sentiment, tmp_path_factory):
    """The pairs of sentences with a grade to predict: how often `good` is in the first, and a bit for each `w1`."""
    folder = tmp_path_factory.mktemp("grades") / "bin"
    shutil.copytree(sentiment / "bin", folder)
    for split in ("train", "valid"):
        lines = [line.split() for line in (sentiment / f"{split}.input0").read_text().splitlines()]
        grade = [f"{line.count('good') + line.count('w1') / 5}\n" for line in lines]
        (folder / "label" / f"{split}.label").write_text("".join(grade))
    return folder


def options(data, folder, *extra):
    words = f"""{data} --user-dir {USER_DIR} --task sentence_prediction --arch embinit_classifier
        --encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-layers 1 --encoder-attention-heads 2 --dropout 0
        --init-token 0 --separator-token 2 --criterion sentence_prediction_metrics --maximize-best-checkpoint-metric
        --optimizer adam --lr {PEAK} --lr-scheduler polynomial_decay_epochs --warmup-ratio {WARMUP}
        --max-epoch {EPOCHS} --batch-size {BATCH} --required-batch-size-multiple 1 --cpu --num-workers 0
        --save-dir {folder} --log-format json --log-interval 1 --no-epoch-checkpoints"""
    return [*words.split(), *extra]


def run(*command, python=PYTHON):
    done = subprocess.run([python, "-m", *map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def records(done, kind):
    """The JSON records of a kind in a log, by number of updates."""
    lines = [line.partition(f"| {kind} | ")[2] for line in (done.stdout + done.stderr).splitlines()]
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return {int(record.get("num_updates") or record["valid_num_updates"]): record for record in found}


REGRESSION = ["--regression-target", "--num-classes", "1", "--best-checkpoint-metric", "spearman"]


@pytest.fixture(scope="module")
def alone(grades, tmp_path_factory):
    """The folder and the output of a run of one process that accumulates two batches for an update."""
    folder = tmp_path_factory.mktemp("alone")
    extra = [*REGRESSION, "--update-freq", "2", "--save-interval-updates", "25"]
    return folder, run("fairseq_cli.train", *options(grades, folder, *extra))


def test_rates_follow_the_epochs(alone):
    """The rate after n updates: rising from 0 for int(36 * 0.1) updates, then falling to 0 at the end of epoch 2."""
    warmup = int(UPDATES * WARMUP)
    logged = {update: float(record["lr"]) for update, record in records(alone[1], "train_inner").items()}
    assert set(logged) == set(range(1, UPDATES + 1))
    for update, rate in logged.items():
        expected = PEAK * (update / warmup if update <= warmup else (UPDATES - update) / (UPDATES - warmup))
        assert rate == pytest.approx(expected, rel=1e-5)  # logged with six digits


def test_metrics_are_those_of_the_whole_set(alone, grades):
    """All 60 pairs in one batch through the last checkpoint, correlated by numpy; the best checkpoint is the best."""
    from fairseq import checkpoint_utils

    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(alone[0] / "checkpoint_last.pt")], {"data": str(grades)}
    )
    samples = task.load_dataset("valid")
    batch = samples.collater([samples[at] for at in range(len(samples))])
    with torch.no_grad():
        head = "sentence_classification_head"
        predictions = model.eval()(**batch["net_input"], classification_head_name=head)[0].view(-1).double().numpy()
    targets = batch["target"].view(-1).double().numpy()
    logged = records(alone[1], "valid")
    ranks = [[np.sum(x < v) + (np.sum(x == v) + 1) / 2 for v in x] for x in (predictions, targets)]
    assert len(predictions) == 60
    assert float(logged[UPDATES]["valid_pearson"]) == pytest.approx(
        100 * np.corrcoef(predictions, targets)[0, 1], abs=0.01
    )
    assert float(logged[UPDATES]["valid_spearman"]) == pytest.approx(100 * np.corrcoef(*ranks)[0, 1], abs=0.01)
    best = torch.load(alone[0] / "checkpoint_best.pt", weights_only=True, map_location="cpu")["extra_state"]
    assert best["val_loss"] == max(float(record["valid_spearman"]) for record in logged.values())


def test_two_workers_equal_one(alone, grades, tmp_path):
    torchrun = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "fairseq_cli.train"]
    workers = ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    done = run(*torchrun, *options(grades, tmp_path, *REGRESSION, *workers), python=sys.executable)
    for kind, keys in (("train_inner", ["lr"]), ("valid", ["valid_loss", "valid_pearson", "valid_spearman"])):
        one, two = records(alone[1], kind), records(done, kind)
        # validated once more by `alone`, where it saved in the middle of an epoch
        assert set(two) == set(one) - {25 if kind == "valid" else None}
        for update, key in ((update, key) for update in two for key in keys):
            assert float(two[update][key]) == pytest.approx(float(one[update][key]), abs=0.02), (update, key)


def test_a_killed_run_goes_on_with_the_same_rates(alone, grades, tmp_path):
    """From the checkpoint in the middle of epoch 2, which also holds the meters of a validation."""
    shutil.copy(alone[0] / "checkpoint_2_25.pt", tmp_path / "checkpoint_last.pt")
    done = run("fairseq_cli.train", *options(grades, tmp_path, *REGRESSION, "--update-freq", "2"))
    for kind in ("train_inner", "valid"):
        before, after = records(alone[1], kind), records(done, kind)
        assert set(after) == {update for update in before if update > 25}
        for update, record in after.items():
            timeless = [key for key in record if not key.endswith(("wps", "ups", "wall"))]
            assert {key: record[key] for key in timeless} == {key: before[update][key] for key in timeless}
