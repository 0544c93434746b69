"""The machine that something is measured on: processor, load, versions, memory of this process. Imports no torch, so
that measurements of memory do not have it in them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def peak_mb() -> float:
    """The most memory this process has held resident, in MiB. (ru_maxrss would include the parent's before exec.)"""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)


def machine(packages: Sequence[str]) -> dict[str, Any]:
    """Processor, load and versions, so that a figure can be judged."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "cpu": model,
        "cpus": os.cpu_count(),
        "load": [round(value, 1) for value in os.getloadavg()],
        "python": platform.python_version(),
        "versions": versions,
    }
