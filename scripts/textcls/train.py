"""Train and test classifiers on prepared data: couples of embeddings, one-table transformers, bag-of-words baselines.

    couples            every pair of --vectors, and each with itself, by --arch duo_classifier (NAME+NAME: one of them)
    transformer        --arch embinit_classifier with one layer, its table random (transformer:NAME: from --vectors)
    tfidf_lr, mlp      bags of words (see baselines.py)

fairseq is imported once; every run is a process forked from this one, which calls fairseq-train and, with the
checkpoint of the lowest validation loss, fairseq-validate on the test texts. Finished runs are kept, all others begin
anew; one that another program has begun is waited for. Writes OUTPUT/<run>/{train.log,test.log,training.json,
result.json}. What follows -- goes to fairseq-train.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import re
import shlex
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: a run is work for one core, and a fork has one thread
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the plugin, installed or not

from run_result import begin, data_hashes, finish, write_json
from textcls.corpus import FileError
from textcls.pool import Job, run_jobs
from textcls.records import check_vectors, read_result, vector_hashes
from textcls.runs import (
    ATTENTIONS,
    BASELINES,
    Prepared,
    Run,
    Training,
    Vectors,
    check_readable,
    list_models,
    list_runs,
    parse_vectors,
    read_prepared,
    test_command,
    training_command,
    vectors_of,
)

_LARGEST_BATCH = 2**31 - 1
_TESTED = re.compile(r"\| INFO \| test \| (\{.*\})$", re.MULTILINE)


@dataclass(frozen=True)
class Grid:
    """What all runs have in common. output: folder of the runs' folders."""

    prepared: Prepared
    vectors: dict[str, Vectors]
    training: Training
    output: Path
    keep_checkpoints: bool

    def folder(self, run: Run) -> Path:
        """Where the files of a run are."""
        return self.output / run.name

    def command(self, run: Run) -> list[str]:
        """What is recorded, and compared when a run is there already."""
        if not run.is_baseline:
            return training_command(run, self.prepared, self.vectors, self.training, self.folder(run))
        words = ["python", "-m", "textcls.train", "--data", str(self.prepared.folder), "--output", str(self.output)]
        if run.model == "mlp":
            words += ["--epochs", str(self.training.epochs), "--patience", str(self.training.patience)]
        return [*words, "--models", run.model, "--seeds", str(run.seed)]

    def is_finished(self, run: Run) -> bool:
        """Raises FileError for a result of other options, data or vectors."""
        path = self.folder(run) / "result.json"
        if not path.is_file():
            return False
        before = read_result(path)
        same = shlex.split(before["command"]) == self.command(run)
        if not same or before["data"]["all"] != _hash(self.prepared.bin(run.seed)):
            what = "other data" if same else f"other options: {before['command']}"
            raise FileError(f"{path.parent} holds a run with {what}\nchoose another --output, or remove that folder")
        check_vectors(path, before, self.vectors)
        return True

    def perform(self, run: Run) -> str:
        """One run from begin to end, in a process of its own; returns its accuracy in words."""
        checkpoints = self.folder(run) / "checkpoints"
        shutil.rmtree(checkpoints, ignore_errors=True)  # of a run that was stopped
        settings = self.prepared.settings
        facts = {"task": settings["task"], "protocol": settings["protocol"], "model": run.model, "seed": run.seed}
        facts["words"] = self.prepared.words
        if run.attention:
            facts["attention"] = run.attention
        if not run.is_baseline:
            facts["training"] = str(self.training)
        labels = [f"{name}={value}" for name, value in facts.items()]
        what = {"run": self.folder(run), "data": self.prepared.bin(run.seed), "command": self.command(run)}
        begin(argparse.Namespace(**what, label=labels, metric="valid_loss", higher=False))
        path = self.folder(run) / "training.json"  # goes into result.json
        record = json.loads(path.read_text(encoding="utf-8"))
        write_json(path, {**record, "vectors": vector_hashes(run, self.vectors)})
        accuracy = (baseline if run.is_baseline else train_and_test)(self, run)
        if not self.keep_checkpoints:
            shutil.rmtree(checkpoints, ignore_errors=True)
        return f"test accuracy {accuracy:.2f}"


@functools.cache
def _hash(data: Path) -> str:
    return data_hashes(data)["all"]


def train_and_test(grid: Grid, run: Run) -> float:
    """By fairseq's own commands; returns the test accuracy in percent."""
    import fairseq_cli.train
    import fairseq_cli.validate

    folder = grid.folder(run)
    sys.argv = grid.command(run)
    fairseq_cli.train.cli_main()
    sys.stdout.flush()
    with (folder / "test.log").open("w") as log:
        os.dup2(log.fileno(), 1)
    sys.argv = test_command(run, grid.prepared, grid.training, folder)
    fairseq_cli.validate.cli_main()
    sys.stdout.flush()
    tested = json.loads(_TESTED.findall((folder / "test.log").read_text(encoding="utf-8"))[-1])
    scores = {name: float(tested[name]) for name in ("test_loss", "test_accuracy")}
    write_json(folder / "scores.json", scores)
    finish(argparse.Namespace(run=folder, scores=folder / "scores.json"))
    return scores["test_accuracy"]


def baseline(grid: Grid, run: Run) -> float:
    """A model that is not fairseq's, with a record like the others; returns the test accuracy in percent."""
    from textcls.baselines import mlp, read_sets, tfidf_lr

    began, prepared = time.monotonic(), grid.prepared
    dictionaries = prepared.folder / "seeds" / "dict.txt", prepared.folder / "corpus" / "labels.txt"
    sets = read_sets(prepared.text(run.seed), *dictionaries)
    if run.model == "tfidf_lr":
        outcome = tfidf_lr(sets)
    else:
        outcome = mlp(sets, run.seed, grid.training.epochs, grid.training.patience)
    path = grid.folder(run) / "training.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record.update(
        parameters={"all": outcome.parameters, "trained": outcome.parameters},
        epochs={},
        best={"epoch": outcome.epoch, "valid_accuracy": outcome.valid_accuracy, "valid_loss_nats": outcome.valid_loss},
        init=None,
        scores={"test_accuracy": outcome.test_accuracy},
        time={"wall_s": time.monotonic() - began},
    )
    write_json(path.with_name("result.json"), record)
    return outcome.test_accuracy


def import_everything(runs: list[Run]) -> None:
    """What the runs need, before they are forked; raises FileError if it is not installed."""
    if any(run.is_baseline for run in runs):
        try:
            import textcls.baselines  # noqa: F401
        except ModuleNotFoundError as error:
            names = " and ".join(BASELINES)
            raise FileError(f"--models: {names} need {error.name}: pip install scikit-learn, or name others") from error
    if all(run.is_baseline for run in runs):
        return
    logging.disable(logging.INFO)  # which optional packages are not there
    import fairseq_cli.train
    import fairseq_cli.validate  # noqa: F401
    import torch
    from textcls.batches import keep_batches

    import embinit_fairseq  # noqa: F401  --user-dir finds it there

    logging.disable(logging.NOTSET)
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # torch imports a compiler for its first optimizer
    keep_batches()


def read_arguments() -> tuple[argparse.Namespace, list[str]]:
    """The options, and what follows --."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="what prepare.sh made")
    parser.add_argument("--output", type=Path, required=True, help="folder of the runs' folders")
    parser.add_argument("--vectors", nargs="*", default=[], metavar="NAME=FILE", help="word vectors of any dimensions")
    parser.add_argument("--models", nargs="+", required=True, help="see above; couples: all pairs")
    parser.add_argument("--attentions", nargs="+", default=["softmax"], choices=ATTENTIONS, help="default: softmax")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: those that were prepared")
    parser.add_argument("--epochs", type=int, default=200, help="at most (default: %(default)s)")
    parser.add_argument("--patience", type=int, default=10, help="epochs without a lower loss (default: %(default)s)")
    parser.add_argument("--lr", default="1e-3", help="fixed learning rate (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=128, help="texts in a batch (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time (default: the cores)")
    parser.add_argument("--keep-checkpoints", action="store_true", help="keep the checkpoints of finished runs")
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    return parser.parse_args(words[:split]), words[split + 1 :]


def plan(args: argparse.Namespace, extra: list[str]) -> tuple[Grid, list[Run]]:
    """The runs that are still to be done; raises FileError for what cannot be done."""
    if args.batch > _LARGEST_BATCH:
        raise FileError(f"--batch {args.batch}: must be at most {_LARGEST_BATCH}")
    prepared, vectors = read_prepared(args.data.resolve()), parse_vectors(args.vectors)
    training = Training(args.epochs, args.patience, args.lr, args.batch, tuple(extra))
    grid = Grid(prepared, vectors, training, args.output.resolve(), args.keep_checkpoints)
    there = prepared.seeds()
    for seed in args.seeds or ():
        if seed not in there:
            raise FileError(f"--seeds {seed}: not prepared; run prepare.sh --seeds {seed} --output {args.data}")
    runs = list_runs(list_models(args.models, vectors), args.attentions, args.seeds or there)
    runs = [run for run in runs if not grid.is_finished(run)]
    for path in sorted(grid.output.glob("*/result.json")):  # also of seeds that are not asked for: a row has all
        check_vectors(path, read_result(path), vectors)
    for run in runs:
        vector_hashes(run, vectors)  # before the forks, of which each would do it
    for name in sorted({name for run in runs for name in vectors_of(run.model) or ()}):
        check_readable(vectors[name], prepared.folder / "seeds" / "dict.txt")
    return grid, runs


def describe(runs: list[Run]) -> str:
    """Which models, and how often each."""
    seeds = Counter(f"{run.model} ({run.attention})" if run.attention else run.model for run in runs)
    return ", ".join(f"{model} x {number}" for model, number in seeds.items())


def main() -> None:
    args, extra = read_arguments()
    try:
        grid, runs = plan(args, extra)
        if not runs:
            return
        import_everything(runs)
    except FileError as error:
        sys.exit(f"error: {error}")
    jobs = [
        Job(
            run.name,
            grid.folder(run) / "train.log",
            functools.partial(grid.perform, run),
            functools.partial(grid.is_finished, run),
        )
        for run in runs
    ]
    print(f"{len(jobs)} runs, {args.jobs} at a time: {describe(runs)}", file=sys.stderr, flush=True)
    try:
        failed = run_jobs(jobs, args.jobs)
    except KeyboardInterrupt:
        sys.exit("stopped; start again to continue")
    if failed:
        sys.exit(f"error: {len(failed)} of {len(jobs)} runs failed ({', '.join(failed)}); start again to continue")


if __name__ == "__main__":
    main()
