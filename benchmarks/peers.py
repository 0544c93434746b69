"""Measure one job in several programs, one process per program: CPU seconds and peak memory.

A benchmark script defines jobs (functions of its parsed arguments that return `measured(...)`), calls `child_main` when
it is started with `--job`, and `run_job` otherwise. All numbers come from one run on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from embinit_fairseq.machine import cpu_name, package_versions

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


def resident_mb(peak: bool = True) -> float:
    """Return this process's resident memory in MiB (ru_maxrss would include the parent's peak before exec)."""
    status = Path("/proc/self/status")
    if status.exists():
        name = "VmHWM" if peak else "VmRSS"
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name)) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)


def measured(work: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Run `work` once; return its result and {cpu_seconds, wall_seconds, peak_mb, imports_mb}."""
    imports, cpu, wall = resident_mb(), time.process_time(), time.perf_counter()
    result = work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return result, {"cpu_seconds": cpu, "wall_seconds": wall, "peak_mb": resident_mb(), "imports_mb": imports}


def child_main(jobs: dict[str, Job], args: argparse.Namespace) -> None:
    """Run one job and print its numbers as JSON; a package that is not installed is reported as such."""
    try:
        print(json.dumps(jobs[args.job](args)))
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))


def run_job(script: str, job: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the numbers of one job, run by `script --job JOB ARGUMENTS` in a fresh process with one thread."""
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    command = [sys.executable, script, "--job", job, *arguments]
    done = subprocess.run(command, env={**os.environ, **threads}, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])
