"""``python -m fairseq_compat install``: fairseq, unmodified, into the environment of this interpreter.

fairseq's own metadata ask for versions of hydra and omegaconf that current installers refuse, one of its compiled parts
needs torch to be built, and it has no wheels. So: what it really needs first, then fairseq without dependencies, built
against the torch that is here; where there is no compiler, its Python files alone (see `fairseq_compat.pure`).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

#: the release of fairseq that is installed where no other source is given
FAIRSEQ = "fairseq==0.12.2"
#: what builds it; numpy and torch are those of the environment
BUILD = ("setuptools", "wheel", "cython")
PYTHONS = ((3, 10), (3, 14))
#: why an installer fails, where nothing more is known
OUTSIDE = "no network? a full disk?"

#: Runs at the start of each interpreter of the build, in front of fairseq's own setup script: the distribution on the
#: index lacks the sources of the parts that need torch (libnat, libbase), which a checkout has.
SITE = """
import os

import setuptools

_setup = setuptools.setup


def setup(**options):
    parts = options.get("ext_modules") or []
    there = [part for part in parts if os.environ["FAIRSEQ_COMPILED"] and all(map(os.path.exists, part.sources))]
    return _setup(**{**options, "ext_modules": there})


setuptools.setup = setup
"""


class InstallError(Exception):
    """What went wrong, and what to do."""


def missing_for_compiling() -> list[str]:
    """Which of a C and a C++ compiler and Python's headers are not there."""
    missing = []
    for name in ("CC", "CXX"):
        command = shlex.split(os.environ.get(name) or sysconfig.get_config_var(name) or name.lower())[0]
        if shutil.which(command) is None:
            missing.append(command)
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        missing.append("Python.h")
    return missing


def installer() -> list[str]:
    """Return the beginning of a command by which pip or uv installs into this environment.

    Raises:
        InstallError: neither is here.
    """
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
    uv = shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--python", sys.executable]
    raise InstallError(
        "neither pip nor uv is here: install one of them (python -m ensurepip, or your system's package)"
    )


def requirements() -> list[str]:
    """What fairseq really needs: the extra ``fairseq`` of this distribution."""
    listed = importlib.metadata.requires("fairseq-compat") or []
    return [one.partition(";")[0].strip() for one in listed if re.search(r"extra == ['\"]fairseq['\"]", one)]


def run(command: list[str], why: str = OUTSIDE, **environment: str) -> None:
    """Show what the command says; raise InstallError if it fails."""
    shown = " ".join(shlex.quote(word) for word in command)
    if subprocess.run(command, env={**os.environ, **environment}).returncode:
        raise InstallError(f"this failed, its messages are above ({why}): {shown}")


def installed() -> str | None:
    """The folder of the fairseq that this interpreter imports."""
    from fairseq_compat.report import fairseq_folders

    return next(iter(fairseq_folders()), None)


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def further_requirements(target: str | None) -> list[str]:
    """What the fairseq that was just installed asks for, is not among `requirements`, and is not here.

    The main branch asks for more than the releases. torchaudio is asked for by all, and imported by none.
    """
    places = [target] if target else sys.path
    asked = [
        one for found in importlib.metadata.distributions(name="fairseq", path=places) for one in found.requires or []
    ]
    known = {"torchaudio", *map(_name, requirements())}
    here = {_name(one.metadata["Name"]) for one in importlib.metadata.distributions()}
    return [name for name in dict.fromkeys(_name(one) for one in asked if ";" not in one) if name not in known | here]


def build(source: str, begin: list[str], compiled: bool, target: str | None) -> None:
    """Build fairseq from a requirement or a folder of its sources, and install it without dependencies."""
    with tempfile.TemporaryDirectory(prefix="fairseq-build-") as folder:
        tools = os.path.join(folder, "tools")
        run([*begin, "--quiet", "--target", tools, *BUILD])
        Path(tools, "sitecustomize.py").write_text(SITE, encoding="utf-8")
        if os.path.isdir(source):  # a build writes into the folder it is given
            copy = os.path.join(folder, "fairseq")
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".git", "build"), symlinks=True)
            source = copy
        # a cached wheel may have been built with other parts
        uncached = ["--no-cache"] if os.path.basename(begin[0]).startswith("uv") else ["--no-cache-dir"]
        options = ["--no-deps", "--no-build-isolation", *uncached, *(["--target", target] if target else [])]
        paths = os.pathsep.join(filter(None, [tools, os.environ.get("PYTHONPATH")]))
        why = f"if it was compiling, --no-compiler does without; else: {OUTSIDE}" if compiled else OUTSIDE
        environment = {"PYTHONPATH": paths, "FAIRSEQ_COMPILED": "1" if compiled else ""}
        run([*begin, *options, source], why, **environment)


def install(source: str = FAIRSEQ, compiler: bool = True, target: str | None = None) -> str:
    """Install fairseq and what it needs. Returns what was done, in a sentence.

    Args:
        source: ``FAIRSEQ``, or a folder with fairseq's sources (a checkout stays as it is).
        compiler: compile, where that is possible.
        target: a folder for fairseq itself, to be put on PYTHONPATH; by default the environment's site-packages.

    Raises:
        InstallError: with the remedy.
    """
    first, last = (".".join(map(str, version)) for version in PYTHONS)
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        raise InstallError(
            f"fairseq runs on Python {first} to {last}; this is {sys.version.split()[0]}: take another one"
        )
    # the index is never asked for what a mistyped folder is called
    if source != FAIRSEQ and not (source and os.path.isfile(os.path.join(source, "setup.py"))):
        raise InstallError(f"--source {source!r}: no sources of fairseq (no setup.py); give the folder of a checkout")
    if target and os.path.exists(os.path.join(target, "fairseq")):  # pip would leave it, and say so in a warning only
        raise InstallError(f"--target {target}: there is a fairseq already; remove it, or give another folder")
    before = None if target else installed()
    if before and (source != FAIRSEQ or not compiler):
        raise InstallError(
            f"there is a fairseq already: {before}; remove it first (pip uninstall fairseq, with uv: uv pip uninstall "
            "fairseq), or give --target"
        )
    begin = installer()
    run([*begin, *requirements()])
    if before:
        return f"there is a fairseq already: {before}. What it needs is there, too; for another one, uninstall it first"
    missing = missing_for_compiling() if compiler else []
    compiled = compiler and not missing
    build(source, begin, compiled, target)
    further = further_requirements(target)
    if further:
        run([*begin, *further])
    place = os.path.abspath(target) if target else None
    paths = os.pathsep.join(filter(None, [place, os.environ.get("PYTHONPATH")]))
    run([sys.executable, "-c", "import fairseq"], "it is installed, but cannot be imported", PYTHONPATH=paths)
    done = f"fairseq is in {place or installed()}, " + ("compiled" if compiled else "in pure Python")
    if not compiled:
        why = f"for compiling these are missing: {', '.join(missing)}" if missing else "as asked"
        done += f" ({why}): the same results, slower"
    if place:
        done += (
            f"\nto use it: export PYTHONPATH={shlex.quote(place)} PATH={shlex.quote(os.path.join(place, 'bin'))}:$PATH"
        )
    return done
