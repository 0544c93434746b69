"""Describe the software and the machine: the entries of a record about where it was made."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: packages whose versions a record names
PACKAGES = ("torch", "numpy", "fairseq", "fairseq-compat", "embinit-fairseq", "sacrebleu", "hydra-core", "omegaconf")


def versions() -> dict[str, str | None]:
    """Return the versions of Python and PACKAGES, and the plugin's `revision` (see `git_revision`)."""
    return {"python": platform.python_version(), **package_versions(PACKAGES), "revision": git_revision()}


def package_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return package -> version, None where it is not installed."""
    installed: dict[str, str | None] = {}
    for package in packages:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            installed[package] = None
    return installed


def git_revision() -> str | None:
    """Return the commit of the checkout, with "+" if tracked files differ from it; None for an installed copy."""
    here = Path(__file__).resolve()
    commands = (
        ["git", "ls-files", "--error-unmatch", here.name],  # fails in an environment inside another checkout
        ["git", "rev-parse", "HEAD"],
        ["git", "status", "--porcelain", "--untracked-files=no", "."],
    )
    try:
        _, head, changed = (
            subprocess.run(command, cwd=here.parent, capture_output=True, text=True, check=True).stdout.strip()
            for command in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")


def cpu_name() -> str:
    """Return the processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def hardware() -> dict[str, Any]:
    """Return {"cpu": name, "cores": usable ones, "threads": of torch, "gpus": names}; None for unknown values.

    torch runs in another process, since it would stay in the memory of this one. With one thread and no device of
    NVIDIA or AMD the answer is known without torch.
    """
    facts: dict[str, Any] = {"cpu": cpu_name(), "cores": cores()}
    devices = [device for name in ("nvidia[0-9]*", "dxg", "kfd") for device in Path("/dev").glob(name)]
    if os.environ.get("OMP_NUM_THREADS") == "1" and not devices:
        return {**facts, "threads": 1, "gpus": []}
    ask = (
        "import json, torch; names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]; "
        "print(json.dumps({'threads': torch.get_num_threads(), 'gpus': names}))"
    )
    try:
        answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout
        return {**facts, **json.loads(answer.splitlines()[-1])}
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return {**facts, "threads": None, "gpus": None}
