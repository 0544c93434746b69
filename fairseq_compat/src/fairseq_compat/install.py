"""Install unmodified fairseq into the environment of this interpreter: ``python -m fairseq_compat install``.

fairseq's own metadata ask for versions of hydra and omegaconf that current installers refuse, one of its compiled parts
needs torch to be built, and it has no wheels. So its real requirements are installed first, then fairseq without
dependencies, built against the torch of the environment; without a compiler, its Python files alone (see
`fairseq_compat.pure`).
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

#: requirement of the release that is installed by default
FAIRSEQ = "fairseq==0.12.2"
#: tools that build fairseq; numpy and torch are taken from the environment
BUILD = ("setuptools", "wheel", "cython")
#: first and last Python that fairseq runs on
PYTHONS = ((3, 10), (3, 14))
#: usual reasons why an installer fails
OUTSIDE = "no network? a full disk?"

#: sitecustomize.py of the build: the distribution on the index lacks the sources of the parts that need torch (libnat,
#: libbase), which a checkout has
SITE = """
import os

import setuptools

_setup = setuptools.setup


def setup(**options):
    parts = options.get("ext_modules") or []
    complete = [part for part in parts if os.environ["FAIRSEQ_COMPILED"] and all(map(os.path.exists, part.sources))]
    return _setup(**{**options, "ext_modules": complete})


setuptools.setup = setup
"""


class InstallError(Exception):
    """Signal that fairseq could not be installed, with reason and remedy."""


def missing_for_compiling() -> list[str]:
    """Return the missing ones of a C compiler, a C++ compiler and Python's headers."""
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
        InstallError: the environment has neither.
    """
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
    uv = shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--python", sys.executable]
    raise InstallError("found neither pip nor uv: install one of them (python -m ensurepip, or your system's package)")


def requirements() -> list[str]:
    """Return the real requirements of fairseq, which are the extra ``fairseq`` of this distribution."""
    lines = importlib.metadata.requires("fairseq-compat") or []
    return [line.partition(";")[0].strip() for line in lines if re.search(r"extra == ['\"]fairseq['\"]", line)]


def run(command: list[str], why: str = OUTSIDE, **environment: str) -> None:
    """Run a command with its output shown; raise InstallError, with the reason `why`, if it fails."""
    shown = " ".join(shlex.quote(word) for word in command)
    if subprocess.run(command, env={**os.environ, **environment}).returncode:
        raise InstallError(f"this failed, its messages are above ({why}): {shown}")


def installed() -> str | None:
    """Return the folder of the fairseq that this interpreter imports."""
    from fairseq_compat.report import fairseq_folders

    return next(iter(fairseq_folders()), None)


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def further_requirements(target: str | None) -> list[str]:
    """Return the missing requirements of the fairseq that was just installed.

    The main branch has more than the releases. All require torchaudio, and none imports it.
    """
    distributions = importlib.metadata.distributions(name="fairseq", path=[target] if target else sys.path)
    lines = [line for distribution in distributions for line in distribution.requires or [] if ";" not in line]
    present = {_name(distribution.metadata["Name"]) for distribution in importlib.metadata.distributions()}
    present |= {"torchaudio", *map(_name, requirements())}
    return [name for name in dict.fromkeys(map(_name, lines)) if name not in present]


def build(source: str, begin: list[str], compiled: bool, target: str | None) -> None:
    """Build fairseq from a requirement or a folder of its sources, and install it without dependencies."""
    with tempfile.TemporaryDirectory(prefix="fairseq-build-") as folder:
        tools = os.path.join(folder, "tools")
        run([*begin, "--quiet", "--target", tools, *BUILD])
        Path(tools, "sitecustomize.py").write_text(SITE, encoding="utf-8")
        if os.path.isdir(source):  # a build writes into the folder of the sources
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
    """Install fairseq and its requirements; return a sentence about the result.

    Args:
        source: ``FAIRSEQ``, or a folder with fairseq's sources (a checkout stays as it is).
        compiler: compile if that is possible.
        target: a folder for fairseq itself, to be put on PYTHONPATH; by default the environment's site-packages.

    Raises:
        InstallError: with the remedy.
    """
    first, last = (".".join(map(str, version)) for version in PYTHONS)
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        raise InstallError(
            f"found Python {sys.version.split()[0]}, fairseq runs on {first} to {last}: take another one"
        )
    # the index is never asked for the name of a mistyped folder
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
        return f"there is a fairseq already: {before}, with all requirements; for another one, uninstall it first"
    missing = missing_for_compiling() if compiler else []
    compiled = compiler and not missing
    build(source, begin, compiled, target)
    further = further_requirements(target)
    if further:
        run([*begin, *further])
    place = os.path.abspath(target) if target else None
    paths = os.pathsep.join(filter(None, [place, os.environ.get("PYTHONPATH")]))
    run([sys.executable, "-c", "import fairseq"], "it is installed, but cannot be imported", PYTHONPATH=paths)
    done = f"fairseq is in {place or installed()}, {'compiled' if compiled else 'in pure Python'}"
    if not compiled:
        why = f"for compiling these are missing: {', '.join(missing)}" if missing else "as asked"
        done += f" ({why}): the same results, slower"
    if place:
        programs = shlex.quote(os.path.join(place, "bin"))
        done += f"\nto use it: export PYTHONPATH={shlex.quote(place)} PATH={programs}:$PATH"
    return done
