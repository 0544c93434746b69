"""`--embed-init` in real trainings: started, killed, continued, frozen, in two processes."""

from __future__ import annotations

import dataclasses
import json
import os
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
    kill_9_and_resume,
    losses,
    model_of,
    same,
    train,
    validation_loss,
)

from embinit_fairseq.checkpoints.reading import initialisation_record, load_checkpoint
from embinit_fairseq.errors import DataError, OptionError, OutputError
from embinit_fairseq.expand.expansion import expand_vocabulary
from embinit_fairseq.expand.request import ExpandRequest
from embinit_fairseq.init.report import unpack_rows

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


@pytest.fixture(scope="module")
def known(vectors):
    return ["--embed-init", "pretrained", "--embed-init-path", *vectors, "--embed-init-freeze", "encoder:known"]


STARTS = {
    "plain": ["--max-update", "2"],
    "xavier": [*XAVIER, "--max-update", "2"],
    "frozen": [*XAVIER, "--embed-init-freeze", "encoder", "--max-update", "2"],
}


@pytest.fixture(scope="module")
def started(here, known, tmp_path_factory):
    """A function: name -> a copy, which may be continued, of a run that was started once, and its model."""
    folder = tmp_path_factory.mktemp("started")

    def copy_of(name, place):
        if not (folder / name).exists():
            here(folder / name, *STARTS.get(name, [*known, "--max-epoch", "1"]))
        shutil.copytree(folder / name, place)
        return model_of(place / "checkpoint_last.pt")

    return copy_of


def report_of(run):
    return initialisation_record(load_checkpoint(run / "checkpoint_last.pt"))


def known_rows(run, slot="encoder"):
    record = json.loads((run / "embed_init.json").read_text())["slots"][slot]
    return unpack_rows(record["known_rows"], record["rows"])


def test_start_resume_generate_without_the_vectors(here, toy_translation, vectors, tmp_path, caplog):
    copies = []
    for text in vectors:
        slot, path = text.split("=")
        copies.append(f"{slot}={shutil.copy(path, tmp_path / f'{slot}.vec')}")
    flags, run = ["--embed-init", "pretrained_xavier", "--embed-init-path", *copies], tmp_path / "run"
    caplog.set_level("INFO")
    here(run, *flags, "--max-epoch", "1")
    assert "init:pretrained_xavier|src:encoder.vec|dim:8|cov:" in caplog.text
    report = json.loads((run / "embed_init.json").read_text())
    assert report["slots"]["encoder"]["rows_by_rule"]["exact"] > 30
    assert report_of(run) == report
    for path in copies:
        Path(path.split("=")[1]).unlink()
    (run / "embed_init.json").unlink()  # the checkpoint knows
    here(run, *flags, "--max-epoch", "2")
    assert "no vectors are read" in caplog.text
    assert report_of(run) == report
    generate = [PYTHON, "-m", "fairseq_cli.generate", str(toy_translation), "--path", str(run / "checkpoint_last.pt")]
    # a stock model needs no --user-dir
    done = subprocess.run([*generate, "--beam", "2", "--cpu"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nH-") == 20


def test_kill_9_and_resume_gives_the_same_losses(toy_translation, vectors, tmp_path):
    flags = ["--embed-init", "shuffled", "--embed-init-path", *vectors, "--embed-init-freeze", "encoder:known"]
    arguments = command(toy_translation, tmp_path, *flags, "--max-epoch", "2", *SAVE_OFTEN)
    assert ("valid", "20") in kill_9_and_resume(arguments, tmp_path, at_update=14)


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


def test_frozen_tables_and_rows_do_not_move(here, vectors, tmp_path):
    flags = ["--embed-init", "pretrained", "--embed-init-path", *vectors, "--weight-decay", "0.1"]
    begin = here(tmp_path / "begin", *flags, "--max-update", "1", "--lr", "0")
    rows = known_rows(tmp_path / "begin", "decoder")
    assert 30 < rows.sum() < len(rows) - 10

    def moved(model, table):
        return (model[table] != begin[table]).any(1).numpy()

    freeze = ["--embed-init-freeze", "encoder", "decoder:known", "--max-update", "6"]
    held = here(tmp_path / "held", *flags, *freeze)
    assert not moved(held, ENCODER).any()
    assert not moved(held, DECODER)[rows].any()
    assert moved(held, DECODER)[~rows].sum() > 5
    until = ["--embed-init-freeze", "encoder:4", "decoder:known:4", "--max-update"]
    for update in (4, 5):
        now = here(tmp_path / "until", *flags, *until, str(update))
        assert moved(now, ENCODER).any() == (update == 5)
        assert moved(now, DECODER)[rows].any() == (update == 5)
        assert moved(now, DECODER)[~rows].any()


def test_a_continued_run_says_what_was_frozen_at_its_start(here, started, known, tmp_path, caplog):
    """Without the flag, with other rows, and from another folder whose vectors are gone."""
    first = started("known", tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    report = report_of(tmp_path / "run")
    caplog.clear()
    here(tmp_path / "run", "--max-update", "12")
    assert "was started with --embed-init-freeze encoder:known" in caplog.text
    assert report_of(tmp_path / "run") == report
    caplog.clear()
    here(tmp_path / "other", *known[:-2], "--max-update", "12")
    assert "was started with --embed-init-freeze encoder:known, now it is not frozen" in caplog.text
    gone = [f"{text}.gone" if "=" in text else text for text in known]
    started("known", tmp_path / "third")
    restore = ["--restore-file", str(tmp_path / "third" / "checkpoint_last.pt"), "--max-update", "12"]
    second = here(tmp_path / "second", *gone, *restore)
    rows = known_rows(tmp_path / "second")
    assert torch.equal(first[ENCODER][rows], second[ENCODER][rows])
    record = json.loads((tmp_path / "second" / "embed_init.json").read_text())["slots"]["encoder"]
    assert "|freeze:encoder:known|" in record["signature"]


def test_frozen_rows_are_recalled_after_a_restart(here, started, known, tmp_path):
    whole = here(tmp_path / "whole", *known, "--max-epoch", "2")
    started("known", tmp_path / "parts")
    assert same(whole, here(tmp_path / "parts", *known, "--max-epoch", "2"))


def test_a_table_that_was_frozen_from_the_start(here, started, tmp_path, caplog):
    """It cannot be trained by the same optimizer, which does not know it."""
    start, run = started("frozen", tmp_path / "run"), tmp_path / "run"
    flags = [*XAVIER, "--embed-init-freeze"]
    for other in ([], XAVIER, [*flags, "decoder"], [*flags, "encoder:9"]):
        with pytest.raises(OptionError, match=r"--embed-init-freeze encoder, .* or add --reset-optimizer"):
            here(run, *other, "--max-update", "4")
    assert torch.equal(here(run, *flags, "encoder", "--max-update", "4")[ENCODER], start[ENCODER])
    assert "these rows are trained now" not in caplog.text
    trained = here(run, "--reset-optimizer", "--max-update", "6")
    assert "was started with --embed-init-freeze encoder; without that flag these rows are trained now" in caplog.text
    assert not torch.equal(trained[ENCODER], start[ENCODER])
    assert not torch.equal(here(run, "--max-update", "8")[ENCODER], trained[ENCODER])


def test_where_no_optimizer_is_restored_a_frozen_table_may_be_trained(here, started, tmp_path):
    start = started("frozen", tmp_path / "whole")  # with an optimizer, which --finetune-from-model leaves behind
    tune = ["--finetune-from-model", str(tmp_path / "whole" / "checkpoint_last.pt"), "--max-update", "2"]
    assert not torch.equal(here(tmp_path / "tuned", *tune)[ENCODER], start[ENCODER])
    start = here(tmp_path / "run", *STARTS["frozen"], "--no-save-optimizer-state")
    assert not torch.equal(here(tmp_path / "run", "--max-update", "4")[ENCODER], start[ENCODER])


@pytest.mark.parametrize("begin", ["plain", "xavier"])
def test_a_table_can_be_frozen_later(here, started, tmp_path, begin, caplog):
    start, run = started(begin, tmp_path / "run"), tmp_path / "run"
    if begin == "plain":
        (run / "embed_init.json").write_text('{"slots": {}}')  # of some other run
    for updates in ("4", "6"):  # what is frozen later stays in the optimizer's state
        now = here(run, *XAVIER, "--embed-init-freeze", "encoder", "--max-update", updates)
        assert torch.equal(now[ENCODER], start[ENCODER])
        assert not torch.equal(now[DECODER], start[DECODER])
        assert ("HAS NO EFFECT" in caplog.text) == (begin == "plain")
    flags = XAVIER if begin == "xavier" else []
    assert not torch.equal(here(run, *flags, "--max-update", "8")[ENCODER], start[ENCODER])


def test_data_and_models_that_are_not_those_of_the_run(here, started, toy_translation, tmp_path):
    """Another width, and a dictionary of the same size in another order: every word would have another word's row."""
    from fairseq import checkpoint_utils

    started("xavier", tmp_path / "run")
    with pytest.raises(OptionError, match=r"checkpoint_last.pt: .*'encoder' .*of 8 numbers, .* of 16: .*--save-dir"):
        here(tmp_path / "run", *XAVIER, "--encoder-embed-dim", "16", "--decoder-embed-dim", "16")
    last, other = tmp_path / "run" / "checkpoint_last.pt", tmp_path / "other"
    shutil.copytree(toy_translation, other)
    lines = (other / "dict.de.txt").read_text().splitlines(keepends=True)
    (other / "dict.de.txt").write_text("".join([lines[1], lines[0], *lines[2:]]))
    for flags in (XAVIER, ["--max-update", "4"], ["--finetune-from-model", str(last)], ["--restore-file", str(last)]):
        folder = tmp_path / ("new" if str(last) in flags else "run")
        with pytest.raises(OptionError, match=r"another dictionary.*\(encoder\).*--srcdict"):
            here(folder, *flags, data=other)
    with pytest.raises(OptionError, match=r"another dictionary.*\(encoder\)"):
        checkpoint_utils.load_model_ensemble_and_task([str(last)], {"data": str(other)})
    checkpoint_utils.load_model_ensemble_and_task([str(last)], {"data": str(toy_translation)})
    request = ExpandRequest(
        str(last), str(other / "dict.de.txt"), str(tmp_path / "words"), "avg", str(tmp_path / "out")
    )
    (tmp_path / "words").write_text("neu\n")
    with pytest.raises(DataError, match=r"--dict .*dict\.de\.txt: .* give the dict\.txt of its training"):
        expand_vocabulary(dataclasses.replace(request, side="encoder"))
    assert not (tmp_path / "out").exists()
    expand_vocabulary(dataclasses.replace(request, dictionary=str(toy_translation / "dict.de.txt"), side="encoder"))


def test_tasks_that_do_not_know_from_checkpoint_load_without_vectors(here, toy_translation, vectors, tmp_path):
    """Older tasks' build_model has no such argument; then fairseq does not pass it."""
    from fairseq import checkpoint_utils
    from fairseq.tasks import TASK_REGISTRY, register_task
    from fairseq.tasks.translation import TranslationConfig, TranslationTask

    if "old_translation" not in TASK_REGISTRY:

        @register_task("old_translation", dataclass=TranslationConfig)
        class OldTask(TranslationTask):
            def build_model(self, cfg):
                return super().build_model(cfg)

    copy = tmp_path / "gone.txt"
    copy.write_text(Path(vectors[0].split("=")[1]).read_text())
    flags = ["--task", "old_translation", "--embed-init", "pretrained", "--embed-init-path", f"encoder={copy}"]
    trained = here(tmp_path / "run", *flags, "--max-update", "1")
    copy.unlink()
    (tmp_path / "run" / "checkpoint_last.pt").rename(tmp_path / "model.pt")  # nothing to be continued any more
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(tmp_path / "model.pt")], {"data": str(toy_translation)}
    )
    assert torch.equal(model.encoder.embed_tokens.weight, trained[ENCODER])


def test_a_report_that_cannot_be_written_stops_the_training(here, tmp_path):
    run = tmp_path / "run"
    (run / "embed_init.json").mkdir(parents=True)  # os.replace cannot put a file over a directory
    with pytest.raises(OutputError, match=rf"--save-dir {run}/embed_init.json: .*choose another --save-dir"):
        here(run, *STARTS["xavier"])
    assert os.listdir(run) == ["embed_init.json"]


@pytest.mark.parametrize(
    "order",
    [
        "import embinit_fairseq.vectors.open; import fairseq.options",
        "import embinit_fairseq.hooks.options",
    ],
)
def test_registration_in_any_order_of_imports(order):
    code = (
        f"{order}\n"
        "import fairseq.models, fairseq.registry\n"
        "print(sorted(fairseq.registry.REGISTRIES['embed_init']['registry']),"
        " 'embinit_classifier' in fairseq.models.ARCH_MODEL_REGISTRY,"
        " hasattr(fairseq.models.build_model, '_embinit_wrapped'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    expected = ["normal", "pretrained", "pretrained_xavier", "shuffled", "xavier", "xavier_pretrained"]
    assert done.stdout.strip() == f"{expected} True True", done.stdout + done.stderr
