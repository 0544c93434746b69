"""The record of one experiment: what was run, on what, and what came out.

`begin` is called before training and writes RUN/training.json (command, versions, hardware, hashes of the data);
`finish` is called after scoring and writes RUN/result.json, which has everything of training.json, the losses of every
epoch, the initialisation's report and the scores. `finished` asks whether there is anything left to do.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout, installed or not

from embinit_fairseq.analysis.runs import read_record, summary
from embinit_fairseq.analysis.runs_log import read_log
from embinit_fairseq.cli.compare_files import write_json, write_text  # noqa: F401  write_text: for other scripts
from embinit_fairseq.errors import EmbinitError

PACKAGES = ("torch", "numpy", "fairseq", "fairseq-compat", "embinit-fairseq", "sacrebleu", "hydra-core", "omegaconf")
#: options that may change between two sessions of one run: how far to train, how often to look, what concerns speed
FREE_OPTIONS = (
    "--max-epoch",
    "--max-update",
    "--validate-interval-updates",
    "--save-interval-updates",
    "--keep-interval-updates-pattern",
    "--save-every",  # of wikibooks/train.sh, which makes these three of it
    "--num-workers",
    "--log-interval",
)


def file_sha256(path: Path) -> str:
    """Read once a process, unless size or time have changed since."""
    status = path.stat()
    return _sha256(path, status.st_size, status.st_mtime_ns)


@functools.cache
def _sha256(path: Path, size: int, mtime_ns: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:  # gigabytes, for a pre-training corpus
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def data_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every dictionary and binarised file below `folder`, by relative path; "all" is their joint hash."""
    files = sorted(
        path for path in folder.rglob("*") if path.suffix in (".bin", ".idx") or path.name.startswith("dict.")
    )
    if not files:
        raise SystemExit(f"error: {folder} has no binarised data: run prepare.sh first")
    hashes = {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}
    joint = hashlib.sha256("".join(f"{name} {value}\n" for name, value in hashes.items()).encode())
    return {"all": joint.hexdigest(), **hashes}


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    found["revision"] = git_revision()
    return found


def git_revision() -> str | None:
    """The checkout's commit, with "+" if tracked files of the plugin differ from it."""
    here = Path(__file__).resolve().parent.parent
    commands = (
        ["git", "rev-parse", "HEAD"],
        ["git", "status", "--porcelain", "--untracked-files=no", "embinit_fairseq"],
    )
    try:
        head, changed = (
            subprocess.run(command, cwd=here, capture_output=True, text=True, check=True).stdout.strip()
            for command in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return None  # an exported copy without git
    return head + ("+" if changed else "")


def hardware() -> dict[str, object]:
    """CPU, cores that this process may use, threads, GPUs."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"cpu": cpu_name(), "cores": cores, "threads": torch.get_num_threads(), "gpus": gpus}


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def fixed_part(command: list[str]) -> list[str]:
    """The options that must be the same when a run is continued."""
    kept, skip = [], False
    for word in command:
        if skip or word in FREE_OPTIONS:
            skip = not skip
            continue
        kept.append(word)
    return kept


def vector_hashes(command: list[str]) -> dict[str, str]:
    """SHA-256 of the files of --embed-init-path, by path. (A folder of Hugging Face is not hashed.)"""
    found, after = {}, False
    for word in command:
        path = Path(word.partition("=")[2]).expanduser()
        if after and path.is_file():
            found[str(path)] = file_sha256(path)
        after = word == "--embed-init-path" or (after and not word.startswith("--"))
    return found


def check_same(run: Path, before: dict, record: dict) -> None:
    """Raises SystemExit if the run that is there is another one."""
    changed = [
        path
        for path, value in record["vector_files"].items()
        if before.get("vector_files", {}).get(path, value) != value
    ]
    if fixed_part(shlex.split(before["command"])) != fixed_part(shlex.split(record["command"])):
        what = f"other options: {before['command']}"
    elif before["data"]["all"] != record["data"]["all"]:
        what = "other data"
    elif changed:
        what = f"another content of {changed[0]}"
    else:
        return
    raise SystemExit(f"error: {run} holds a run with {what}\nchoose another --output, or remove that folder")


def begin(args: argparse.Namespace) -> None:
    run, path = Path(args.run), Path(args.run) / "training.json"
    record = {
        "labels": dict(label.split("=", 1) for label in args.label),
        "command": shlex.join(args.command),
        "metric": args.metric,
        "higher_is_better": args.higher,
        "versions": versions(),
        "hardware": hardware(),
        "data": data_hashes(Path(args.data)),
        "vector_files": vector_hashes(args.command),
    }
    run.mkdir(parents=True, exist_ok=True)
    # a run that failed before it saved anything may be started again with repaired options
    ended = (run / "result.json").is_file()
    if path.is_file() and (ended or any((run / "checkpoints").glob("*.pt"))):
        before = read_record(path)
        check_same(run, before, record)
        if ended and before["command"] == record["command"]:
            return
    write_json(path, record)


def finish(args: argparse.Namespace) -> None:
    run = Path(args.run)
    record = read_record(run / "training.json")
    report = run / "checkpoints" / "embed_init.json"
    record.update(
        summary(read_log(run / "train.log"), record["metric"], record["higher_is_better"]),
        init=json.loads(report.read_text(encoding="utf-8")) if report.is_file() else None,
        scores=json.loads(Path(args.scores).read_text(encoding="utf-8")) if args.scores else {},
    )
    write_json(run / "result.json", record)


def fixed(args: argparse.Namespace) -> None:
    """Print the options that must be the same when a run, or a grid, is continued."""
    print(shlex.join(fixed_part(args.command)))


def finished(args: argparse.Namespace) -> None:
    """Exit code 0 if the run was scored after at least that many epochs, else 1."""
    path = Path(args.run) / "result.json"
    epochs = read_record(path)["epochs"] if path.is_file() else {}
    sys.exit(0 if max(map(int, epochs), default=0) >= args.epochs else 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="step", required=True)
    start = commands.add_parser("begin", help="before training; what follows -- is the command to be recorded")
    start.add_argument("--run", required=True, help="folder of the run")
    start.add_argument("--data", required=True, help="folder with the binarised data")
    start.add_argument("--label", nargs="*", default=[], metavar="KEY=VALUE", help="what tables are sorted by")
    start.add_argument("--metric", default="valid_loss", help="what chooses the checkpoint, as fairseq logs it")
    start.add_argument("--higher", action="store_true", help="a higher metric is better")
    start.set_defaults(call=begin)
    end = commands.add_parser("finish", help="after scoring")
    end.add_argument("--run", required=True, help="folder of the run")
    end.add_argument("--scores", help="JSON file with the scores")
    end.set_defaults(call=finish)
    check = commands.add_parser("finished", help="exit code 0 if the run needs no more training and scoring")
    check.add_argument("--run", required=True, help="folder of the run")
    check.add_argument("--epochs", type=int, required=True, help="epochs it shall have")
    check.set_defaults(call=finished)
    same = commands.add_parser("fixed", help="which of the options behind -- must stay the same in a folder of runs")
    same.set_defaults(call=fixed)
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    args = parser.parse_args(arguments[:split])
    args.command = arguments[split + 1 :]
    try:
        args.call(args)
    except EmbinitError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
