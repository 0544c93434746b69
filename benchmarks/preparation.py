"""Measure each step of scripts/wikibooks/prepare.sh on texts of several sizes: CPU, memory, disk. Writes CSV.

    PYTHONPATH=scripts:. python -m wikibooks.synthetic --megabytes 100 >100.txt
    PYTHONPATH=scripts:. python benchmarks/preparation.py 100.txt --work /tmp/growth --csv growth.csv

The options are the defaults of prepare.sh. Every step runs in a process of its own, whose children are counted with it.
A second call continues with the step that was stopped; the row of that step then lacks the tasks that were done before.
Columns:

    megabytes   text, 10^6 bytes
    cpu         seconds of all processes, user and system
    wall        seconds that passed
    memory      peak resident set of the largest process, 10^6 bytes
    disk        additional space, 10^6 bytes
    files       files that the step adds
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from pathlib import Path

from shards.engines import Engine
from shards.tasks import Step
from wikibooks.steps import steps

from embinit_fairseq.arguments import ArgumentParser

COLUMNS = ("megabytes", "step", "cpu", "wall", "memory", "disk", "files")
OPTIONS = {"duplicates": "lines", "frequent_types": 0.21, "bpe_merges": 32640, "bpe_words": 300_000}
OPTIONS |= {"vocabulary": 32768, "valid_every": 200, "shard_mb": 32, "part_gb": 8}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, nargs="+", help="files, each of which is prepared by itself")
    parser.add_argument("--work", type=Path, required=True, help="folder; needs five times the texts")
    parser.add_argument("--csv", type=Path, required=True, help="file to write, or to continue")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--last", metavar="STEP", help="stop after this step (default: measure all)")
    args = parser.parse_args()
    rows = list(csv.DictReader(args.csv.open())) if args.csv.exists() else []
    for text in args.text:
        megabytes, output = str(round(text.stat().st_size / 1e6)), args.work / text.name
        output.mkdir(parents=True, exist_ok=True)
        engine = Engine("pool", args.jobs, output / "work" / "logs", args.jobs, {})
        measured = {row["step"] for row in rows if row["megabytes"] == megabytes}
        for step in steps(argparse.Namespace(input=[text], output=output, **OPTIONS)):
            if step.title not in measured:
                rows.append({"megabytes": megabytes, "step": step.title} | measure(step, engine, output))
                with args.csv.open("w", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(rows)
            if step.title == args.last:
                break


def measure(step: Step, engine: Engine, output: Path) -> dict[str, str]:
    """Run a step and return its columns."""
    size, number = size_of(output)
    start = time.perf_counter()
    child = os.fork()
    if not child:
        engine.run([step])
        os._exit(0)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(f"{step.title} failed: its message is above")
    wall = time.perf_counter() - start
    larger, more = size_of(output)
    numbers = (usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * 1024 / 1e6, (larger - size) / 1e6)
    return {key: f"{number:.1f}" for key, number in zip(COLUMNS[2:], numbers)} | {"files": str(more - number)}


def size_of(folder: Path) -> tuple[int, int]:
    """Return the bytes on disk and the number of all files."""
    files = [path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()]
    return sum(files), len(files)


if __name__ == "__main__":
    main()
