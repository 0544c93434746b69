"""`--embed-init` through real trainings: the numbers they start with, two processes, freezing, what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from trainings import command, losses, model_of, train, validation_loss

from embinit_fairseq.init.report import unpack_rows

pytestmark = pytest.mark.end_to_end
TABLE = "encoder.embed_tokens.weight"


def test_same_seed_same_numbers_and_strategies_differ_in_the_slots_only(toy_translation, vectors, tmp_path):
    paths = ["--embed-init-path", *vectors]
    still = ["--max-update", "1", "--lr", "0"]  # the checkpoint of update 0
    models, logs = {}, {}
    for strategy in ("xavier", "pretrained", "shuffled"):
        train(toy_translation, tmp_path / strategy, "--embed-init", strategy, *paths, *still)
        models[strategy] = model_of(tmp_path / strategy / "checkpoint_last.pt")
    for strategy in ("pretrained", "shuffled"):
        differ = {key for key, value in models["xavier"].items() if not torch.equal(value, models[strategy][key])}
        assert differ == {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}
    for run in ("one", "two"):
        logs[run] = losses(train(toy_translation, tmp_path / run, "--embed-init", "xavier", "--max-epoch", "1"))
    assert logs["one"] == logs["two"]
    assert len(logs["one"]) == 11


def test_two_processes_equal_one_with_twice_the_update_freq(toy_translation, vectors, tmp_path):
    flags = ["--embed-init", "pretrained", "--embed-init-path", *vectors, "--embed-init-freeze", "decoder:known:3"]
    flags += ["--max-epoch", "2", "--batch-size", "10", "--dropout", "0"]
    one = losses(train(toy_translation, tmp_path / "one", *flags, "--update-freq", "2"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29611", "-m"]
    two = [*torchrun, *command(toy_translation, tmp_path / "two", *flags)[2:]]
    two += ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    done = subprocess.run(two, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    both = losses(done.stderr + done.stdout)
    assert set(one) == set(both)
    for key in one:
        assert float(one[key]) == pytest.approx(float(both[key]), abs=2e-3 + 1e-6), key  # printed with 3 digits
    # the log has three digits; the last checkpoints' losses in full
    exact = [validation_loss(toy_translation, tmp_path / run / "checkpoint_last.pt") for run in ("one", "two")]
    assert exact[0] == pytest.approx(exact[1], rel=0, abs=1e-6)
    assert len(list((tmp_path / "two").glob("embed_init.json*"))) == 1


def test_frozen_tables_and_rows_do_not_move(in_process, vectors, tmp_path):
    flags = ["--embed-init", "pretrained", "--embed-init-path", *vectors, "--weight-decay", "0.1"]
    begin = in_process(tmp_path / "begin", *flags, "--max-update", "1", "--lr", "0")
    record = json.loads((tmp_path / "begin" / "embed_init.json").read_text())["slots"]["encoder"]
    known = unpack_rows(record["known_rows"], record["rows"])
    assert 30 < known.sum() < len(known) - 10

    whole = in_process(tmp_path / "slot", *flags, "--max-update", "6", "--embed-init-freeze", "encoder")
    assert torch.equal(whole[TABLE], begin[TABLE])
    assert not torch.equal(whole["decoder.embed_tokens.weight"], begin["decoder.embed_tokens.weight"])

    rows = in_process(tmp_path / "rows", *flags, "--max-update", "6", "--embed-init-freeze", "encoder:known")
    moved = (rows[TABLE] != begin[TABLE]).any(1).numpy()
    assert not moved[known].any()
    assert moved[~known].sum() > 5

    until = in_process(tmp_path / "until", *flags, "--max-update", "4", "--embed-init-freeze", "encoder:4")
    assert torch.equal(until[TABLE], begin[TABLE])
    after = in_process(tmp_path / "after", *flags, "--max-update", "5", "--embed-init-freeze", "encoder:4")
    assert not torch.equal(after[TABLE], begin[TABLE])
    free = in_process(tmp_path / "free", *flags, "--max-update", "4")
    assert (free[TABLE] != begin[TABLE]).any(1).numpy()[known].sum() > 20


def test_a_report_that_cannot_be_written_stops_the_training(toy_translation, tmp_path):
    run = tmp_path / "run"
    (run / "embed_init.json").mkdir(parents=True)  # os.replace cannot put a file over a directory
    flags = command(toy_translation, run, "--embed-init", "xavier", "--max-update", "1")
    done = subprocess.run(flags, capture_output=True, text=True)
    assert done.returncode != 0
    assert f"--save-dir {run}/embed_init.json: there is a folder of this name; choose another --save-dir" in done.stderr
    assert not [name for name in os.listdir(run) if name.endswith(".tmp")]


def test_finetune_from_model_is_refused(toy_translation, tmp_path):
    flags = ["--embed-init", "xavier", "--finetune-from-model", str(tmp_path / "old.pt")]
    done = subprocess.run(command(toy_translation, tmp_path / "run", *flags), capture_output=True, text=True)
    assert done.returncode != 0
    assert "--finetune-from-model" in done.stderr
    assert "drop one of the flags" in done.stderr
