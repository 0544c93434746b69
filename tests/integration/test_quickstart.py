"""scripts/quickstart.sh from an empty folder to the table, much shortened, and again."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from programs import VENV

REPOSITORY = Path(__file__).resolve().parents[2]
SHORT = {"TRAIN": "150", "TEST": "20", "MONOLINGUAL": "1500", "DIM": "8"}
#: name of the row -> --embed-init
STRATEGIES = {"pretrained_xavier": "pretrained_xavier", "shuffled_xavier": "shuffled"}

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]


def quickstart(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it from another folder."""
    environment = {**os.environ, "VENV": str(VENV), "INITS": " ".join(STRATEGIES), **SHORT, **variables}
    command = ["bash", str(REPOSITORY / "scripts" / "quickstart.sh"), "--max-epoch", "1"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


def test_table_curves_and_records_and_nothing_twice(tmp_path: Path) -> None:
    first = quickstart(tmp_path, OUTPUT="the output")
    output = tmp_path / "the output"
    assert first.returncode == 0, first.stdout + first.stderr
    table = (output / "results.md").read_text(encoding="utf-8")
    assert table.strip() in first.stdout
    assert [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")][2:4] == list(STRATEGIES)
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
    assert ratios["shuffled_xavier"] == pytest.approx(ratios["pretrained_xavier"], rel=0.02)
    assert not list(output.rglob("*.part"))

    made = {path: path.stat().st_mtime_ns for path in output.rglob("*") if path.suffix in (".pt", ".txt", ".bin")}
    again = quickstart(tmp_path, OUTPUT="the output")
    assert again.stderr.count("done before") == len(STRATEGIES)
    assert {path: path.stat().st_mtime_ns for path in made} == made
    other = quickstart(tmp_path, OUTPUT="the output", SEED="2")
    assert other.returncode != 0
    assert "SEED=1" in other.stderr
    assert "name another folder" in other.stderr
