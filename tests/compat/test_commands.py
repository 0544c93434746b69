"""fairseq's own commands, unmodified, in every way of starting them; resuming, several processes, hostile files."""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fairseq_commands import EVAL_BLEU, TRAINING, Trained, hypotheses, losses, module, run, script, torchrun, training
from programs import PYTHON

torch = pytest.importorskip("torch")
checkpoint_utils = pytest.importorskip("fairseq.checkpoint_utils")  # with it comes the allow-list for torch.load
pytestmark = pytest.mark.end_to_end
SHORT = ["--cpu", "--beam", "2", "--max-len-b", "10"]


def test_a_run_goes_on_from_the_numbered_checkpoint_of_an_epochs_end(
    toy_translation: Path, trained: Trained, tmp_path: Path
) -> None:
    """Script, then ``python -m``: the second epoch has the losses of the uninterrupted run, with ``--eval-bleu``."""
    names = {path.name for path in trained.folder.iterdir()}
    assert names >= {"checkpoint_1_2.pt", "checkpoint_1_4.pt", "checkpoint_2_6.pt", "checkpoint_2_8.pt"}
    shutil.copy(trained.folder / "checkpoint_1_4.pt", tmp_path / "checkpoint_last.pt")
    options = ["--max-epoch", "2", "--save-interval-updates", "2", *EVAL_BLEU]
    resumed = run([*module("fairseq_cli.train"), *training(toy_translation, tmp_path, *options)]).stdout
    assert "Loaded checkpoint" in resumed
    assert losses(resumed) == losses(trained.output)[4:]
    assert len(losses(resumed)) == 4
    assert losses(resumed, "valid") == losses(trained.output, "valid")[-2:]


def test_checkpoint_has_no_unused_copies(trained: Trained) -> None:
    models, _ = checkpoint_utils.load_model_ensemble([str(trained.folder / "checkpoint_last.pt")])
    names = [name for name, _ in models[0].named_parameters()]
    assert not [name for name in names if "in_proj" in name or name.endswith("fc1_weight")]


def test_generation_of_a_checkpoint_and_of_one_of_an_older_fairseq(
    toy_translation: Path, trained: Trained, tmp_path: Path
) -> None:
    """That holds its options as a Namespace and numpy numbers, in the old file format. And fairseq-interactive."""
    import numpy as np

    state = torch.load(trained.folder / "checkpoint_last.pt", weights_only=True)
    namespace = state["cfg"]["model"]
    assert isinstance(namespace, argparse.Namespace)
    old = {**state, "args": namespace, "cfg": None, "extra_state": {**state["extra_state"], "best": np.float64(2.5)}}
    torch.save(old, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    command, path = [toy_translation, *SHORT, "--path"], trained.folder / "checkpoint_last.pt"
    done = run([Path(sys.executable).with_name("fairseq-generate"), *command, path])
    for errors in (trained.errors, done.stderr):  # both of new processes
        assert "hydra" not in errors
    assert "BLEU4 = " in done.stdout
    expected = hypotheses(done.stdout)
    assert len(expected) == 20
    assert hypotheses(run([*script("fairseq-generate"), *command, tmp_path / "old.pt"]).stdout) == expected
    text = toy_translation.parent / "test.de"
    assert hypotheses(run([*script("fairseq-interactive"), *command, path, "--input", text]).stdout) == expected


class Payload:
    """Unpickling an object of this class creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_malicious_checkpoint_is_refused(toy_translation: Path, trained: Trained, tmp_path: Path) -> None:
    state = torch.load(trained.folder / "checkpoint_last.pt", weights_only=True)
    state["extra_state"]["metrics"] = Payload(tmp_path / "executed")
    torch.save(state, tmp_path / "checkpoint.pt")
    command = [*script("fairseq-generate"), toy_translation, "--cpu", "--path", tmp_path / "checkpoint.pt"]
    result = run(command, check=False)
    assert result.returncode != 0
    assert "Weights only load failed" in result.stderr
    assert "system" in result.stderr
    assert not (tmp_path / "executed").exists()
    # the file is as dangerous as it looks: plain pickle would have run it
    pickle.loads(pickle.dumps(Payload(tmp_path / "executed")))
    assert (tmp_path / "executed").exists()


def test_two_processes_go_on_with_a_training(toy_translation: Path, trained: Trained, tmp_path: Path) -> None:
    """As ``torchrun fairseq-train`` with the default data-parallel back end, from a checkpoint of one process."""
    shutil.copy(trained.folder / "checkpoint_1_4.pt", tmp_path / "checkpoint_last.pt")
    options = ["--num-workers", "0", "--distributed-backend", "gloo", "--max-epoch", "2"]
    output = run([*torchrun(2), *training(toy_translation, tmp_path, *options)]).stdout
    assert "training on 2 devices" in output
    assert "Loaded checkpoint" in output
    assert len(losses(output)) == 2  # of the four batches each process has two
    assert float(losses(output)[-1]) < float(losses(trained.output)[0])
    assert (tmp_path / "checkpoint_best.pt").exists()


LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
from fairseq_cli.train import cli_main
cli_main()
"""


def test_full_disk_ends_with_a_message_and_keeps_the_last_checkpoint(
    toy_translation: Path, trained: Trained, tmp_path: Path
) -> None:
    """The disk is full after 40 kB (a limit of the file size); a checkpoint has more."""
    shutil.copy(trained.folder / "checkpoint_1_4.pt", tmp_path / "checkpoint_last.pt")
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    result = run([PYTHON, "-c", LIMITED, *training(toy_translation, tmp_path, "--max-epoch", "2")], check=False)
    assert result.returncode != 0
    message = result.stderr.strip().splitlines()[-1]
    assert str(tmp_path) in message
    assert "--save-dir" in message
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"checkpoint_last.pt": before}


def test_a_folder_in_which_a_training_runs(toy_translation: Path, tmp_path: Path) -> None:
    command = [*script("fairseq-train"), *training(toy_translation, tmp_path, "--num-workers", "0", "--max-epoch")]
    first = subprocess.Popen([*map(str, command), "100000"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert any(b"Finished saving checkpoint" in line for line in first.stdout)
        second = run([*command, "1"], check=False)
        assert first.poll() is None
    finally:
        first.kill()
        first.stdout.read()  # ends with the training itself, which may be a fork of the tests' server
        first.wait()
    assert second.returncode != 0
    message = second.stderr.strip().splitlines()[-1]
    assert f"--save-dir {tmp_path}: another training is running" in message
    assert "choose another --save-dir" in message
    assert "Loaded checkpoint" in run([*command, "1"]).stdout  # the lock went with the process


@pytest.mark.parametrize("flag", ["--restore-file", "--finetune-from-model"])
def test_a_broken_checkpoint_to_start_from(flag: str, toy_translation: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pt"
    broken.write_bytes(b"PK\x03\x04 and no more")
    command = [*script("fairseq-train"), *training(toy_translation, tmp_path / "run", "--max-epoch", "1", flag, broken)]
    result = run(command, check=False)
    assert result.returncode != 0
    assert f"checkpoint {broken} cannot be loaded: the file was cut short" in result.stderr.strip().splitlines()[-1]
    assert list((tmp_path / "run").iterdir()) == []


def test_masked_language_model_learns_and_validates(toy_translation: Path, tmp_path: Path) -> None:
    text = toy_translation.parent
    prefixes = [f"--{split}pref={text / split}.de" for split in ("train", "valid")]
    data = tmp_path / "data-bin"
    run([*module("fairseq_cli.preprocess"), "--only-source", *prefixes, f"--destdir={data}"])
    size = ["--encoder-layers", "1", "--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32"]
    model = ["--arch", "roberta_base", *size, "--encoder-attention-heads", "2", "--max-positions", "64"]
    task = ["--task", "masked_lm", "--criterion", "masked_lm", "--tokens-per-sample", "32"]
    command = [*module("fairseq_cli.train"), data, *task, *model, *TRAINING, "--save-dir", tmp_path, "--max-epoch", "8"]
    valid = [float(loss) for loss in losses(run([*command, "--num-workers", "0"]).stdout, "valid")]
    assert valid[-1] < valid[0] - 0.3
    options = ["--path", tmp_path / "checkpoint_last.pt", "--max-tokens", "500", "--cpu", "--log-format", "json"]
    validation = run([*script("fairseq-validate"), data, *task, *options])
    assert float(losses(validation.stdout, "valid")[-1]) == pytest.approx(valid[-1], abs=0.3)
