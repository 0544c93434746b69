"""embinit compare on what the real fairseq-train leaves: logs in several formats, a save directory."""

from __future__ import annotations

import json
import subprocess

import pytest
from programs import PYTHON

from embinit_fairseq.cli.main import main

SMALL = """--arch transformer_iwslt_de_en
    --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 8 --decoder-embed-dim 8
    --encoder-ffn-embed-dim 8 --decoder-ffn-embed-dim 8 --encoder-attention-heads 1 --decoder-attention-heads 1
    --optimizer adam --lr 1e-2 --max-tokens 400 --max-epoch 2 --cpu --num-workers 0 --log-interval 1"""


@pytest.mark.end_to_end
def test_logs_and_save_directories_agree(toy_translation, tmp_path, capsys) -> None:
    train = [PYTHON, "-m", "fairseq_cli.train", str(toy_translation), *SMALL.split()]
    for name, options in {
        "json": ["--log-format", "json", "--log-file", str(tmp_path / "json.file.log")],
        "simple": ["--log-format", "simple", "--log-file", str(tmp_path / "simple.file.log")],
        "tqdm": [],
    }.items():
        with (tmp_path / f"{name}.log").open("w") as log:
            command = [*train, "--save-dir", str(tmp_path / name), *options]
            subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    sources = ["json.log", "json.file.log", "simple.log", "simple.file.log", "tqdm.log", "json"]
    runs = [f"{name}={tmp_path / name}" for name in sources]
    assert main(["compare", *runs, "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert sorted(row["name"] for row in table["rows"]) == sorted(sources)
    means = [row["mean"] for row in table["rows"]]
    assert list(means[0]) == ["1", "2"]
    assert all(mean == means[0] for mean in means)
    assert means[0]["1"] > means[0]["2"] > 0
    assert table["labels"]["seed"] == "1"
