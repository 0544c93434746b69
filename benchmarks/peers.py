"""Measuring one job in several programs: each in a process of its own, CPU seconds and peak memory.

A benchmark script defines jobs (functions of its parsed arguments that return `measured(...)`), calls `child_main` when
it is started with `--job`, and `run_jobs` otherwise. All numbers come from one run on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from embinit_fairseq.io import cpu_name, package_versions

Job = Callable[[argparse.Namespace], "dict[str, Any]"]


def machine(packages: Sequence[str]) -> dict[str, Any]:
    """Return the processor, its load and the versions at this moment, so that a figure can be judged."""
    return {
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "load": [round(value, 1) for value in os.getloadavg()],
        "python": platform.python_version(),
        "versions": package_versions(packages),
    }


def peak_mb() -> float:
    """Return the peak of this process's resident memory in MiB (ru_maxrss would include the parent's before exec)."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)


def cpu_seconds() -> float:
    """User and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measured(work: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Run `work` once; its result and {cpu_seconds, wall_seconds, peak_mb, imports_mb}."""
    imports, cpu, wall = peak_mb(), cpu_seconds(), time.perf_counter()
    result = work()
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    return result, {"cpu_seconds": cpu, "wall_seconds": wall, "peak_mb": peak_mb(), "imports_mb": imports}


def child_main(jobs: dict[str, Job], args: argparse.Namespace) -> int:
    """Run one job and print its numbers as JSON; a package that is not installed is reported as such."""
    try:
        print(json.dumps(jobs[args.job](args)))
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
    return 0


def run_job(script: str, job: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The numbers of one job, run by `script --job JOB ARGUMENTS` in a fresh process with one thread."""
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, script, "--job", job, *arguments],
        env={**os.environ, **threads},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def summary(runs: list[dict[str, Any]], base_mb: float) -> dict[str, Any]:
    """Repeated runs of one job: all CPU seconds, their minimum and median, peak memory over the base process."""
    if "missing" in runs[0]:
        return runs[0]
    seconds = [run["cpu_seconds"] for run in runs]
    return {
        "cpu_seconds": [round(value, 3) for value in seconds],
        "min": round(min(seconds), 3),
        "median": round(statistics.median(seconds), 3),
        "wall_min": round(min(run["wall_seconds"] for run in runs), 3),
        "peak_over_base_mb": round(max(run["peak_mb"] for run in runs) - base_mb, 1),
        "imports_over_base_mb": round(max(run["imports_mb"] for run in runs) - base_mb, 1),
    }


def ratios(results: dict[str, Any], ours: str) -> dict[str, float]:
    """How many times the CPU seconds of `ours` each other job takes (minimum against minimum)."""
    return {
        name: round(result["min"] / max(results[ours]["min"], 1e-3), 1)
        for name, result in results.items()
        if name != ours and "min" in result
    }
