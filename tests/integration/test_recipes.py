"""What every recipe of scripts/ and examples/ promises: it is short, says what it takes, and names what is missing; and
what they share, scripts/env.sh."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from programs import VENV

REPO = Path(__file__).resolve().parents[2]
#: no recipes: they make the environment, run the tests, or are sourced
OTHERS = {"env.sh", "devices.sh", "parts.sh", "columns.sh", "release.sh", "setup.sh", "test.sh", "docs.sh"}
PATHS = [path for folder in ("scripts", "examples") for path in sorted((REPO / folder).rglob("*.sh"))]
RECIPES = [path for path in PATHS if path.name not in OTHERS]
recipes = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.relative_to(REPO).as_posix())
#: variables that env.sh, the shell and machines set
GIVEN = set("VENV REPO PLUGIN CPU PATH PYTHONPATH CUDA_VISIBLE_DEVICES BASH_SOURCE OMP_NUM_THREADS".split())


def bash(*words: object, cwd: Path, **variables: object) -> subprocess.CompletedProcess:
    known = ("PATH", "HOME", "PYTHON", "EMBINIT_TESTS_WARM_START", "LANG")
    environment = {name: value for name, value in os.environ.items() if name.startswith(known)}
    environment |= {"VENV": str(VENV), "OMP_NUM_THREADS": "1"}
    environment |= {name: str(value) for name, value in variables.items()}
    command = list(map(str, ["bash", *words]))
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)


@recipes
def test_plain_commands_and_a_help_that_names_every_variable(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    assert re.search(r'^source "\$\(dirname "\$\{BASH_SOURCE\[0\]\}"\)/.*env\.sh"$', text, re.MULTILINE)
    assert not re.search(r"\b(read_options|getopts)\b", text)
    code = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(code) > 3 or not any(line.startswith("exec ") for line in code), "a name for another script"
    shown = bash(path, "--help", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"bash \S*(scripts|examples)/\S+\.sh", shown.stdout)
    own = {name for name in re.findall(r"\$\{([A-Z][A-Z0-9_]*):[-?]", text) if not name.startswith("SLURM_")}
    assert not [name for name in sorted(own - GIVEN) if not re.search(rf"\b{name}\b", shown.stdout)]
    assert not list(tmp_path.iterdir())


@recipes
def test_what_is_missing_is_named(path: Path, tmp_path: Path) -> None:
    """Variables that must be set, one after the other; then a folder of data that is not there."""
    text = path.read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if line.startswith(": "))
    needed = re.findall(r"\$\{([A-Z][A-Z0-9_]*):\?", lines)
    for at, name in enumerate(needed):
        done = bash(path, cwd=tmp_path, **dict.fromkeys(needed[:at], tmp_path))
        assert done.returncode != 0
        assert f"{name}: " in done.stderr
        assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
    if "DATA" in needed and "DATA=$DATA" in text:  # else it leaves that to another recipe, or needs no data
        done = bash(path, cwd=tmp_path, **{**dict.fromkeys(needed, "out"), "DATA": "nowhere"})
        assert done.returncode != 0
        assert "DATA=nowhere" in done.stderr or "nowhere/" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


#: script, arguments, variables -> what it says; DATA has an empty folder `bin`
WRONG = {
    "wikibooks/prepare.sh /nowhere/text": "/nowhere/text: no such file",
    "wikibooks/prepare.sh - FREQUENT_TYPES=21": "FREQUENT_TYPES=21",
    "wikibooks/run.sh MODELS=gpt": "MODELS: gpt",
    "wmt14/prepare.sh CORPORA=giga": "CORPORA: en-de has no giga",
    "wmt14/prepare.sh CORPORA=europarl": "test-full.tgz",
    "wmt14/prepare.sh PAIR=de-en": "PAIR=de-en: set it to en-de or en-fr",
    "wmt14/prepare.sh LIMIT=1e3": "LIMIT=1e3: set it to an integer",
    "wmt14/train.sh": "no data of en-de",
    "multi30k/prepare.sh TOKENS=letters": "TOKENS=letters: choose moses",
    "multi30k/prepare.sh DIRECTION=en-en": "DIRECTION=en-en: choose",
    "reproduce/table1.sh EXPERIMENTS=mnli.t5": "mnli.t5 needs MNLI T5",
    "glue/prepare.sh TASK=WNLI": "TASK=WNLI",
    "glue/prepare.sh TASK=MNLI DICT=/nowhere": "DICT=/nowhere",
    "glue/run.sh a=/nowhere": "a=/nowhere",
    "sst2/prepare.sh": "neither",
    "sst2/prepare.sh HF=/nowhere": "HF=/nowhere",
}


@pytest.mark.parametrize(("called", "said"), WRONG.items())
def test_what_cannot_be_is_refused(called: str, said: str, tmp_path: Path) -> None:
    script, *words = called.split()
    (tmp_path / "bin").mkdir()
    variables = {"DATA": tmp_path, "OUTPUT": tmp_path / "out", "RUN": tmp_path / "out"}
    variables |= dict(word.split("=", 1) for word in words if word[0].isupper())
    done = bash(REPO / "scripts" / script, *(w for w in words if not w[0].isupper()), cwd=tmp_path, **variables)
    assert done.returncode != 0
    assert said in done.stderr


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Its arguments are a command, such as `settings FOLDER NAME=VALUE`."""
    path = tmp_path / "a recipe.sh"
    path.write_text(
        f'#!/usr/bin/env bash\n# It says.\n#\n# More.\n\n# not\nsource "{REPO}/scripts/env.sh"\n'
        f'source "{REPO}/scripts/devices.sh"\n"$@"\n'
    )
    return path


def test_a_folder_is_made_with_one_set_of_settings(recipe: Path, tmp_path: Path) -> None:
    assert bash(recipe, "-h", cwd=tmp_path).stdout == "It says.\n\nMore.\n"
    folder = tmp_path / "made here"
    for values in (["A=2"], ["A=1", "B=x y"]):  # other ones, while nothing was finished
        assert bash(recipe, "settings", folder, *values, cwd=tmp_path).returncode == 0
    (folder / "finished").touch()
    assert bash(recipe, "settings", folder, "A=1", "B=x y", cwd=tmp_path).returncode == 0
    refused = bash(recipe, "settings", folder, "A=1", "B=x", cwd=tmp_path)
    assert refused.returncode != 0
    assert "B=x y" in refused.stderr
    assert (folder / "settings").read_text() == "A=1\nB=x y\n"
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    busy = bash(recipe, "settings", folder, "A=1", "B=x y", cwd=tmp_path)
    os.close(descriptor)
    assert busy.returncode != 0
    assert "wait for its end" in busy.stderr


#: variables and arguments -> DEVICES, words before fairseq-train, options of this machine, which has no GPU
COUNTED = {
    "": "1||--num-workers 0 --cpu",
    "DEVICES=2": "2||--num-workers 0 --cpu --distributed-world-size 2",
    "DEVICES=2 --distributed-world-size=2": "2||--num-workers 0 --cpu --distributed-world-size 2",
    "LAUNCH=srun a --distributed-world-size 16 b": "16|srun bash launched.sh 16|",
    "LAUNCH=srun DEVICES=16 WORKER=1": "16|srun bash launched.sh 16|",
    "DEVICES=16 a --distributed-world-size 8": "DEVICES=16, but --distributed-world-size 8",
    "WORKER=1": "LAUNCH: WORKER needs it",
}


@pytest.mark.parametrize("called", COUNTED)
def test_devices_are_counted_once(recipe: Path, tmp_path: Path, called: str) -> None:
    """What LAUNCH starts gets no option of this machine."""
    words = called.split()
    variables = dict(word.split("=", 1) for word in words if word[:1].isupper())
    arguments = " ".join(word for word in words if not word[:1].isupper())
    code = f'count_devices {arguments}; echo "$DEVICES|${{LAUNCHER[*]}}|${{LOCAL[*]}}"'
    done = bash(recipe, "eval", code, cwd=tmp_path, CUDA_VISIBLE_DEVICES="", **variables)
    said = (done.stdout or done.stderr.split(": line 1: ")[-1]).replace(f"{REPO}/scripts/", "")
    assert COUNTED[called] in said
    assert done.returncode == 0 if "|" in said else done.returncode != 0


def test_each_launched_process_sees_for_itself_whether_there_is_a_gpu(tmp_path: Path) -> None:
    start = (REPO / "scripts/launched.sh", 2, "echo", "DATA", "--lr", 1)
    with_gpu = {"BASH_FUNC_compgen%%": "() { true; }", "WORLD_SIZE": 2}
    for variables, expected in (
        ({"CUDA_VISIBLE_DEVICES": ""}, "--num-workers 0 --cpu"),
        (with_gpu, "--num-workers 2 --fp16"),
        (with_gpu | {"PRECISION": "--bf16"}, "--num-workers 2"),
    ):
        said = bash(*start, cwd=tmp_path, **variables).stdout
        assert said == f"DATA {expected} --distributed-world-size 2 --lr 1\n"
    refused = bash(*start, cwd=tmp_path, WORLD_SIZE=4)
    assert refused.returncode != 0
    assert "DEVICES=2, but LAUNCH starts 4 processes" in refused.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not there")
def test_only_the_right_file_is_downloaded(tmp_path: Path) -> None:
    prepare, url = REPO / "scripts/multi30k/prepare.sh", f"file://{tmp_path}"
    for said in ("cannot be downloaded; check the connection, or set DATA", "not the file that was published"):
        done = bash(prepare, cwd=tmp_path, OUTPUT="out", MULTI30K_URL=url)
        assert done.returncode != 0
        assert f"{url}/raw/train.de.gz" in done.stderr
        assert said in done.stderr
        assert not list((tmp_path / "out").rglob("*.gz"))
        (tmp_path / "raw").mkdir(exist_ok=True)
        (tmp_path / "raw/train.de.gz").write_text("another file")
