"""`--embed-init` in trainings that are continued: without the vectors, after kill -9, with other options."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from programs import PYTHON
from trainings import REPOSITORY, SAVE_OFTEN, command, kill_9_and_resume, same, train

from embinit_fairseq.checkpoints.reading import initialisation_record, load_checkpoint
from embinit_fairseq.errors import DataError, OptionError
from embinit_fairseq.expand.expansion import expand_vocabulary
from embinit_fairseq.expand.request import Request
from embinit_fairseq.init.report import unpack_rows

pytestmark = pytest.mark.end_to_end
TABLE = "encoder.embed_tokens.weight"


def test_start_resume_generate_without_the_vectors(toy_translation, vectors, tmp_path):
    copies = []
    for text in vectors:
        slot, path = text.split("=")
        (tmp_path / f"{slot}.vec").write_text(Path(path).read_text())
        copies.append(f"{slot}={tmp_path / f'{slot}.vec'}")
    flags = ["--embed-init", "pretrained_xavier", "--embed-init-path", *copies]
    log = train(toy_translation, tmp_path / "run", *flags, "--max-epoch", "1")
    assert "init:pretrained_xavier|src:encoder.vec|dim:8|cov:" in log
    report = json.loads((tmp_path / "run" / "embed_init.json").read_text())
    assert report["slots"]["encoder"]["rows_by_rule"]["exact"] > 30
    assert report["slots"]["encoder"]["after"]["std"] > 0
    last = tmp_path / "run" / "checkpoint_last.pt"
    assert initialisation_record(load_checkpoint(last)) == report
    for path in copies:
        Path(path.split("=")[1]).unlink()
    (tmp_path / "run" / "embed_init.json").unlink()  # the checkpoint knows
    log = train(toy_translation, tmp_path / "run", *flags, "--max-epoch", "2")
    assert "no vectors are read" in log
    assert initialisation_record(load_checkpoint(last)) == report
    generate = [PYTHON, "-m", "fairseq_cli.generate", str(toy_translation), "--path", str(last), "--beam", "2"]
    done = subprocess.run([*generate, "--cpu"], capture_output=True, text=True)  # a stock model needs no --user-dir
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nH-") == 20
    code = (
        "from fairseq.models.transformer import TransformerModel\n"
        f"hub = TransformerModel.from_pretrained('run', 'checkpoint_last.pt', {str(toy_translation)!r})\n"
        "print('said', hub.translate('d1 d2 d3', beam=2))"
    )
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert "said " in done.stdout, done.stderr


def test_kill_9_and_resume_gives_the_same_losses(toy_translation, vectors, tmp_path):
    flags = ["--embed-init", "shuffled", "--embed-init-path", *vectors, "--embed-init-freeze", "encoder:known"]
    arguments = command(toy_translation, tmp_path, *flags, "--max-epoch", "3", *SAVE_OFTEN)
    assert ("valid", "30") in kill_9_and_resume(arguments, tmp_path, at_update=14)


def test_kill_9_and_resume_of_the_classifier(sentiment, tmp_path):
    arguments = f"""{PYTHON} -m fairseq_cli.train {sentiment / "bin"}
        --user-dir {REPOSITORY / "embinit_fairseq"} --arch embinit_classifier
        --task sentence_prediction --criterion sentence_prediction --num-classes 2
        --encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-layers 1 --encoder-attention-heads 2
        --embed-init xavier --optimizer adam --lr 0.01 --batch-size 24 --max-epoch 3 --cpu --log-format json
        --log-interval 1 --num-workers 0 --no-epoch-checkpoints""".split()
    rest = kill_9_and_resume([*arguments, *SAVE_OFTEN], tmp_path, at_update=14)
    assert ("valid", "30") in rest


def test_without_the_flag_a_continued_run_says_what_is_no_longer_frozen(in_process, vectors, tmp_path, caplog):
    flags = ["--embed-init", "pretrained", "--embed-init-path", *vectors, "--embed-init-freeze", "encoder:known"]
    in_process(tmp_path / "run", *flags, "--max-epoch", "1")
    report = initialisation_record(load_checkpoint(tmp_path / "run" / "checkpoint_last.pt"))
    caplog.clear()
    in_process(tmp_path / "run", "--max-epoch", "2")
    assert "was started with --embed-init-freeze encoder:known" in caplog.text
    assert initialisation_record(load_checkpoint(tmp_path / "run" / "checkpoint_last.pt")) == report


def test_other_rows_frozen_than_at_the_start_are_named(in_process, vectors, tmp_path, caplog):
    flags = ["--embed-init", "pretrained", "--embed-init-path", *vectors]
    in_process(tmp_path / "run", *flags, "--embed-init-freeze", "encoder:known", "--max-epoch", "1")
    caplog.clear()
    in_process(tmp_path / "run", *flags, "--max-epoch", "2")
    assert "was started with --embed-init-freeze encoder:known, now it is not frozen" in caplog.text


def test_the_flag_on_a_run_without_it_is_loud(in_process, tmp_path, caplog):
    in_process(tmp_path / "run", "--max-update", "1")
    (tmp_path / "run" / "embed_init.json").write_text('{"slots": {}}')  # of some other run
    caplog.clear()
    in_process(tmp_path / "run", "--max-update", "2", "--embed-init", "xavier")
    assert "HAS NO EFFECT" in caplog.text


def test_restore_file_of_another_run_opens_no_vectors(in_process, vectors, tmp_path):
    flags = ["--embed-init", "pretrained", "--embed-init-freeze", "encoder:known", "--embed-init-path"]
    first = in_process(tmp_path / "first", *flags, *vectors, "--max-epoch", "1")
    gone = [f"{text}.gone" for text in vectors]
    restore = ["--restore-file", str(tmp_path / "first" / "checkpoint_last.pt"), "--max-epoch", "2"]
    second = in_process(tmp_path / "second", *flags, *gone, *restore)
    record = json.loads((tmp_path / "second" / "embed_init.json").read_text())["slots"]["encoder"]
    known = unpack_rows(record["known_rows"], record["rows"])
    assert torch.equal(first[TABLE][known], second[TABLE][known])
    assert "|freeze:encoder:known|" in record["signature"]


def test_frozen_rows_are_recalled_after_a_restart(in_process, vectors, tmp_path):
    flags = ["--embed-init", "pretrained", "--embed-init-path", *vectors, "--embed-init-freeze", "encoder:known"]
    whole = in_process(tmp_path / "whole", *flags, "--max-epoch", "2")
    in_process(tmp_path / "parts", *flags, "--max-epoch", "1")
    assert same(whole, in_process(tmp_path / "parts", *flags, "--max-epoch", "2"))


def test_a_table_that_was_frozen_from_the_start_cannot_be_trained_by_the_same_optimizer(in_process, tmp_path, caplog):
    flags = ["--embed-init", "xavier"]
    start = in_process(tmp_path / "run", *flags, "--embed-init-freeze", "encoder", "--max-update", "2")
    for other in ([], flags, [*flags, "--embed-init-freeze", "decoder"], [*flags, "--embed-init-freeze", "encoder:9"]):
        with pytest.raises(
            OptionError, match=r"--embed-init-freeze encoder, so its optimizer .* or add --reset-optimizer"
        ):
            in_process(tmp_path / "run", *other, "--max-update", "4")
    frozen = in_process(tmp_path / "run", *flags, "--embed-init-freeze", "encoder", "--max-update", "4")
    assert torch.equal(frozen[TABLE], start[TABLE])
    assert "these rows are trained now" not in caplog.text
    trained = in_process(tmp_path / "run", "--reset-optimizer", "--max-update", "6")
    assert "was started with --embed-init-freeze encoder; without that flag these rows are trained now" in caplog.text
    assert not torch.equal(trained[TABLE], start[TABLE])
    assert not torch.equal(in_process(tmp_path / "run", "--max-update", "8")[TABLE], trained[TABLE])


def test_where_no_optimizer_is_restored_a_frozen_table_may_be_trained(in_process, tmp_path):
    freeze = ["--embed-init", "xavier", "--embed-init-freeze", "encoder", "--max-update", "2"]
    start = in_process(tmp_path / "run", *freeze, "--no-save-optimizer-state")
    last = tmp_path / "run" / "checkpoint_last.pt"
    tuned = in_process(tmp_path / "tuned", "--finetune-from-model", str(last), "--max-update", "2")
    assert not torch.equal(tuned[TABLE], start[TABLE])
    assert not torch.equal(in_process(tmp_path / "run", "--max-update", "4")[TABLE], start[TABLE])
    in_process(tmp_path / "whole", *freeze)
    last = tmp_path / "whole" / "checkpoint_last.pt"  # with an optimizer, which --finetune-from-model leaves behind
    in_process(tmp_path / "new", "--finetune-from-model", str(last), "--max-update", "2")


def test_a_run_of_another_width_is_refused_in_one_line(in_process, tmp_path):
    flags = ["--embed-init", "xavier", "--max-update", "1"]
    in_process(tmp_path / "run", *flags)
    message = (
        "checkpoint_last.pt: its table 'encoder' has rows of 8 numbers, here they are of 16: give the width of its"
    )
    with pytest.raises(OptionError, match=message):
        in_process(tmp_path / "run", *flags, "--encoder-embed-dim", "16", "--decoder-embed-dim", "16")


def test_a_dictionary_of_the_same_size_in_another_order_is_refused(in_process, toy_translation, tmp_path):
    """Every word would have another word's row, and nothing else would tell: the sizes fit."""
    from fairseq import checkpoint_utils

    flags = ["--embed-init", "xavier", "--max-update", "2"]
    in_process(tmp_path / "run", *flags)
    last, other = tmp_path / "run" / "checkpoint_last.pt", tmp_path / "other"
    shutil.copytree(toy_translation, other)
    lines = (other / "dict.de.txt").read_text().splitlines(keepends=True)
    (other / "dict.de.txt").write_text("".join([lines[1], lines[0], *lines[2:]]))
    for options in (flags, ["--max-update", "4"], ["--finetune-from-model", str(last)], ["--restore-file", str(last)]):
        folder = tmp_path / ("new" if str(last) in options else "run")
        with pytest.raises(OptionError, match=r"another dictionary.*\(encoder\).*--srcdict"):
            in_process(folder, *options, data=other)
    with pytest.raises(OptionError, match=r"another dictionary.*\(encoder\)"):
        checkpoint_utils.load_model_ensemble_and_task([str(last)], {"data": str(other)})
    checkpoint_utils.load_model_ensemble_and_task([str(last)], {"data": str(toy_translation)})
    request = Request(str(last), str(other / "dict.de.txt"), str(tmp_path / "words"), "avg", str(tmp_path / "out"))
    (tmp_path / "words").write_text("neu\n")
    with pytest.raises(DataError, match=r"--dict .*dict\.de\.txt: .* give the dict\.txt of its training"):
        expand_vocabulary(dataclasses.replace(request, side="encoder"))
    assert not (tmp_path / "out").exists()
    expand_vocabulary(dataclasses.replace(request, dictionary=str(toy_translation / "dict.de.txt"), side="encoder"))


@pytest.mark.parametrize("begin", [[], ["--embed-init", "xavier"]], ids=["without", "with"])
def test_a_table_can_be_frozen_later(in_process, tmp_path, begin):
    start = in_process(tmp_path / "run", *begin, "--max-update", "2")
    flags = ["--embed-init", "xavier", "--embed-init-freeze", "encoder"]
    for updates in ("4", "6"):  # what is frozen later stays in the optimizer's state
        now = in_process(tmp_path / "run", *flags, "--max-update", updates)
        assert torch.equal(now[TABLE], start[TABLE])
        assert not torch.equal(now["decoder.embed_tokens.weight"], start["decoder.embed_tokens.weight"])
    assert not torch.equal(in_process(tmp_path / "run", *begin, "--max-update", "8")[TABLE], start[TABLE])


def test_tasks_that_do_not_know_from_checkpoint_load_without_vectors(in_process, toy_translation, vectors, tmp_path):
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
    trained = in_process(tmp_path / "run", *flags, "--max-update", "1")
    copy.unlink()
    (tmp_path / "run" / "checkpoint_last.pt").rename(tmp_path / "model.pt")  # nothing to be continued any more
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(tmp_path / "model.pt")], {"data": str(toy_translation)}
    )
    assert torch.equal(model.encoder.embed_tokens.weight, trained[TABLE])
