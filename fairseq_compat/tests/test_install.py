"""``python -m fairseq_compat install`` up to the commands that it would run; nothing is installed here."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

install = pytest.importorskip("fairseq_compat.install")
from fairseq_compat import __main__ as command  # noqa: E402

DISTRIBUTIONS = importlib.metadata.distributions


class Commands(list):
    """What would have run, with the code at the start of Python's and of fairseq's setup script then."""

    fails: str | None = None

    def run(self, words: list[str], env: dict[str, str]) -> SimpleNamespace:
        if "--target" in words and "cython" in words:
            os.makedirs(words[words.index("--target") + 1])
        tools = Path(env.get("PYTHONPATH", "").split(os.pathsep)[0])
        starts = (tools / "sitecustomize.py").read_text() if (tools / "sitecustomize.py").exists() else ""
        sources = sorted(os.listdir(words[-1])) if os.path.isdir(words[-1]) else []
        self.append(SimpleNamespace(words=words, starts=starts, sources=sources, tools=tools, env=env))
        return SimpleNamespace(returncode=int(bool(self.fails) and self.fails in words))


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """No fairseq, pip, and a compiler."""
    ran = Commands()
    monkeypatch.setattr(subprocess, "run", ran.run)
    monkeypatch.setattr(install, "installed", lambda: None)
    monkeypatch.setattr(install, "missing_for_compiling", list)
    monkeypatch.setattr(install, "requirements", lambda: ["torch", "hydra-core<1.4"])
    monkeypatch.setattr(install, "further_requirements", lambda target: [])
    monkeypatch.setattr(importlib.util, "find_spec", {"pip": True}.get)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return ran


def parts_that_are_built(ran: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of fairseq's compiled parts, one with its source and one without."""
    calls: list[dict] = []
    monkeypatch.setitem(sys.modules, "setuptools", SimpleNamespace(setup=lambda **options: calls.append(options)))
    monkeypatch.setenv("FAIRSEQ_COMPILED", ran.env["FAIRSEQ_COMPILED"])
    exec(ran.starts, {})
    parts = [SimpleNamespace(name=name, sources=[file]) for name, file in (("bleu", __file__), ("nat", "missing.cpp"))]
    sys.modules["setuptools"].setup(name="fairseq", ext_modules=parts)
    assert calls[0]["name"] == "fairseq"
    return [part.name for part in calls[0]["ext_modules"]]


def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, *arguments: object) -> tuple[int, str, str]:
    """Exit code, output and errors of the command."""
    monkeypatch.setattr(sys, "argv", ["fairseq_compat", "install", *map(str, arguments)])
    return command.main(), *capsys.readouterr()


def test_with_pip_and_a_compiler(commands, monkeypatch, capsys) -> None:
    """Where there is uv, too, which may serve another environment, pip is taken."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    status, said, _ = main(monkeypatch, capsys)
    assert status == 0
    assert said.endswith("compiled\n")
    needs, tools, fairseq, look = commands
    assert look.words == [sys.executable, "-c", "import fairseq"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
    assert needs.words == [*pip, "torch", "hydra-core<1.4"]
    assert needs.env["PATH"] == os.environ["PATH"]
    assert tools.words == [*pip, "--quiet", "--target", str(fairseq.tools), "setuptools", "wheel", "cython"]
    assert fairseq.words == [*pip, "--no-deps", "--no-build-isolation", "--no-cache-dir", "fairseq==0.12.2"]
    assert parts_that_are_built(fairseq, monkeypatch) == ["bleu"]
    assert not fairseq.tools.exists()


@pytest.mark.parametrize(("arguments", "why"), [(["--no-compiler"], "as asked"), ([], "Python.h")])
def test_without_a_compiler(commands, monkeypatch, capsys, arguments, why) -> None:
    """fairseq's setup script gets no compiled part."""
    monkeypatch.setattr(install, "missing_for_compiling", lambda: ["g++", "Python.h"])
    status, said, _ = main(monkeypatch, capsys, *arguments)
    assert status == 0
    assert why in said
    assert parts_that_are_built(commands[-2], monkeypatch) == []


def test_a_checkout_into_a_folder_with_uv(commands, monkeypatch, capsys, tmp_path) -> None:
    """It is built from a copy, also beside a fairseq that is installed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(install, "installed", lambda: "/somewhere/fairseq")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    for name in ("setup.py", "README.md", ".git", "build"):
        (tmp_path / name).touch()
    (tmp_path / "examples").symlink_to("nowhere")
    status, said, _ = main(monkeypatch, capsys, "--source", tmp_path, "--target", "there")
    assert status == 0
    there = Path("there").absolute()
    assert f"export PYTHONPATH={there} PATH={there}/bin:$PATH" in said
    assert commands[-1].env["PYTHONPATH"] == f"{there}:/mine"  # it is imported once
    words = commands[-2].words
    assert words[:5] == ["/bin/uv", "pip", "install", "--python", sys.executable]
    assert words[5:-1] == ["--no-deps", "--no-build-isolation", "--no-cache", "--target", "there"]
    assert words[-1] != str(tmp_path)
    assert commands[-2].sources == ["README.md", "examples", "setup.py"]


def test_what_a_later_fairseq_asks_for_is_installed_too(commands, monkeypatch, tmp_path) -> None:
    """But not what only other Pythons need, what we chose, what is here, and torchaudio."""
    asked = ["hydra-core>=1.0.7", "torchaudio", "scikit-learn (>=1)", "dataclasses; python_version<'3.7'", "pytest"]
    folder = tmp_path / "fairseq-0.12.2.dist-info"
    folder.mkdir()
    lines = ["Name: fairseq", *(f"Requires-Dist: {one}" for one in asked)]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")
    monkeypatch.undo()
    assert set(install.further_requirements(str(tmp_path))) <= {"scikit-learn"}
    monkeypatch.setattr(importlib.metadata, "distributions", lambda **given: DISTRIBUTIONS(**given) if given else [])
    assert install.further_requirements(str(tmp_path)) == ["scikit-learn", "pytest"]


def test_a_fairseq_that_is_there_stays(commands, monkeypatch, capsys) -> None:
    monkeypatch.setattr(install, "installed", lambda: "/somewhere/fairseq")
    status, said, _ = main(monkeypatch, capsys)
    assert status == 0
    assert "/somewhere/fairseq" in said
    assert "uninstall" in said
    assert len(commands) == 1


FOLDER = "FOLDER"
#: Python, arguments, a word of the command that fails, number of commands before the error, remedy
REFUSED = {
    "python": ("3.9.18", [], None, 0, "3.10 to 3.14"),
    "newer python": ("3.15.0", [], None, 0, "3.10 to 3.14"),
    "no sources": ("3.12.1", ["--source", FOLDER], None, 0, "setup.py"),
    "no name of sources": ("3.12.1", ["--source", ""], None, 0, "setup.py"),
    "a fairseq in the target": ("3.12.1", ["--target", FOLDER], None, 0, "another folder"),
    "another one is there": ("3.12.1", ["--no-compiler"], None, 0, "pip uninstall fairseq"),
    "requirements": ("3.12.1", [], "torch", 1, "pip --disable-pip-version-check install torch 'hydra-core<1.4'"),
    "compiling": ("3.12.1", [], "fairseq==0.12.2", 3, "--no-compiler"),
    "cannot be imported": ("3.12.1", [], "import fairseq", 4, "cannot be imported"),
    "no installer": ("3.12.1", [], None, 0, "ensurepip"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_failure_is_one_line_with_the_remedy(what, commands, monkeypatch, capsys, tmp_path) -> None:
    version, arguments, commands.fails, ran, remedy = REFUSED[what]
    monkeypatch.setattr(sys, "version_info", tuple(map(int, version.split("."))))
    monkeypatch.setattr(sys, "version", f"{version} (main)")
    (tmp_path / "fairseq").mkdir()
    if what == "another one is there":
        monkeypatch.setattr(install, "installed", lambda: "/somewhere/fairseq")
    if what == "no installer":
        monkeypatch.setattr(shutil, "which", lambda name: None)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    status, _, said = main(monkeypatch, capsys, *(str(tmp_path) if word == FOLDER else word for word in arguments))
    assert (status, said[:7], said.count("\n"), len(commands)) == (1, "error: ", 1, ran)
    assert remedy in said


def test_what_compiling_and_fairseq_need(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name.startswith("no-such") else name)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setenv("CC", "no-such-cc -O2")
    monkeypatch.setenv("CXX", "no-such-c++ -O2")
    assert install.missing_for_compiling() == ["no-such-cc", "no-such-c++", "Python.h"]
    monkeypatch.setenv("CC", "cc -O2")
    (tmp_path / "Python.h").touch()
    assert install.missing_for_compiling() == ["no-such-c++"]
    assert {"torch>=1.13", "numpy"} <= set(install.requirements())
