"""fairseq_compat by itself: what build.sh makes can be installed into an environment that has nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

COMPAT = Path(__file__).resolve().parents[2] / "fairseq_compat"


def run(*command: object, check: bool = True) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([str(word) for word in command], check=check, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distribution")
    done = run("env", f"PYTHON={sys.executable}", "bash", COMPAT / "build.sh", folder, check=False)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip(f"hatchling could not be got: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return folder


def test_the_wheel_is_active_where_nothing_else_is_installed(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    assert run(python, "-c", "import sys; print(sys.meta_path[0].__name__)").stdout == "FairseqFinder\n"
    status = run(python, "-m", "fairseq_compat")
    assert "python -m fairseq_compat install" in status.stdout
    assert "encoder_copies" not in status.stdout  # nothing to say before there is a fairseq
    typed = "from importlib.resources import files; print(files('fairseq_compat').joinpath('py.typed').is_file())"
    assert run(python, "-c", typed).stdout == "True\n"
    run(python, "-m", "pip", "uninstall", "--yes", "fairseq-compat")
    assert "Fairseq" not in run(python, "-c", "import sys; print(sys.meta_path)").stdout


def test_the_source_distribution_has_the_tests(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    of_git = run("git", "-C", COMPAT, "ls-files", "tests", "src", "LICENSE", "CHANGELOG.md", "README.md", "build.sh")
    assert set(of_git.stdout.split()) <= names
    assert not [name for name in names if "cache" in name]
