"""The distributions that scripts/release.sh builds, installed into environments that have no clone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest
from trainings import REPOSITORY, TRAIN


def run(*command: object, check: bool = True, **options) -> subprocess.CompletedProcess:
    """Run a command without PYTHONPATH, which names the clone."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, **options)
    assert not check or done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distributions")
    done = run("env", f"PYTHON={sys.executable}", "bash", REPOSITORY / "scripts/release.sh", folder, check=False)
    if done.returncode and "Could not find a version" in done.stderr:
        pytest.skip(f"the build tools cannot be downloaded: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    assert len(list(folder.iterdir())) == 4
    return folder


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of a new environment."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    return tmp_path / "venv" / "bin" / "python"


def pip(python: Path, *arguments: object) -> None:
    run(sys.executable, "-m", "pip", "--python", python, *arguments)


def test_the_layer_is_active_where_nothing_else_is_installed(built: Path, python: Path) -> None:
    pip(python, "install", "--no-deps", "--no-index", *built.glob("fairseq_compat-*.whl"))
    assert run(python, "-c", "import sys; print(sys.meta_path[0].__name__)").stdout == "FairseqFinder\n"
    status = run(python, "-m", "fairseq_compat")
    assert "python -m fairseq_compat install" in status.stdout
    assert "encoder_copies" not in status.stdout  # nothing to say before there is a fairseq
    pip(python, "uninstall", "--yes", "fairseq-compat")
    assert "Fairseq" not in run(python, "-c", "import sys; print(sys.meta_path)").stdout


def test_from_wheels_to_bleu_in_an_empty_folder(built: Path, python: Path, toy_translation: Path, tmp_path: Path):
    # fairseq, torch and the rest are those of this environment; a path file brings neither its hook nor the clone
    (folder,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (folder / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip(python, "install", "--no-deps", "--no-index", *built.glob("*.whl"))
    empty = tmp_path / "empty"
    empty.mkdir()
    options = ["embinit_fairseq" if Path(word).name == "embinit_fairseq" else word for word in TRAIN]
    bleu = ["--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 10}', "--max-epoch", 1, "--save-dir", "run"]
    done = run(python, "-m", "fairseq_cli.train", toy_translation, *options, *bleu, "--embed-init", "xavier", cwd=empty)
    assert "init:xavier" in done.stderr + done.stdout
    assert "valid_bleu" in done.stderr + done.stdout
    assert not re.search("hydra.*Warning", done.stderr)  # which a process shows that imports fairseq itself
    where = run(python, "-c", "import embinit_fairseq; print(embinit_fairseq.__file__)", cwd=empty).stdout
    assert where.startswith(str(folder))


def test_the_source_distribution_has_the_tests(built: Path) -> None:
    (source,) = built.glob("fairseq_compat-*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    compat = REPOSITORY / "fairseq_compat"
    of_git = run("git", "-C", compat, "ls-files", "tests", "src", "LICENSE", "CHANGELOG.md", "README.md")
    assert set(of_git.stdout.split()) <= names
    assert not [name for name in names if "cache" in name]


def test_a_tag_of_another_version_is_refused(tmp_path: Path) -> None:
    script = REPOSITORY / "scripts/release.sh"
    done = run("env", f"PYTHON={sys.executable}", "TAG=v9.9.9", "bash", script, tmp_path, check=False)
    assert done.returncode == 1
    assert "the tag is v9.9.9" in done.stderr
