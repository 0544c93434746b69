"""scripts/quickstart.sh from an empty folder to the table, much shortened, and again; docs/own_data.md as it stands."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from programs import VENV
from recipes import SCRIPTS, TRAINS, call, lines, rows, stamps

pytestmark = TRAINS
REPOSITORY = SCRIPTS.parent
SHORT = {"TRAIN": 60, "TEST": 20, "MONOLINGUAL": 600, "DIM": 8}
#: name of the row -> --embed-init
STRATEGIES = {"pretrained_xavier": "pretrained_xavier", "shuffled_xavier": "shuffled"}
SMALL = "--max-epoch 5 --cpu --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 16"
SMALL += " --decoder-ffn-embed-dim 16 --encoder-layers 1 --decoder-layers 1"


def test_quickstart_makes_a_table_curves_and_records_and_nothing_twice(tmp_path: Path) -> None:
    variables = {**SHORT, "OUTPUT": "the output", "INITS": " ".join(STRATEGIES), "cwd": tmp_path}
    first = call("quickstart.sh", "--max-epoch", 1, **variables)
    assert first.returncode == 0, first.stdout + first.stderr
    output = tmp_path / "the output"
    table = (output / "results.md").read_text(encoding="utf-8")
    assert table.strip() in first.stdout
    assert rows(output / "results.md")[:2] == list(STRATEGIES)  # a table of differences follows
    assert "`nrefs:1|case:mixed" in table
    assert (output / "curves.png").read_bytes().startswith(b"\x89PNG")
    ratios = {}
    for name, strategy in STRATEGIES.items():
        result = json.loads((output / "runs" / name / "result.json").read_text(encoding="utf-8"))
        assert (result["labels"]["direction"], result["labels"]["init"]) == ("de-en", name)
        slots = result["init"]["slots"]
        assert {slot["strategy"] for slot in slots.values()} == {strategy}
        assert all(slot["coverage_tokens"] > 0.5 for slot in slots.values())
        ratios[name] = [slots[side]["absorption_ratio"] for side in ("encoder", "decoder")]
        assert result["scores"]["sentences"] == 20
        assert result["scores"]["bleu"]["interval_95"] >= 0
    assert ratios["shuffled_xavier"] == pytest.approx(ratios["pretrained_xavier"], rel=0.05)
    assert not list(output.rglob("*.part"))

    made = stamps(path for path in output.rglob("*") if path.suffix in (".pt", ".txt", ".bin"))
    assert call("quickstart.sh", "--max-epoch", 1, **variables).stderr.count("done before") == len(STRATEGIES)
    assert stamps(made) == made
    other = call("quickstart.sh", "--max-epoch", 1, **variables, SEED=2)
    assert other.returncode != 0
    assert "SEED=1" in other.stderr
    assert "name another folder" in other.stderr


def test_the_page_about_own_data_goes_from_text_to_bleu(toy_translation: Path, tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/own_data.md").read_text()
    (commands,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    changes = {"--max-epoch 30": SMALL, "--beam 5": "--beam 1 --cpu", "clone=~/embinit_fairseq": f"clone={REPOSITORY}"}
    for place, small in changes.items():
        assert commands.count(place) == 1
        commands = commands.replace(place, small)
    for file in toy_translation.parent.glob("*.??"):
        (tmp_path / file.name).symlink_to(file)
    command = ["bash", "-euo", "pipefail", "-c", commands]
    path = {**os.environ, "PATH": f"{VENV}/bin:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "run1/result.json").read_text())
    assert len(result["epochs"]) == 5
    assert 0 <= result["scores"]["bleu"]["score"] <= 100
    assert len(lines(tmp_path / "run1/test.hypothesis.text")) == 20
