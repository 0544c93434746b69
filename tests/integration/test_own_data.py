"""docs/own_data.md: the commands of the page, on a toy text and with a small model."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from programs import VENV

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = "--max-epoch 5 --cpu --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 16"
SMALL += " --decoder-ffn-embed-dim 16 --encoder-layers 1 --decoder-layers 1"

pytestmark = pytest.mark.end_to_end


def test_the_page_goes_from_text_to_bleu(toy_translation, tmp_path) -> None:
    page = (REPOSITORY / "docs/own_data.md").read_text()
    (commands,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    for place, small in (("--max-epoch 30", SMALL), ("--beam 5", "--beam 1 --cpu")):
        assert commands.count(place) == 1
        commands = commands.replace(place, small)
    for file in toy_translation.parent.glob("*.??"):
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "embinit_fairseq").symlink_to(REPOSITORY / "embinit_fairseq")
    environment = {**os.environ, "PATH": f"{VENV}/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "run1/result.json").read_text())
    assert len(result["epochs"]) == 5
    assert 0 <= result["scores"]["bleu"]["score"] <= 100
    assert len((tmp_path / "run1/test.hypothesis.text").read_text().splitlines()) == 20
