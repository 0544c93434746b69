"""Options of all scripts of the data sets: what --help names is taken, what is wrong is said in one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SOURCED = {"multi30k/archs.sh", "reproduce/experiments.sh"}  # by others; no programs
NAMES = sorted({path.relative_to(SCRIPTS).as_posix() for path in SCRIPTS.glob("*/*.sh")} - SOURCED)
#: names read by another script, which it sources or starts
READERS = {
    "multi30k/absorption.sh": "multi30k/run.sh",
    "multi30k/duo.sh": "multi30k/run.sh",
    "iwslt17/train.sh": "multi30k/train.sh",
    "iwslt17/generate.sh": "multi30k/generate.sh",
    "iwslt17/run.sh": "multi30k/run.sh",
    **{f"mnli/{name}.sh": f"sst2/{name}.sh" for name in ("prepare", "train", "run")},
    **{
        f"wmt14_{pair}/{name}.sh": f"wmt14/{name}.sh"
        for pair in ("en_de", "en_fr")
        for name in ("prepare", "train", "generate")
    },
}
#: options of these that the script sets itself
FIXED = {"multi30k/absorption.sh": {"archs", "inits", "vectors-p"}, "multi30k/duo.sh": {"archs"}}
#: enough to come to the check of the values (of scripts that are not named here, only the names are tested)
NEEDED = {
    "expansion/adapt.sh": ["--data", "data", "--models", "models", "--output", "out"],
    "expansion/expand.sh": ["--data", "data", "--lm", "run", "--output", "out"],
    "expansion/prepare.sh": ["--output", "out"],
    "expansion/run.sh": ["--output", "out"],
    "expansion/train.sh": ["--data", "data", "--output", "out"],
    "glue/run.sh": ["--output", "out", "--checkpoints", "a=b"],
    "glue/prepare.sh": ["--task", "CoLA", "--output", "out"],
    "glue/train.sh": ["--data", "data", "--output", "out", "--arch", "roberta"],
    "iwslt17/generate.sh": ["--data", "data", "--run", "run"],
    "iwslt17/prepare.sh": ["--output", "out"],
    "iwslt17/run.sh": ["--output", "out"],
    "iwslt17/train.sh": ["--data", "data", "--output", "out"],
    "mnli/prepare.sh": ["--output", "out"],
    "mnli/run.sh": ["--output", "out", "--hf", "hf"],
    "mnli/train.sh": ["--data", "data", "--output", "out"],
    "multi30k/absorption.sh": ["--output", "out"],
    "multi30k/duo.sh": ["--output", "out"],
    "multi30k/generate.sh": ["--data", "data", "--run", "run"],
    "multi30k/prepare.sh": ["--output", "out"],
    "multi30k/run.sh": ["--output", "out"],
    "multi30k/train.sh": ["--data", "data", "--output", "out"],
    "reproduce/table1.sh": ["--output", "out"],
    "reproduce/table3.sh": ["--output", "out"],
    "sst2/prepare.sh": ["--output", "out"],
    "sst2/run.sh": ["--output", "out", "--hf", "hf"],
    "sst2/train.sh": ["--data", "data", "--output", "out"],
    "wikibooks/prepare.sh": ["--input", "text", "--output", "out"],
    "wikibooks/run.sh": ["--data", "data", "--output", "out"],
    "wikibooks/train.sh": ["--data", "data", "--output", "out", "--arch", "roberta"],
    "wmt14/generate.sh": ["--pair", "en-de", "--data", "data", "--run", "run"],
    "wmt14/prepare.sh": ["--pair", "en-de", "--output", "out"],
    "wmt14/train.sh": ["--pair", "en-de", "--data", "data", "--output", "out"],
    **{
        f"wmt14_{pair}/{name}.sh": needed
        for pair in ("en_de", "en_fr")
        for name, needed in (
            ("generate", ["--data", "data", "--run", "run"]),
            ("prepare", ["--output", "out"]),
            ("train", ["--data", "data", "--output", "out"]),
        )
    },
}
NUMBERS = set(
    "seed seeds epochs jobs dim heads ffn batch beam bpe-size min-count lr rates updates warmup device-batch mask-prob "
    "dropout save-every bpe-merges bpe-words vocabulary valid-every shard-mb frequent-types limit spm-lines max-length "
    "max-ratio shard-pairs update-tokens max-tokens keep average lenpen words valid-lines lm-updates layers every "
    "batch-tokens devices".split()
)


def bash(script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    """The script where there is a text, data that look prepared, a run and a Hugging Face folder."""
    environment = {**os.environ, "DATA": str(cwd), "VENV": sys.prefix}
    command = ["bash", str(SCRIPTS / script), *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)


def known_options(script: str) -> dict[str, bool]:
    """Those that the script reads -> whether a value follows."""
    text = (SCRIPTS / READERS.get(script, script)).read_text().replace("\\\n", "")
    names = re.search(r'^read_options "([^"]*)" "\$@"$', text, re.MULTILINE).group(1).split()
    return {name.rstrip(".?"): not name.endswith("?") for name in names if name != "--"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("data/bin", "hf", "CoLA", "run/checkpoints"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("data/settings", "text", "run/checkpoints/checkpoint_best.pt"):
        (tmp_path / name).touch()
    return tmp_path


def contents(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize("script", NAMES)
def test_help_names_every_option_and_no_other(script: str, tmp_path: Path) -> None:
    shown = bash(script, "--help", cwd=tmp_path)
    assert shown.returncode == 0
    assert "Usage: " in shown.stdout
    options = shown.stdout.split("Usage: ")[1]
    named = {
        name for line in options.splitlines() if line.startswith("  --") for name in re.findall(r" --([a-z-]+)", line)
    }
    fixed = FIXED.get(script, set())
    assert named & set(known_options(script)) == set(known_options(script)) - fixed
    assert re.search(r"default|needed|read from", options)


@pytest.mark.parametrize("script", NAMES)
def test_what_is_wrong_is_said_in_one_line_before_anything_is_written(script: str, folder: Path) -> None:
    name, before = Path(script).name, contents(folder)
    cases = [(["--colour", "red"], "--colour: no such option"), (["colour"], "colour: no such option")]
    cases += [
        ([f"--{option}"], f"--{option} needs a value") for option, value in known_options(script).items() if value
    ]
    for option in NUMBERS & set(known_options(script)) if script in NEEDED else ():
        cases += [([*NEEDED[script], f"--{option}", "x"], f"--{option} x: must be a")]
        cases += [([*NEEDED[script], f"--{option}", "-1"], f"--{option} -1: must be a")]
    fixed = {f"--{option}" for option in FIXED.get(script, set())}
    cases = [case for case in cases if case[0][-1] not in fixed]
    for arguments, message in cases:
        result = bash(script, *arguments, cwd=folder)
        assert result.returncode == 1, arguments
        assert result.stderr.startswith(f"{name}: error: {message}"), (arguments, result.stderr)
        assert result.stderr.count("\n") == 1, result.stderr
        assert result.stderr.count("error:") == 1
        assert result.stdout == ""
    assert contents(folder) == before


@pytest.mark.parametrize("script", [name for name in NAMES if "--data" in NEEDED.get(name, ())])
def test_a_mistyped_folder_of_data_is_named(script: str, folder: Path) -> None:
    arguments = ["dta" if word == "data" else word for word in NEEDED[script]]
    result = bash(script, *arguments, cwd=folder)
    assert result.returncode == 1
    assert result.stderr.startswith(f"{Path(script).name}: error: --data dta: ")
    assert "prepare.sh" in result.stderr
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    "script", ["glue/prepare.sh", "sst2/prepare.sh", "multi30k/prepare.sh", "wikibooks/prepare.sh", "wmt14/prepare.sh"]
)
@pytest.mark.parametrize("output", ["text", "text/below"])
def test_an_output_that_cannot_be_made_is_named(script: str, output: str, folder: Path) -> None:
    arguments = [output if word == "out" else word for word in NEEDED[script]]
    result = bash(script, *arguments, cwd=folder)
    assert result.returncode == 1
    assert f"error: --output {folder}/{output}: cannot be made (" in result.stderr
    assert result.stderr.endswith("choose another folder\n")


def test_the_example_of_tupe_checks_its_options_before_it_makes_anything(tmp_path: Path) -> None:
    script, output = SCRIPTS.parent / "examples" / "mlm_with_tupe" / "run.sh", tmp_path / "out"
    command = ["bash", str(script), "--output", str(output)]
    done = subprocess.run([*command, "--models", "tupe_a", "bert"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "--models bert: not known; choose of bert_a" in done.stderr
    assert not output.exists()
    output.mkdir()
    (output / "settings").write_text("seed=1\n")
    done = subprocess.run([*command, "--seed", "2"], capture_output=True, text=True)
    assert done.returncode != 0
    assert f"{output} was made with other options (seed=1): choose another --output" in done.stderr
