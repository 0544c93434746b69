"""`--embed-init` through real trainings: start, resume, kill -9, two processes, freezing, generation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from embinit_fairseq.checkpoints.reading import load_checkpoint
from embinit_fairseq.hooks.options import record_in
from embinit_fairseq.init.report import unpack_rows

REPOSITORY = Path(__file__).resolve().parents[2]
D = 8
TRAIN = [
    *("--user-dir", str(REPOSITORY / "embinit_fairseq"), "--task", "translation", "--arch", "transformer_iwslt_de_en"),
    *("--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "8", "--encoder-layers", "1"),
    *("--decoder-embed-dim", "8", "--decoder-ffn-embed-dim", "8", "--decoder-layers", "1"),
    *("--encoder-attention-heads", "2", "--decoder-attention-heads", "2"),
    *("--optimizer", "adam", "--lr", "0.005", "--batch-size", "20", "--required-batch-size-multiple", "1", "--cpu"),
    *("--log-format", "json", "--log-interval", "1", "--num-workers", "0", "--no-epoch-checkpoints"),
]
pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def vectors(toy_translation, tmp_path_factory):
    """SLOT=PATH for both slots."""
    folder, generator = tmp_path_factory.mktemp("vectors"), np.random.default_rng(0)
    paths = []
    for slot, language in (("encoder", "de"), ("decoder", "en")):
        words = [line.split(" ")[0] for line in (toy_translation / f"dict.{language}.txt").read_text().splitlines()]
        rows = [f"{w} " + " ".join(f"{x:.4f}" for x in generator.normal(0, 0.4, D)) for w in words if int(w[1:]) % 4]
        (folder / f"{slot}.txt").write_text("\n".join(rows) + "\n")
        paths.append(f"{slot}={folder / f'{slot}.txt'}")
    return paths


def command(data, run, *flags):
    return [sys.executable, "-m", "fairseq_cli.train", str(data), *TRAIN, "--save-dir", str(run), *flags]


def train(data, run, *flags):
    """Run fairseq-train; returns its log."""
    return run_to_end(command(data, run, *flags))


def run_to_end(command_line):
    """The log of a training that must succeed."""
    done = subprocess.run(command_line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    return done.stderr + done.stdout


def losses(log):
    """num_updates -> loss of every training update and every validation."""
    found = {}
    for line in log.splitlines():
        body = line.rsplit(" | ", 1)[-1]
        if body.startswith('{"'):
            numbers = json.loads(body)
            if "train_inner" in line:
                found["train", numbers["num_updates"]] = numbers["loss"]
            elif "valid_loss" in numbers:
                found["valid", numbers["valid_num_updates"]] = numbers["valid_loss"]
    return found


def model_of(path):
    return load_checkpoint(path)["model"]


def same(one, other):
    return set(one) == set(other) and all(torch.equal(one[key], other[key]) for key in one)


@pytest.fixture
def in_process(toy_translation, monkeypatch):
    """fairseq-train inside this process: run, flags -> final model."""
    import fairseq_cli.train

    def train_here(run, *flags):
        monkeypatch.setattr(sys, "argv", command(toy_translation, run, *flags)[2:])
        fairseq_cli.train.cli_main()
        return model_of(run / "checkpoint_last.pt")

    return train_here


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
    assert json.loads(record_in(load_checkpoint(last)["cfg"])) == report
    for path in copies:
        Path(path.split("=")[1]).unlink()
    (tmp_path / "run" / "embed_init.json").unlink()  # the checkpoint knows
    log = train(toy_translation, tmp_path / "run", *flags, "--max-epoch", "2")
    assert "no vectors are read" in log
    assert json.loads(record_in(load_checkpoint(last)["cfg"])) == report
    generate = [sys.executable, "-m", "fairseq_cli.generate", str(toy_translation), "--path", str(last), "--beam", "2"]
    done = subprocess.run([*generate, "--cpu"], capture_output=True, text=True)  # a stock model needs no --user-dir
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nH-") == 20
    code = (
        "from fairseq.models.transformer import TransformerModel\n"
        f"hub = TransformerModel.from_pretrained('run', 'checkpoint_last.pt', {str(toy_translation)!r})\n"
        "print('said', hub.translate('d1 d2 d3', beam=2))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert "said " in done.stdout, done.stderr


def kill_9_and_resume(arguments, folder, at_update):
    """Losses and final model of a whole run, and of one that was killed at an update and started again."""
    whole = losses(run_to_end([*arguments, "--save-dir", str(folder / "whole")]))
    run, log = folder / "killed", folder / "killed.log"
    command_line = [*arguments, "--save-dir", str(run)]
    with log.open("w") as file:
        process = subprocess.Popen(command_line, stdout=file, stderr=file)
        deadline = time.time() + 120
        while f'"num_updates": "{at_update}"' not in log.read_text() and time.time() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL
    rest = losses(run_to_end(command_line))
    assert min(int(updates) for _, updates in rest) > 1, "it started anew"
    assert all(whole[key] == loss for key, loss in rest.items())
    assert same(model_of(folder / "whole" / "checkpoint_last.pt"), model_of(run / "checkpoint_last.pt"))
    return rest


SAVE_OFTEN = ["--save-interval-updates", "4", "--keep-interval-updates", "1"]


def test_kill_9_and_resume_gives_the_same_losses(toy_translation, vectors, tmp_path):
    flags = ["--embed-init", "shuffled", "--embed-init-path", *vectors, "--embed-init-freeze", "encoder:known"]
    arguments = command(toy_translation, tmp_path, *flags, "--max-epoch", "3", *SAVE_OFTEN)
    assert ("valid", "30") in kill_9_and_resume(arguments, tmp_path, at_update=14)


def test_kill_9_and_resume_of_the_classifier(sentiment, tmp_path):
    arguments = f"""{sys.executable} -m fairseq_cli.train {sentiment / "bin"}
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
    report = record_in(load_checkpoint(tmp_path / "run" / "checkpoint_last.pt")["cfg"])
    caplog.clear()
    in_process(tmp_path / "run", "--max-epoch", "2")
    assert "was started with --embed-init-freeze encoder:known" in caplog.text
    assert record_in(load_checkpoint(tmp_path / "run" / "checkpoint_last.pt")["cfg"]) == report


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


def validation_loss(data, checkpoint):
    """Mean cross-entropy a token (base e) of the validation text, in double precision."""
    from fairseq import checkpoint_utils

    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], {"data": str(data)})
    task.load_dataset("valid")
    samples = task.dataset("valid")
    batch = samples.collater([samples[at] for at in range(len(samples))])
    model = model.double().eval()
    logits = model(**batch["net_input"])[0].transpose(1, 2)
    return float(torch.nn.functional.cross_entropy(logits, batch["target"], ignore_index=1))


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


def test_frozen_rows_are_recalled_after_a_restart(in_process, vectors, tmp_path):
    flags = ["--embed-init", "pretrained", "--embed-init-path", *vectors, "--embed-init-freeze", "encoder:known"]
    whole = in_process(tmp_path / "whole", *flags, "--max-epoch", "2")
    in_process(tmp_path / "parts", *flags, "--max-epoch", "1")
    assert same(whole, in_process(tmp_path / "parts", *flags, "--max-epoch", "2"))


def test_a_report_that_cannot_be_written_stops_the_training(toy_translation, tmp_path):
    run = tmp_path / "run"
    (run / "embed_init.json").mkdir(parents=True)  # os.replace cannot put a file over a directory
    flags = command(toy_translation, run, "--embed-init", "xavier", "--max-update", "1")
    done = subprocess.run(flags, capture_output=True, text=True)
    assert done.returncode != 0
    assert f"--save-dir {run}: cannot write embed_init.json" in done.stderr
    assert not [name for name in os.listdir(run) if name.endswith(".tmp")]


def test_finetune_from_model_is_refused(toy_translation, tmp_path):
    flags = ["--embed-init", "xavier", "--finetune-from-model", str(tmp_path / "old.pt")]
    done = subprocess.run(command(toy_translation, tmp_path / "run", *flags), capture_output=True, text=True)
    assert done.returncode != 0
    assert "--finetune-from-model" in done.stderr
    assert "drop one of the flags" in done.stderr


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
