"""Check versions, fixes, registration and a CPU training step of one architecture per model (--full: of all), and say
how to repair faults. Exit code 1 if there is a fault."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from embinit_fairseq.cli.print_records import show
from embinit_fairseq.cli.progress import progress
from embinit_fairseq.errors import counted
from embinit_fairseq.machine import package_versions

# fairseq and torch are imported inside the functions, so that a broken installation is a finding and no traceback

SETUP = (
    "run: bash scripts/setup.sh; without a clone: pip install 'embinit-fairseq[hf,plot,text]', "
    "python -m fairseq_compat install"
)
#: package -> functions that are missing without it; "": nothing works
PACKAGES = {
    "embinit-fairseq": "the plugin is used from a folder; --user-dir works, the `embinit` command may not",
    "fairseq": "",
    "torch": "",
    "numpy": "",
    "hydra-core": "",
    "omegaconf": "",
    "sacrebleu": "",
    "sentencepiece": "",
    "subword-nmt": "no BPE in the scripts",
    "safetensors": "no vectors from safetensors files",
    "tokenizers": "no Hugging Face tokenizers as vocabulary",
    "transformers": "no embinit export-hf",
    "matplotlib": "no figures",
    "sacremoses": "no Moses tokens in the scripts",
    "spacy": "no spaCy tokens in the scripts (TOKENS=spacy)",
    "scikit-learn": "no transfer-vocab --method omp, no baselines in scripts/textcls",
}
#: packages whose versions the summary names
_NAMED = ("python", "fairseq", "torch", "numpy")
#: an architecture of fairseq, for which --embed-init must work, too
STOCK = "transformer"


@dataclass(frozen=True)
class Finding:
    """Hold the result of one check. status: ok, warning (something optional is missing) or broken. hint: the remedy."""

    check: str
    status: str
    detail: str
    hint: str = ""
    data: dict[str, Any] = field(default_factory=dict)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--arch", nargs="+", metavar="ARCH", help="try these architectures; default: one per model")
    which.add_argument("--full", action="store_true", help="try all architectures of the plugin (a minute)")
    which.add_argument("--no-steps", action="store_true", help="leave out the training steps")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a list")


def run(args: argparse.Namespace) -> int:
    """Check, print, judge."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # messages of the trainings
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            findings = list(progress(examine(args), "embinit doctor", "check"))
    finally:
        logging.disable(disabled)
    broken = sum(finding.status == "broken" for finding in findings)
    record = {"ok": not broken, "broken": broken, "findings": [vars(finding) for finding in findings]}
    show(record, lambda record: render(findings), args.json)
    return int(broken > 0)


def examine(args: argparse.Namespace) -> Iterator[Finding]:
    """Yield the findings of all checks, the basic ones first."""
    yield from versions()
    imported = tried("import fairseq", import_fairseq, f"fairseq_compat repairs fairseq; {SETUP}")
    yield imported
    yield from compatibility()
    yield tried("cuda", cuda, SETUP)
    if imported.status != "ok":
        return
    registered = tried("registration", registration, "give --user-dir the folder embinit_fairseq itself")
    yield registered
    if registered.status != "ok" or args.no_steps:
        return
    ours = registered.data["architectures"]
    for arch in args.arch or [STOCK, *(ours if args.full else one_per_model(ours))]:
        hint = "check the name of the architecture; if the checks above are ok, please report this as a bug"
        yield tried(f"step {arch}", partial(step, arch), hint)


def tried(check: str, function: Callable[[], tuple[str, dict[str, Any]]], hint: str) -> Finding:
    """Return the finding of a check function, with detail and data; broken if the function raises anything."""
    try:
        detail, data = function()
    except (Exception, SystemExit) as error:  # argparse leaves by SystemExit
        return Finding(check, "broken", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", hint)
    return Finding(check, "ok", detail, data=data)


# ---- Checks ---------------------------------------------------------------------------------------------------------


def versions() -> Iterator[Finding]:
    """Check Python and the packages."""
    supported = (3, 10) <= tuple(int(part) for part in platform.python_version_tuple()[:2]) <= (3, 14)
    hint = "" if supported else "Python 3.10 - 3.14 are tried; use one of them"
    yield Finding("python", "ok" if supported else "warning", platform.python_version(), hint)
    for package, version in package_versions(PACKAGES).items():
        lost = PACKAGES[package]
        missing = Finding(package, "warning" if lost else "broken", f"not installed; {lost or 'needed'}", SETUP)
        yield Finding(package, "ok", version) if version is not None else missing


def import_fairseq() -> tuple[str, dict[str, Any]]:
    """Import fairseq and this package."""
    start = time.perf_counter()
    importlib.import_module("fairseq")
    importlib.import_module("embinit_fairseq")
    return f"{time.perf_counter() - start:.1f} s", {}


def compatibility() -> Iterator[Finding]:
    """Check that the fixes of fairseq_compat that this environment needs are active."""
    try:
        from fairseq_compat import status
    except ImportError:
        detail = "not installed: fairseq 0.12.2 needs it on Python >= 3.11, torch >= 2 or numpy >= 1.24"
        yield Finding("fairseq_compat", "warning", detail, SETUP)
        return
    for fix in status():
        broken = fix.needed and not fix.active
        state = "active" if fix.active else ("NOT active" if fix.needed else "not needed")
        hint = f"start Python without -S, and {SETUP}" if broken else ""
        data = {"needed": fix.needed, "active": fix.active}
        yield Finding(f"fix {fix.fix}", "broken" if broken else "ok", f"{state}: {fix.reason}", hint, data)


def cuda() -> tuple[str, dict[str, Any]]:
    """Say which GPUs torch can use."""
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return f"{torch.version.cuda}: {', '.join(names)}", {"devices": names}
    reason = "torch is built without CUDA" if torch.version.cuda is None else "no usable GPU or driver"
    return f"not available ({reason})", {"devices": []}


def registration() -> tuple[str, dict[str, Any]]:
    """Check the additions of `--user-dir embinit_fairseq` to fairseq."""
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.utils import import_user_module

    import embinit_fairseq

    folder = os.path.dirname(embinit_fairseq.__file__)
    import_user_module(argparse.Namespace(user_dir=folder))
    modules = {  # modules of the model and of the preset
        name: [getattr(definition, "__module__", "") for definition in (model, ARCH_CONFIG_REGISTRY.get(name))]
        for name, model in ARCH_MODEL_REGISTRY.items()
    }
    ours = sorted(name for name in modules if "embinit_fairseq." in " ".join(modules[name]))
    data = {"architectures": ours, "embed_init": sorted(REGISTRIES["embed_init"]["registry"])}
    return f"--embed-init and {counted(len(ours), 'architecture')}, from {folder}", data


def one_per_model(architectures: Iterable[str]) -> list[str]:
    """Return, for each model, its preset `_tiny`, or the one with the shortest name."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    of_model: dict[Any, list[str]] = {}
    for arch in architectures:
        of_model.setdefault(ARCH_MODEL_REGISTRY[arch], []).append(arch)
    return [min(names, key=lambda name: (not name.endswith("_tiny"), len(name), name)) for names in of_model.values()]


def step(arch: str) -> tuple[str, dict[str, Any]]:
    """Compute one training step on the CPU, with `--embed-init xavier`."""
    from embinit_fairseq.models._random_step import task_of, training_step

    loss = training_step(arch, ("--embed-init", "xavier"))
    return f"{task_of(arch)}, loss {loss:.3f}", {"loss": loss}


# ---- Report ---------------------------------------------------------------------------------------------------------


def render(findings: list[Finding]) -> str:
    """Return a few lines about the checks that are ok, one line per fault with its remedy below, and a verdict."""
    faults = [finding for finding in findings if finding.status != "ok"]
    findings = [*_summaries(findings), *faults]
    width = max(len(finding.check) for finding in findings) + 2
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:<8} {finding.check:<{width}}{finding.detail}")
        if finding.hint:
            lines.append(f"{'':<9}{'':<{width}}-> {finding.hint}")
    broken = sum(finding.status == "broken" for finding in faults)
    verdict = f"{broken} broken, {counted(len(faults) - broken, 'warning')}" if faults else "everything works"
    return "\n".join([*lines, verdict])


def _summaries(findings: list[Finding]) -> Iterator[Finding]:
    """Yield a line for all packages that are ok, one for fixes, one for training steps, and other findings."""
    ok = {finding.check: finding for finding in findings if finding.status == "ok"}
    packages = [name for name in ("python", *PACKAGES) if name in ok]
    fixes, steps = ([check for check in ok if check.startswith(f"{kind} ")] for kind in ("fix", "step"))
    named = ", ".join(f"{name} {ok[name].detail}" for name in packages if name in _NAMED)
    others = len([name for name in packages if name not in _NAMED])
    yield Finding("packages", "ok", f"{named}{' and ' if named else ''}{counted(others, 'other')}")
    if fixes:
        active = sum(ok[check].data["active"] for check in fixes)
        yield Finding("fairseq_compat", "ok", f"fixes active: {active}, not needed: {len(fixes) - active}")
    yield from (finding for check, finding in ok.items() if check not in (*packages, *fixes, *steps))
    if steps:
        yield Finding("training steps", "ok", ", ".join(check.removeprefix("step ") for check in steps))
