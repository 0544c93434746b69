"""Files of an earlier revision (tests/data/earlier/make.sh) still load, go on, compare and translate.

They lack the options that came later, such as --rotary. Each option by itself: test_architectures_checkpoints.py.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from programs import PYTHON
from trainings import PLUGIN, REPOSITORY

from embinit_fairseq.checkpoints.loading import load_checkpoint
from embinit_fairseq.cli.main import main

RUNS = ("transformer", "duo", "tupe_transformer")
_MASKED = "data/masked --task masked_lm --tokens-per-sample 20 --criterion "
_LABELLED = "data/labelled --task sentence_prediction --num-classes 2 --criterion sentence_prediction_metrics"
_SMALL = (
    "--max-positions 20 --encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-attention-heads 2 --encoder-layers 1"
)
_GENERATOR = " --generator-layers 1 --generator-embed-dim 4 --generator-ffn-embed-dim 4"
#: architecture -> data, task and criterion of its training, and options of the model
ENCODERS = {
    "tupe_tiny": (_MASKED + "masked_lm", _SMALL),
    "electra_tiny": (_MASKED + "electra", _SMALL + _GENERATOR),
    "embinit_classifier": (_LABELLED, _SMALL),
    "duo_classifier": (
        _LABELLED,
        "--max-positions 20 --encoder-dim-s 3 --encoder-dim-p 5 --duo-ffn-dim 4 --train-embeddings",
    ),
}

pytestmark = pytest.mark.end_to_end


@pytest.fixture
def earlier(tmp_path, monkeypatch) -> Path:
    """A copy of the files, from whose folder they were made."""
    shutil.copytree(REPOSITORY / "tests/data/earlier", tmp_path, dirs_exist_ok=True)
    (tmp_path / "embinit_fairseq").symlink_to(REPOSITORY / "embinit_fairseq")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", RUNS)
def test_embinit_run_knows_the_run(earlier, name, capfd) -> None:
    """The recorded call does nothing, one with more epochs goes on, another --lr is refused."""
    last = earlier / name / "checkpoints/checkpoint_last.pt"
    before, written = load_checkpoint(str(last)), last.read_bytes()
    program, *flags = json.loads((earlier / name / "training.json").read_text())["command"].split()
    assert program == "fairseq-train"

    def call(*changes: str, code: int = 0) -> str:
        assert main(["run", name, "--", PYTHON, "-m", "fairseq_cli.train", *flags, *changes]) == code
        return capfd.readouterr().err

    assert "finished before" in call()
    assert "--lr was 0.01, is 0.02" in call("--max-epoch", "3", "--lr", "0.02", code=2)
    assert last.read_bytes() == written
    call("--max-epoch", "3")
    after = load_checkpoint(str(last))
    assert after["model"].keys() == before["model"].keys()
    assert [state["optimizer_history"][-1]["num_updates"] for state in (before, after)] == [10, 15]
    assert any(not torch.equal(after["model"][key], value) for key, value in before["model"].items())
    assert list(json.loads((earlier / name / "result.json").read_text())["epochs"]) == ["1", "2", "3"]


@pytest.mark.parametrize("arch", ENCODERS)
def test_an_encoder_is_validated_used_from_python_and_trained_further(earlier, here, arch) -> None:
    (data, *task), options = (text.split() for text in ENCODERS[arch])
    path = earlier / arch / "checkpoint_last.pt"
    before = load_checkpoint(str(path))
    flags = [*PLUGIN, "--path", str(path), "--batch-size", "20", "--cpu", "--num-workers", "0"]
    log = here([PYTHON, "-m", "fairseq_cli.validate", data, *task, *flags])
    (loss,) = {*re.findall(r"valid on 'valid' subset .*?loss ([\d.]+)", log)}
    assert float(loss) == pytest.approx(before["extra_state"]["val_loss"], rel=1e-3)

    hub = ARCH_MODEL_REGISTRY[arch].from_pretrained(str(path.parent), path.name, data)
    assert all(torch.equal(value, before["model"][key]) for key, value in hub.model.state_dict().items())

    train = [PYTHON, "-m", "fairseq_cli.train", data, *PLUGIN, "--arch", arch, *task, *options, "--save-dir", arch]
    train += "--optimizer adam --lr 0.01 --batch-size 20 --cpu --num-workers 0 --seed 1 --max-epoch 3".split()
    here([*train, "--no-epoch-checkpoints", "--embed-init", "xavier"])
    after = load_checkpoint(str(path))
    assert after["model"].keys() == before["model"].keys()
    updates = [state["optimizer_history"][-1]["num_updates"] for state in (before, after)]
    assert updates[1] == updates[0] * 3 // 2


COMMANDS = {
    "tupe_tiny": (
        "plot positions --checkpoint {path} --output map.png",
        "export-hf --checkpoint {path} --output hf",
        "expand-vocab --checkpoint {path} --dict {dict} --words new.txt --method avg --output larger",
        "trim-vocab --checkpoint {path} --dict {dict} --keep kept.txt --output smaller",
        "transfer-vocab --checkpoint {path} --dict {dict} --new-dict new.dict --method avg --output other",
        "average {path} {other} --output mean.pt",
        "save-vectors --vectors {path} --output vectors.txt",
        "stats --vectors {path} --dict {dict}",
    ),
    "electra_tiny": (
        "plot correlations --checkpoint {path} --dict {dict} --sentence d3 --output map.png",
        "average {path} {other} --output mean.pt",
        "save-vectors --vectors {path} --output vectors.txt",
    ),
    "embinit_classifier": (
        "average {path} {other} --output mean.pt",
        "save-vectors --vectors {path} --output vectors.txt",
    ),
    "duo_classifier": (
        "average {path} {other} --output mean.pt",
        "save-vectors --vectors {path} --output vectors.txt",
    ),
}


@pytest.mark.parametrize("arch", ENCODERS)
def test_commands_open_an_encoder(earlier, arch, capfd, monkeypatch) -> None:
    monkeypatch.setattr("sys.executable", PYTHON)  # which opens the export again
    dictionary = "data/masked/dict.txt"
    shutil.copy(dictionary, arch)
    state = load_checkpoint(f"{arch}/checkpoint_last.pt")
    torch.save({**state, "extra_state": {**state["extra_state"], "best": 9.0}}, f"{arch}/checkpoint_other.pt")
    (earlier / "kept.txt").write_text("d3\nd5\n")
    (earlier / "new.dict").write_text("d3 1\nd4d5 1\n")
    for line in COMMANDS[arch]:
        path, other = (f"{arch}/checkpoint_{name}.pt" for name in ("last", "other"))
        command = line.format(path=path, other=other, dict=dictionary)
        assert main(command.split()) == 0, capfd.readouterr().err


def test_runs_are_compared(earlier, capsys) -> None:
    assert main(["compare", *RUNS, "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    for row in table["rows"]:
        result = json.loads((earlier / row["labels"]["arch"] / "result.json").read_text())
        assert row["runs"][0]["best"]["valid_loss"] == pytest.approx(result["best"]["valid_loss"])


def test_translation_models_translate(earlier, here) -> None:
    """Also the one whose dictionary was expanded."""
    for file in (earlier / "data/bin").glob("valid.*"):
        shutil.copy(file, earlier / "expanded")
    flags = [*PLUGIN, *"--gen-subset valid --beam 2 --cpu --batch-size 8".split()]
    paths = {f"{run}/checkpoints/checkpoint_last.pt": "data/bin" for run in ("duo", "tupe_transformer")}
    for path, data in {**paths, "expanded/model.pt": "expanded"}.items():
        assert here([PYTHON, "-m", "fairseq_cli.generate", data, "--path", path, *flags]).count("\nH-") == 8
    words = [len((earlier / folder / "dict.de.txt").read_text().splitlines()) for folder in ("data/bin", "expanded")]
    assert words[1] == words[0] + 2
