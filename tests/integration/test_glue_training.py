"""GLUE's metrics through fairseq-train: a whole run, and one that was killed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from programs import PYTHON
from trainings import run_to_end

USER_DIR = Path(__file__).resolve().parents[2] / "embinit_fairseq"
EPOCHS, PEAK = 2, 0.02
UPDATES = EPOCHS * 18  # of 240 pairs: 35 batches, two for an update

pytestmark = pytest.mark.end_to_end


def train(data, folder):
    words = f"""{data} --user-dir {USER_DIR} --task sentence_prediction --arch embinit_classifier
        --encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-layers 1 --encoder-attention-heads 2 --dropout 0
        --init-token 0 --separator-token 2 --criterion sentence_prediction_metrics --num-classes 2 --glue-metrics mcc
        --best-checkpoint-metric mcc --maximize-best-checkpoint-metric --optimizer adam --lr {PEAK}
        --lr-scheduler polynomial_decay --total-num-update {UPDATES} --warmup-updates 3 --max-epoch {EPOCHS}
        --batch-size 7 --update-freq 2 --required-batch-size-multiple 1 --cpu --num-workers 0 --save-dir {folder}
        --save-interval-updates 25 --log-format json --log-interval 1 --no-epoch-checkpoints"""
    return run_to_end([PYTHON, "-m", "fairseq_cli.train", *words.split()])


def records(log, kind):
    """The JSON records of a kind in a log, by number of updates."""
    lines = [line.partition(f"| {kind} | ")[2] for line in log.splitlines()]
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return {int(record.get("num_updates") or record["valid_num_updates"]): record for record in found}


def test_a_killed_run_continues_with_the_same_losses_and_metrics(sentiment, tmp_path):
    log = train(sentiment / "bin", tmp_path / "whole")
    assert set(records(log, "train_inner")) == set(range(1, UPDATES + 1))
    (tmp_path / "killed").mkdir()
    shutil.copy(tmp_path / "whole/checkpoint_2_25.pt", tmp_path / "killed/checkpoint_last.pt")
    rest = train(sentiment / "bin", tmp_path / "killed")
    for kind in ("train_inner", "valid"):
        before, after = records(log, kind), records(rest, kind)
        assert set(after) == {update for update in before if update > 25}
        for update, record in after.items():
            timeless = [key for key in record if not key.endswith(("wps", "ups", "wall"))]
            assert {key: record[key] for key in timeless} == {key: before[update][key] for key in timeless}
    assert "valid_mcc" in record
