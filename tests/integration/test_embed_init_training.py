"""`--embed-init` in real trainings: started, killed, continued, frozen, in two processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from programs import PYTHON
from trainings import (
    REPOSITORY,
    SAVE_OFTEN,
    command,
    in_two_processes,
    kill_9_and_resume,
    model_of,
    train,
    validation_loss,
)

from embinit_fairseq.checkpoint_file import initialisation_record
from embinit_fairseq.checkpoints.loading import load_checkpoint
from embinit_fairseq.errors import OptionError
from embinit_fairseq.init.init_report import unpack_rows

pytestmark = pytest.mark.end_to_end
ENCODER, DECODER = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
XAVIER = ["--embed-init", "xavier"]


@pytest.fixture(scope="module")
def here(toy_translation):
    """fairseq-train inside this process: run, flags -> final model."""
    import fairseq_cli.train

    def train_here(run, *flags, data=toy_translation):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", command(data, run, *flags)[2:])
            fairseq_cli.train.cli_main()
        return model_of(run / "checkpoint_last.pt")

    return train_here


def report_of(run):
    return initialisation_record(load_checkpoint(run / "checkpoint_last.pt"))


def known_rows(run, slot="encoder"):
    record = json.loads((run / "embed_init.json").read_text())["slots"][slot]
    return unpack_rows(record["known_rows"], record["rows"])


def test_start_resume_generate_without_the_vectors(here, toy_translation, vectors, tmp_path, caplog):
    copies = {slot: shutil.copy(path, tmp_path / f"{slot}.vec") for slot, path in (text.split("=") for text in vectors)}
    paths, run = [f"{slot}={path}" for slot, path in copies.items()], tmp_path / "run"
    flags = ["--embed-init", "pretrained_xavier", "--embed-init-path", *paths, "--max-epoch"]
    caplog.set_level("INFO")
    here(run, *flags, "1")
    assert "init:pretrained_xavier|src:encoder.vec|dim:8|cov:" in caplog.text
    report = json.loads((run / "embed_init.json").read_text())
    assert report["slots"]["encoder"]["rows_by_rule"]["exact"] > 30
    assert report_of(run) == report
    for path in (*copies.values(), run / "embed_init.json"):  # the checkpoint knows
        Path(path).unlink()
    here(run, *flags, "2")
    assert "no vectors are read" in caplog.text
    assert report_of(run) == report
    # a stock model needs no --user-dir
    generate = [PYTHON, "-m", "fairseq_cli.generate", str(toy_translation), "--path", str(run / "checkpoint_last.pt")]
    done = subprocess.run([*generate, "--max-len-b", "10", "--cpu"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.count("\nH-")) == (0, 20), done.stderr


def test_kill_9_and_resume_gives_the_same_losses(toy_translation, vectors, tmp_path):
    flags = ["--embed-init", "shuffled", "--embed-init-path", *vectors, "--embed-init-freeze", "encoder:known"]
    arguments = command(toy_translation, tmp_path, *flags, "--max-epoch", "2", *SAVE_OFTEN)
    assert ("valid", "20") in kill_9_and_resume(arguments, tmp_path, at_update=14)


def test_two_processes_equal_one_with_twice_the_update_freq(toy_translation, vectors, tmp_path):
    flags = ["--embed-init", "pretrained", "--embed-init-path", *vectors, "--embed-init-freeze", "decoder:known:3"]
    flags += ["--max-epoch", "1", "--batch-size", "10", "--dropout", "0"]
    train(toy_translation, tmp_path / "one", *flags, "--update-freq", "2")
    two = command(toy_translation, tmp_path / "two", *flags, "--ddp-backend", "legacy_ddp")
    in_two_processes(two, tmp_path / "store")
    one, both = (validation_loss(toy_translation, tmp_path / run / "checkpoint_last.pt") for run in ("one", "two"))
    assert one == pytest.approx(both, rel=0, abs=1e-6)
    assert len(list((tmp_path / "two").glob("embed_init.json*"))) == 1


def test_frozen_rows_and_a_run_that_continues_with_other_freezes(here, vectors, tmp_path, caplog):
    init = ["--weight-decay", "0.1", "--embed-init", "pretrained", "--embed-init-path"]
    begin = here(tmp_path / "begin", *init, *vectors, "--max-update", "1", "--lr", "0")
    rows, run = known_rows(tmp_path / "begin", "decoder"), tmp_path / "run"
    assert 30 < rows.sum() < len(rows) - 10

    def moved(model, matrix):
        return (model[matrix] != begin[matrix]).any(1).numpy()

    for updates in (4, 5):  # the second call continues
        freeze = ["--embed-init-freeze", "encoder:4", "decoder:known", "--max-update", str(updates)]
        now = here(run, *init, *vectors, *freeze)
        assert moved(now, ENCODER).any() == (updates == 5)
        assert not moved(now, DECODER)[rows].any()
        assert moved(now, DECODER)[~rows].sum() > 5
    report = report_of(run)
    # from another folder, whose vectors are gone
    restore = ["--restore-file", str(run / "checkpoint_last.pt"), "--max-update", "6"]
    gone = (f"{text.partition('=')[0]}=nowhere/{text.rpartition('/')[2]}" for text in vectors)
    second = here(tmp_path / "second", *init, *gone, "--embed-init-freeze", "decoder:known", *restore)
    assert not moved(second, DECODER)[rows].any()
    assert "|freeze:decoder:known|" in report_of(tmp_path / "second")["slots"]["decoder"]["signature"]
    here(run, "--max-update", "6")
    assert "was started with --embed-init-freeze decoder:known; without that flag" in caplog.text
    assert report_of(run) == report
    here(run, *init, *vectors, "--max-update", "7")
    assert "was started with --embed-init-freeze decoder:known, now it is not frozen" in caplog.text


def test_a_matrix_that_was_frozen_from_the_start(here, tmp_path, caplog):
    """It cannot be trained by the same optimizer, which does not know it; but by a new one."""
    flags, run = [*XAVIER, "--embed-init-freeze"], tmp_path / "run"
    start = here(run, *flags, "encoder", "--max-update", "2")
    tune = ["--finetune-from-model", str(run / "checkpoint_last.pt"), "--max-update", "2"]
    assert not torch.equal(here(tmp_path / "tuned", *tune)[ENCODER], start[ENCODER])
    for updates in ("2", "4"):  # fine-tuned, then continued, with the other matrix frozen
        frozen = here(tmp_path / "frozen", *flags, "decoder", *tune, "--max-update", updates)
        assert torch.equal(frozen[DECODER], start[DECODER])
        assert not torch.equal(frozen[ENCODER], start[ENCODER])
    with pytest.raises(OptionError, match=r"with xavier.*drop --finetune-from-model.* or give --embed-init xavier"):
        here(tmp_path / "other", "--embed-init", "normal", *tune)
    caplog.clear()
    with pytest.raises(OptionError, match=r"--embed-init-freeze encoder, .* or add --reset-optimizer"):
        here(run, *flags, "encoder:9", "--max-update", "4")
    now = here(run, *flags, "encoder", "--no-save-optimizer-state", "--max-update", "4")
    assert torch.equal(now[ENCODER], start[ENCODER])
    assert "these rows are trained now" not in caplog.text
    assert not torch.equal(here(run, "--max-update", "6")[ENCODER], start[ENCODER])
    assert "was started with --embed-init-freeze encoder; without that flag these rows are trained now" in caplog.text


def test_a_matrix_can_be_frozen_later(here, toy_translation, tmp_path):
    run, other = tmp_path / "run", tmp_path / "data"
    start = here(run, *XAVIER, "--max-update", "2")
    for updates in ("4", "6"):  # a matrix that is frozen later stays in the optimizer's state
        now = here(run, *XAVIER, "--embed-init-freeze", "encoder", "--max-update", updates)
        assert torch.equal(now[ENCODER], start[ENCODER])
        assert not torch.equal(now[DECODER], start[DECODER])
    assert not torch.equal(here(run, *XAVIER, "--max-update", "8")[ENCODER], start[ENCODER])
    # a dictionary of the same size in another order: every word would have another word's row
    shutil.copytree(toy_translation, other)
    first, second, *lines = (other / "dict.de.txt").read_text().splitlines(keepends=True)
    (other / "dict.de.txt").write_text("".join([second, first, *lines]))
    restore = ["--restore-file", str(run / "checkpoint_last.pt"), "--max-update", "9"]
    with pytest.raises(OptionError, match=r"another dictionary.*\(encoder\).*--srcdict"):
        here(tmp_path / "new", *restore, data=other)


def test_hydra_submits_a_training_from_a_file(toy_translation, vectors, tmp_path):
    """examples/hydra/README.md, with a job of this machine instead of SLURM's; the plugin is named in the file.

    The job is a process of its own, in which neither fairseq nor the plugin has been imported.
    """
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="hydra-submitit-launcher is not installed")
    example = (REPOSITORY / "examples" / "hydra" / "from_vectors.yaml").read_text()
    named = example.replace("common:", f"common:\n  user_dir: {REPOSITORY}/embinit_fairseq")
    (tmp_path / "small.yaml").write_text(named)
    sizes = {"embed_dim": 8, "ffn_embed_dim": 8, "layers": 1, "attention_heads": 2}
    options = [f"model.{side}.{name}={size}" for side in ("encoder", "decoder") for name, size in sizes.items()]
    options += ["embed_init_options.embed_init_path=[" + ",".join(f'"{text}"' for text in vectors) + "]"]
    options += [f"task.data={toy_translation}", "common.cpu=true", "optimization.max_update=1"]
    options += ["embed_init_options.embed_init_seed=7", "hydra/launcher=submitit_local", "hydra.sweep.dir=sweep"]
    # submitit knows a job by the number of its process, which a fork of the tests' server does not keep
    program = f"import sys; sys.executable = {sys.executable!r}; import fairseq_cli.hydra_train as it; it.cli_main()"
    command_line = [PYTHON, "-c", program, "-m", "--config-dir", tmp_path, "--config-name", "small", *options]
    done = subprocess.run(command_line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    slots = report_of(tmp_path / "sweep" / "0" / "checkpoints")["slots"]
    assert {(name, slot["strategy"], slot["source"]["name"], slot["seed"]) for name, slot in slots.items()} == {
        (slot, "pretrained_xavier", f"{slot}.txt", 7) for slot in ("encoder", "decoder")
    }
    assert len([*(tmp_path / "sweep" / ".submitit").glob("*/*_result.pkl")]) == 1
