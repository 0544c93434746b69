"""Facts about the machine and the software that a figure was measured with. Imports neither torch nor fairseq."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "numpy", "fairseq", "fairseq-compat", "embinit-fairseq", "sacrebleu", "hydra-core", "omegaconf")

_ASK_TORCH = """
import json, torch
names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
print(json.dumps({"threads": torch.get_num_threads(), "gpus": names}))
"""


def versions() -> dict[str, str | None]:
    """Python's version, those of PACKAGES, and the plugin's `revision` (see `git_revision`)."""
    return {"python": platform.python_version(), **package_versions(PACKAGES), "revision": git_revision()}


def package_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Name -> version, None if it is not installed."""
    installed: dict[str, str | None] = {}
    for package in packages:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            installed[package] = None
    return installed


def git_revision() -> str | None:
    """The commit of the plugin's checkout, with "+" if tracked files of the plugin differ from it.

    None for an installed copy, also in an environment that lies in somebody else's checkout.
    """
    package = Path(__file__).resolve().parent
    commands = (
        ["git", "ls-files", "--error-unmatch", Path(__file__).name],
        ["git", "rev-parse", "HEAD"],
        ["git", "status", "--porcelain", "--untracked-files=no", "."],
    )
    try:
        _, head, changed = (
            subprocess.run(command, cwd=package, capture_output=True, text=True, check=True).stdout.strip()
            for command in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_gpu_device(devices: Path = Path("/dev")) -> bool:
    """Of NVIDIA, also below Windows, or AMD: one that torch may know, even if the environment hides it."""
    return any(device for name in ("nvidia[0-9]*", "dxg", "kfd") for device in devices.glob(name))


def hardware() -> dict[str, Any]:
    """{"cpu": name, "cores": usable ones, "threads": of torch in one process, "gpus": names}.

    torch is asked in a process of its own: it would stay in the memory of this one. None for what it cannot say. It
    need not be asked, which takes seconds, where there is no device, and one thread by OMP_NUM_THREADS; of more, MKL
    takes no more than there are cores.
    """
    if os.environ.get("OMP_NUM_THREADS") == "1" and not has_gpu_device():
        return {"cpu": cpu_name(), "cores": cores(), "threads": 1, "gpus": []}
    try:
        answer = subprocess.run([sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, check=True).stdout
        torch = json.loads(answer.splitlines()[-1])
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        torch = {"threads": None, "gpus": None}
    return {"cpu": cpu_name(), "cores": cores(), **torch}


def state(packages: Sequence[str]) -> dict[str, Any]:
    """Processor, load and versions at this moment, so that a figure can be judged."""
    return {
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "load": [round(value, 1) for value in os.getloadavg()],
        "python": platform.python_version(),
        "versions": package_versions(packages),
    }


def peak_mb() -> float:
    """The most memory this process has held resident, in MiB. (ru_maxrss would include the parent's before exec.)"""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)


def processor_seconds(root: int) -> float | None:
    """User and system time so far of a process, its descendants, and those that they have waited for.

    None where the system does not tell (there is no /proc).
    """
    try:
        tick = os.sysconf("SC_CLK_TCK")
        stats = [stat for entry in os.scandir("/proc") if entry.name.isdigit() and (stat := _stat(entry.name))]
    except (OSError, ValueError):
        return None
    children: dict[int, list[int]] = defaultdict(list)
    for pid, parent, _ in stats:
        children[parent].append(pid)
    family, new = {root}, [root]
    while new:
        new = [child for parent in new for child in children[parent]]
        family.update(new)
    return sum(ticks for pid, _, ticks in stats if pid in family) / tick


def _stat(pid: str) -> tuple[int, int, int] | None:
    """(pid, its parent, ticks of itself and of children that it has waited for); None if it has just ended."""
    try:
        text = Path("/proc", pid, "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name, in brackets, may hold blanks
    return int(pid), int(fields[1]), sum(map(int, fields[11:15]))
