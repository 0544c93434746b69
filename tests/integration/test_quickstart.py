"""scripts/quickstart.sh from an empty folder to the table, much shortened, and again; the pages on one's own text."""

from __future__ import annotations

import importlib.util
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
STRATEGIES = {"xavier": "xavier", "shuffled_xavier": "shuffled"}
#: what has learned nothing translates up to the greatest length
SHORT_TEXT = ["--max-source-positions", "40", "--max-target-positions", "40"]
SMALL = "--max-epoch 5 --cpu --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 16"
SMALL += f" --decoder-ffn-embed-dim 16 --encoder-layers 1 --decoder-layers 1 {' '.join(SHORT_TEXT)}"


def test_quickstart_makes_a_table_curves_and_records_and_nothing_twice(tmp_path: Path) -> None:
    options = "quickstart.sh", "--max-epoch", 1, *SHORT_TEXT
    variables = {**SHORT, "OUTPUT": "the output", "INITS": " ".join(STRATEGIES), "cwd": tmp_path}
    first = call(*options, **variables)
    assert first.returncode == 0, first.stdout + first.stderr
    output = tmp_path / "the output"
    table = (output / "results.md").read_text(encoding="utf-8")
    cells = [line.split() for line in first.stdout.splitlines()]
    said = {name: float(ratio) for name, *_, ratio in filter(None, cells) if name in STRATEGIES}
    assert list(said) == list(STRATEGIES)
    assert "results.md" in first.stdout.splitlines()[-1]
    assert rows(output / "results.md")[:2] == list(STRATEGIES)  # a table of differences follows
    assert "`nrefs:1|case:mixed" in table
    assert (output / "curves.png").read_bytes().startswith(b"\x89PNG")
    ratios = {}
    for name, strategy in STRATEGIES.items():
        result = json.loads((output / "runs" / name / "result.json").read_text(encoding="utf-8"))
        assert (result["labels"]["direction"], result["labels"]["init"]) == ("de-en", name)
        slots = result["init"]["slots"]
        assert {slot["strategy"] for slot in slots.values()} == {strategy}
        assert name == "xavier" or all(slot["coverage_tokens"] > 0.5 for slot in slots.values())
        ratios[name] = [slots[side]["absorption_ratio"] for side in ("encoder", "decoder")]
        assert result["scores"]["sentences"] == 20
        assert "interval_95" in result["scores"]["bleu"]
    assert said == pytest.approx({name: encoder for name, (encoder, _) in ratios.items()}, abs=0.0051)
    assert ratios["shuffled_xavier"] == pytest.approx(ratios["xavier"], rel=0.1)
    assert not list(output.rglob("*.part"))

    made = stamps(path for path in output.rglob("*") if path.suffix in (".pt", ".txt", ".bin"))
    assert call(*options, **variables).stderr.count("done before") == len(STRATEGIES)
    assert stamps(made) == made
    other = call(*options, **variables, SEED=2)
    assert other.returncode != 0
    assert "SEED=1" in other.stderr
    assert "name another folder" in other.stderr


#: word in a block of a page -> module without which the block cannot run
NEEDS = {"ct2": "ctranslate2", "export-hf": "transformers", "from transformers": "transformers"}


def commands_of(page: str, language: str = "bash") -> str:
    """Return all blocks of a page in a language, without those that need an optional module that is missing."""
    text = (REPOSITORY / "docs" / page).read_text()
    missing = [word for word, module in NEEDS.items() if importlib.util.find_spec(module) is None]
    blocks = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return "".join(block for block in blocks if not any(word in block for word in missing))


@pytest.mark.parametrize("page", ["own_data.md", "sentencepiece.md"])
def test_a_page_goes_from_text_to_bleu(page: str, toy_translation: Path, tmp_path: Path) -> None:
    """Its commands in a folder with the text and nothing else; every English sentence ends with `it's`."""
    commands = commands_of(page)
    changes = {"--max-epoch 30": SMALL, "--beam 5": "--beam 1 --cpu"}
    if page == "sentencepiece.md":
        changes["clone=~/embinit_fairseq"] = f"clone={REPOSITORY}"
    for place, small in changes.items():
        assert place in commands
        commands = commands.replace(place, small)
    for file in toy_translation.parent.glob("*.??"):
        text = file.read_text()
        (tmp_path / file.name).write_text(text.replace("\n", " it's\n") if file.suffix == ".en" else text)
    command = ["bash", "-euo", "pipefail", "-c", commands]
    path = {**os.environ, "PATH": f"{VENV}/bin:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "run1/result.json").read_text())
    assert len(result["epochs"]) == 5
    assert 0 <= result["scores"]["bleu"]["score"] <= 100
    hypotheses = lines(tmp_path / "run1/test.hypothesis.text")
    assert len(hypotheses) == 20
    if page == "own_data.md":  # what Moses writes for 's is one piece: BPE was learned on what it cuts
        assert all(line.split()[-1] == "&apos;s" for line in lines(tmp_path / "data/text/test.en"))
        commands = commands_of("use_a_model.md").replace("--beam 5", "--beam 1 --cpu")
        # the converted model has no limit of its length
        program = commands_of("use_a_model.md", "python").replace("beam_size=5", "beam_size=1, max_decoding_length=8")
        for command in (["bash", "-euo", "pipefail", "-c", commands], [VENV / "bin/python", "-c", program]):
            done = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        for again in ("translated.en", "run1/test.hypothesis.text"):
            assert lines(tmp_path / again) == hypotheses
        if importlib.util.find_spec("ctranslate2"):
            (first,) = re.findall(r"^H-0\t\S+\t(.*)$", (tmp_path / "run1/test.generate.log").read_text(), re.MULTILINE)
            assert done.stdout.splitlines()[-1] == str(first.split()[:8])
            compare = [VENV / "bin/python", REPOSITORY / "benchmarks/ct2.py", "--checkpoint", "run1/averaged.pt"]
            compare += "--data data/bin --beam 1 --longest 8 --repeats 1".split()
            done = subprocess.run(compare, cwd=tmp_path, env=path, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            found = json.loads(done.stdout)
            assert found["equal"] == found["sentences"] == 20
            assert found["distinct"] > 2
        return
    assert lines(tmp_path / "translated.en") == hypotheses  # of raw text and of what was cut before
    program = (
        commands_of(page, "python").replace("beam=5", "beam=1").replace("Ein Hund läuft durch den Schnee.", "d1 d2")
    )
    program += """for text, pieces in zip(open("test.de"), open("spm.test.de")):
    assert model.encode(text).tolist() == model.src_dict.encode_line(pieces, add_if_not_exist=False).tolist()
print(model.translate(open("test.de").readline(), beam=1))"""
    done = subprocess.run([VENV / "bin/python", "-c", program], cwd=tmp_path, env=path, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == hypotheses[:1], done.stderr
