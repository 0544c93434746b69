"""fairseq's own commands, unmodified, in every way of starting them; resuming, several processes, hostile files."""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import sys
from pathlib import Path

import pytest
from fairseq_commands import EVAL_BLEU, hypotheses, losses, module, run, script, torchrun, training

torch = pytest.importorskip("torch")
checkpoint_utils = pytest.importorskip("fairseq.checkpoint_utils")  # with it comes the allow-list for torch.load
pytestmark = pytest.mark.end_to_end


def test_training_resumes_where_it_stopped(toy_translation: Path, trained: Path, tmp_path: Path) -> None:
    """Script, then ``python -m``: the second epoch has the losses of an uninterrupted run, with ``--eval-bleu``."""
    resumed = tmp_path / "resumed"
    shutil.copytree(trained, resumed)
    options = ["--max-epoch", "2", *EVAL_BLEU]
    second = run([*module("fairseq_cli.train"), *training(toy_translation, resumed, *options)]).stdout
    whole = run([*module("fairseq_cli.train"), *training(toy_translation, tmp_path / "whole", *options)]).stdout
    assert "Loaded checkpoint" in second
    assert len(losses(second)) > 0
    assert losses(second) == losses(whole)[-len(losses(second)) :]
    assert losses(second, "valid") == losses(whole, "valid")[-1:]


def test_commands_start_without_warnings_of_hydra(toy_translation: Path, trained: Path, tmp_path: Path) -> None:
    train = [*script("fairseq-train"), *training(toy_translation, tmp_path, "--max-update", "1")]
    generate = [*script("fairseq-generate"), toy_translation, "--cpu", "--path", trained / "checkpoint_best.pt"]
    for command in (train, generate, [*script("fairseq-hydra-train"), "--help"]):
        assert "hydra" not in run(command).stderr.replace("hydra-train", "")


def test_checkpoint_has_no_unused_copies(trained: Path) -> None:
    models, _ = checkpoint_utils.load_model_ensemble([str(trained / "checkpoint_last.pt")])
    names = [name for name, _ in models[0].named_parameters()]
    assert not [name for name in names if "in_proj" in name or name.endswith("fc1_weight")]


def test_generation_and_checkpoint_of_an_older_fairseq(toy_translation: Path, trained: Path, tmp_path: Path) -> None:
    """Generation from a checkpoint that holds its options as a Namespace and numpy numbers, in the old file format."""
    import numpy as np

    state = torch.load(trained / "checkpoint_last.pt", weights_only=True)
    namespace = state["cfg"]["model"]
    assert isinstance(namespace, argparse.Namespace)
    old = {**state, "args": namespace, "cfg": None, "extra_state": {**state["extra_state"], "best": np.float64(2.5)}}
    torch.save(old, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    command = [*script("fairseq-generate"), toy_translation, "--cpu", "--beam", "2", "--max-len-b", "10", "--path"]
    new_output = run([*command, trained / "checkpoint_last.pt"]).stdout
    old_output = run([*command, tmp_path / "old.pt"]).stdout
    assert len(hypotheses(new_output)) == 20
    assert hypotheses(old_output) == hypotheses(new_output)


class Payload:
    """Unpickling an object of this class creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_malicious_checkpoint_is_refused(toy_translation: Path, trained: Path, tmp_path: Path) -> None:
    state = torch.load(trained / "checkpoint_last.pt", weights_only=True)
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


def test_two_processes_train_and_resume(toy_translation: Path, tmp_path: Path) -> None:
    """With the default data-parallel back end, as ``torchrun fairseq-train``."""
    options = ["--distributed-backend", "gloo", "--max-epoch"]
    first = run([*torchrun(2), *training(toy_translation, tmp_path, *options, "1")]).stdout
    second = run([*torchrun(2), *training(toy_translation, tmp_path, *options, "2")]).stdout
    assert "training on 2 devices" in first
    assert "Loaded checkpoint" in second
    assert len(losses(second)) > 0
    assert float(losses(second)[-1]) < float(losses(first)[0])


def test_notebook_and_spawned_workers() -> None:
    code = """
        import importlib, multiprocessing, fairseq
        worker = multiprocessing.get_context("spawn").Process(target=importlib.import_module, args=("fairseq.trainer",))
        worker.start(); worker.join()
        assert worker.exitcode == 0
        print("imported", fairseq.__version__)
    """
    lines = "\n".join(line.strip() for line in code.strip().splitlines())
    assert "imported 0.12" in run([sys.executable, "-c", lines]).stdout


def test_full_disk_ends_with_a_message_and_keeps_the_last_checkpoint(
    toy_translation: Path, trained: Path, tmp_path: Path
) -> None:
    """The disk is full after 40 kB (a limit of the file size); a checkpoint has more."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    command = [*script("fairseq-train"), *training(toy_translation, folder, "--max-epoch", "2")]
    result = run(["bash", "-c", 'ulimit -f 40; "$@"', "bash", *command], check=False)
    assert result.returncode != 0
    message = result.stderr.strip().splitlines()[-1]
    assert str(folder) in message
    assert "--save-dir" in message
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
