"""scripts/reproduce on the small corpora of the other tests: grids, SLURM arrays, what is left out."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from test_iwslt17_scripts import write_talks
from test_multi30k_scripts import LAYERS, REPO, VENV, bash, corpus, moses, sentences  # noqa: F401
from test_sst2_scripts import model, phrases  # noqa: F401

SCRIPTS = REPO / "scripts" / "reproduce"
#: the tasks of an array, one after the other, as `sbatch --wait` does: what it was called with goes to a file
SBATCH = """#!/usr/bin/env bash
set -euo pipefail
printf '%s\\n' "$*" >>"$SBATCH_CALLS"
for word in "$@"; do
  case $word in
    --array=1-*) last=${word#--array=1-} ;;
    --wrap=*) command=${word#--wrap=} ;;
  esac
done
echo "Submitted batch job 7"
status=0
for ((task = 1; task <= last; task++)); do
  SLURM_JOB_ID=$((7 + task)) SLURM_ARRAY_TASK_ID=$task bash -c "$command" || status=1
done
exit $status
"""

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not (VENV / "bin" / "fairseq-train").is_file(), reason="fairseq is not installed beside pytest"),
]


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """An environment with sbatch; its calls are in tmp_path/calls."""
    program = tmp_path / "slurm" / "sbatch"
    program.parent.mkdir()
    program.write_text(SBATCH)
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}", "SBATCH_CALLS": str(tmp_path / "calls")}


def rows(table: Path) -> list[list[str]]:
    lines = [line for line in table.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def weights(run: Path) -> dict:
    import torch

    return torch.load(run / "checkpoints" / "checkpoint_last.pt", weights_only=True, mmap=False)["model"]


def test_table3_in_an_array_trains_what_its_labels_say(corpus: Path, tmp_path: Path, slurm: dict[str, str]) -> None:  # noqa: F811
    grid = ["--output", tmp_path / "out put", "--inits", "xavier", "--dim", "16", "--seeds", "1", "--epochs", "1"]
    grid += ["--", "--heads", "2", "--ffn", "16", "--batch", "32", *LAYERS]
    done = bash(SCRIPTS / "table3.sh", *grid, MULTI30K=str(corpus), **slurm)
    runs = tmp_path / "out put" / "runs"
    assert sorted(path.name for path in runs.iterdir()) == [
        f"xavier.trained_{trained}.positions_{positions}.seed1"
        for trained in ("no", "yes")
        for positions in ("no", "yes")
    ]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 1
    assert "--array=1-4" in calls[0]
    assert "in a SLURM array" in done.stderr
    for run in runs.iterdir():
        result = json.loads((run / "result.json").read_text())
        frozen = "--embed-init-freeze encoder decoder" in result["command"]
        assert frozen == (result["labels"]["trained"] == "no")
        without = "--no-token-positional-embeddings" in result["command"]
        assert without == (result["labels"]["positions"] == "no")
        assert (result["init"]["slots"]["encoder"]["absorption_ratio"] is None) == without
        assert {"bleu", "bleu_tokenized", "chrf"} <= set(result["scores"])
        assert (run / "test.reference.text").read_text().count("\n") == 30
    found = rows(tmp_path / "out put" / "results.md")
    names = [f"positions {p}, trained {t}" for p in ("no", "yes") for t in ("no", "yes")]
    assert [row[0] for row in found[2:6]] == names
    assert [row[:2] for row in found if row[0] in names and row[1] == "1" and "-" not in row[2]] == []
    assert found[6][0] == "against positions yes, trained yes"
    assert [row[0] for row in found[8:]] == names[:3]
    before = {path: path.stat().st_mtime_ns for path in runs.glob("*/result.json")}
    bash(SCRIPTS / "table3.sh", "--jobs", "2", *grid, MULTI30K=str(corpus))
    assert {path: path.stat().st_mtime_ns for path in runs.glob("*/result.json")} == before


def test_table1_and_table2_of_what_is_there(corpus: Path, phrases: Path, tmp_path: Path) -> None:  # noqa: F811
    generator, vectors = np.random.default_rng(0), tmp_path / "en.txt"
    words = "the this a very film story is good fine lovely bad dull man woman".split()
    vectors.write_text("".join(f"{w} {' '.join(f'{x:.4f}' for x in generator.normal(0, 0.4, 16))}\n" for w in words))
    options = ["--output", tmp_path / "out", "--glove", f"en={vectors}", "--reduced"]
    small = ["--epochs", "1", "--jobs", "2", "--dim", "16", "--", "--batch", "32", "--", "--encoder-layers", "1"]
    data = {"MULTI30K": str(corpus), "SST2": str(phrases)}
    done = bash(SCRIPTS / "table1.sh", *options, *small, **data)
    assert "left out: sst2.bert (needs --hf bert=DIR)" in done.stderr
    assert "left out: multi30k.mt5 (needs --hf mt5=DIR)" in done.stderr
    text = (tmp_path / "out" / "results.md").read_text()
    for title in ("## multi30k.words, de-en", "## sst2.words, SST-2"):
        assert title in text
    strategies = ["xavier", "pretrained", "pretrained_xavier"]
    named = [row[0] for row in rows(tmp_path / "out" / "results.md") if row[0] in strategies]
    assert named == [*strategies, *strategies[1:], *strategies]  # rows, paired tests of Multi30k, rows of SST-2
    labels = json.loads(next((tmp_path / "out" / "sst2.words" / "runs").glob("*/result.json")).read_text())["labels"]
    assert labels["experiment"] == "sst2.words"
    assert labels["seed"] == "1"
    bash(SCRIPTS / "table2.sh", *options, **data)
    record = json.loads((tmp_path / "out" / "sst2.words.stats.json").read_text())
    report = json.loads((tmp_path / "out" / "sst2.words" / "runs" / "pretrained.seed1" / "result.json").read_text())
    slot = report["init"]["slots"]["encoder"]
    assert record["found"] == slot["found"] == 12
    assert record["coverage_tokens"] == pytest.approx(slot["coverage_tokens"])
    assert "## multi30k.words" in (tmp_path / "out" / "table2.md").read_text()  # vectors learned for table 1


#: what the paper says about its experiments: D, initialisations without the shuffled one, seeds, epochs, batch
PAPER = {
    "sst2.words": (300, 5, 5, 128),
    "sst2.bert": (768, 5, 5, 128),
    "sst2.t5": (512, 5, 5, 128),
    "mnli.words": (300, 3, 9, 128),
    "mnli.bert": (768, 3, 10, 128),
    "mnli.t5": (512, 3, 10, 128),
    "multi30k.words": (300, 4, 20, 64),
    "multi30k.mbert": (768, 4, 20, 128),
    "multi30k.mt5": (768, 4, 20, 96),
    "iwslt17.words": (300, 4, 20, 128),
    "iwslt17.mbert": (768, 4, 20, 128),
    "iwslt17.mt5": (768, 4, 20, 112),
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the scripts of the tables, whose data sets only write down what they are called with."""
    folder = tmp_path / "check out"
    shutil.copytree(SCRIPTS, folder / "scripts" / "reproduce")
    shutil.copy(REPO / "scripts" / "common.sh", folder / "scripts")
    for name in ("sst2", "mnli", "multi30k", "iwslt17"):
        (folder / "scripts" / name).mkdir()
        for script in ("prepare.sh", "run.sh"):
            call = f'echo "{name}/{script} $DATA | $*" >>"{folder}/calls"\n'
            (folder / "scripts" / name / script).write_text(call)
    return folder


def test_table1_has_the_twelve_experiments_of_the_paper(checkout: Path, tmp_path: Path) -> None:
    data = {name: str(tmp_path / name) for name in ("SST2", "MNLI", "MULTI30K", "IWSLT17")}
    models = {
        "bert": {"hidden_size": 768},
        "t5": {"d_model": 512},
        "mbert": {"hidden_size": 768},
        "mt5": {"d_model": 768},
    }
    for name in (*data, *models):
        (tmp_path / name).mkdir()
    for name, config in models.items():
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    (tmp_path / "en.txt").touch()
    options = ["--glove", f"en={tmp_path}/en.txt", "--hf", *(f"{name}={tmp_path / name}" for name in models)]
    done = bash(checkout / "scripts/reproduce/table1.sh", "--output", tmp_path / "out", *options, check=False, **data)
    assert "left out" not in done.stderr
    calls = [line.split(" | ") for line in (checkout / "calls").read_text().splitlines()]
    assert [call[0].split()[0] for call in calls] == [
        f"{name.partition('.')[0]}/{script}" for name in PAPER for script in ("prepare.sh", "run.sh")
    ]
    for (name, (dim, seeds, epochs, batch)), (where, arguments) in zip(PAPER.items(), calls[1::2]):
        dataset, kind = name.split(".")
        assert where.split(" ", 1)[1] == data[dataset.upper()]
        assert f"--output {tmp_path}/out/{name} " in arguments
        assert f" --epochs {epochs} -- " in arguments
        assert f" --seeds {' '.join(map(str, range(1, seeds + 1)))} --epochs " in arguments
        assert f" --label experiment={name} --batch {batch}" in arguments
        inits = "xavier pretrained pretrained_xavier" + ("" if kind == "words" else " shuffled")
        assert f" --inits {inits} --seeds " in arguments
        # the classifiers take D from the folder that prepare.sh has seen
        assert (f" --dim {dim} " in arguments) == (kind == "words" or dataset in ("multi30k", "iwslt17"))
        assert (f" --hf {tmp_path / kind} " in arguments) == (kind != "words")


def test_table2_of_the_larger_translation_task(tmp_path: Path) -> None:
    """Of the German side, without any training."""
    pairs, folder, vectors = sentences(), tmp_path / "talks", tmp_path / "de.txt"
    folder.mkdir()
    parts = {"train": pairs[:120], "dev2010": pairs[120:140], "tst2010": pairs[140:160]}
    write_talks(
        folder,
        {
            name: {lang: [pair[at] for pair in part] for at, lang in enumerate(("de", "en"))}
            for name, part in parts.items()
        },
    )
    vectors.write_text("".join(f"{word} {at}.5 -{at} 0.25\n" for at, word in enumerate(("haus", "sieht", "house"))))
    options = ["--output", tmp_path / "out", "--experiments", "iwslt17.words", "--glove", f"de={vectors}"]
    bash(SCRIPTS / "table2.sh", *options, IWSLT17=str(folder))
    record = json.loads((tmp_path / "out" / "iwslt17.words.stats.json").read_text())
    german = gzip.decompress((tmp_path / "out/iwslt17.words/data/de-en/source/raw/train.de.gz").read_bytes()).decode()
    assert german.count("\n") == 120
    assert record["found"] == 2
    assert record["coverage_types"] == pytest.approx(2 / len(set(moses(german).split())))
    assert "## iwslt17.words" in (tmp_path / "out" / "table2.md").read_text()
    assert not (tmp_path / "out" / "iwslt17.words" / "runs").exists()


def test_table2_of_a_language_model(phrases: Path, model: Path, tmp_path: Path) -> None:  # noqa: F811
    options = ["--output", tmp_path / "out", "--experiments", "sst2.bert", "--hf", f"bert={model}"]
    bash(SCRIPTS / "table2.sh", *options, SST2=str(phrases))
    record = json.loads((tmp_path / "out" / "sst2.bert.stats.json").read_text())
    matrix = load_file(model / "model.safetensors")["embeddings.word_embeddings.weight"]
    words = (model / "vocab.txt").read_text().split()
    used = {line.split()[0] for line in (tmp_path / "out/sst2.bert/data/bin/input0/dict.txt").read_text().splitlines()}
    rows_used = matrix[[at for at, word in enumerate(words) if word in used and not word.startswith("[")]]
    assert record["std"] == pytest.approx(rows_used.std(ddof=1), rel=0.2)  # special rows are found by their roles
    assert record["coverage_tokens"] == 1
    assert not (tmp_path / "out" / "sst2.bert" / "runs").exists()


def test_table4_has_all_rows(corpus: Path, tmp_path: Path) -> None:  # noqa: F811
    vectors, questions = tmp_path / "en.txt", tmp_path / "questions.txt"
    generator = np.random.default_rng(0)
    words = ["a", "the", "man", "woman", "house", "ball", "book", "park", "beach"]
    vectors.write_text("".join(f"{w} {' '.join(f'{x:.4f}' for x in generator.normal(0, 0.4, 8))}\n" for w in words))
    questions.write_text(": things\nman woman house ball\npark beach man book\n")
    options = ["--output", tmp_path / "out", "--glove", vectors, "--questions", questions]
    bash(SCRIPTS / "table4.sh", *options, "--reduced", MULTI30K=str(corpus))
    record = json.loads((tmp_path / "out" / "table4.json").read_text())
    assert record["rows"] == len(words)
    assert len(record["results"]) >= 7
    assert record["results"][0]["questions"] == 2
    refused = bash(SCRIPTS / "table4.sh", *options, "--seeds", "1", "3", check=False, MULTI30K=str(corpus))
    assert refused.returncode != 0
    assert "--seeds 1 3: must follow each other" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--experiments", "sst2.bert"], "--experiments sst2.bert: needs SST2=DIR --hf bert=DIR"),
        (["--experiments", "mnli"], "--experiments mnli: not known"),
        (["--experiments", "mnli.words"], "--experiments mnli.words: needs MNLI=DIR --glove en=PATH"),
        (["--experiments", "mnli.t5"], "--experiments mnli.t5: needs MNLI=DIR --hf t5=DIR"),
        (["--experiments", "iwslt17.words"], "--experiments iwslt17.words: needs IWSLT17=DIR"),
        (["--experiments", "iwslt17.mt5"], "--experiments iwslt17.mt5: needs IWSLT17=DIR --hf mt5=DIR"),
        (["--glove", "fr=x"], "--glove fr=x: give de=PATH or en=PATH"),
        (["--hf", "bert=nowhere"], "--hf bert=nowhere: no Hugging Face folder"),
        (["--hf", "gpt=nowhere"], "--hf gpt: not known"),
    ],
)
def test_table1_says_what_is_missing(tmp_path: Path, arguments: list[str], message: str) -> None:
    nothing = {"SST2": "", "MNLI": "", "IWSLT17": ""}
    refused = bash(SCRIPTS / "table1.sh", "--output", tmp_path / "out", *arguments, check=False, **nothing)
    assert refused.returncode != 0
    assert message in refused.stderr
    assert not (tmp_path / "out").exists()
