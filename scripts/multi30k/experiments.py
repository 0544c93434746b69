"""The grids behind docs/results, German to English on Multi30k: lists of plain commands, run one after the other.

    DATA=FOLDER bash scripts/multi30k/prepare.sh --output data/de-en
    python scripts/train_vectors.py --text data/de-en/text/train.de --dim 300 --output data/vectors.de.txt
    python scripts/multi30k/experiments.py scale --data data/de-en --vectors de=data/vectors.de.txt en=glove.txt \
        --output runs/scale

`--print` shows the commands instead: each can be copied out and works. Every training is one of `embinit run`, so a
second call goes on with what is unfinished. Then the test set is translated with the best checkpoint and scored, and
`embinit compare` makes the table.

`--jobs 12` trains twelve models side by side, on one GPU or on as many cores; calls on several machines share the list
(`--worker 1/2`, `--worker 2/2`). With `--minutes 9` the call ends after nine minutes, and what is running then with it:
the same call goes on from the last finished epochs. All runs of one grid need the same `--precision`.

    scale    sigma of the embeddings at 1/8 to 8 times Xavier's, positions added, absent or untied: is it absorption?
             (table and picture: scale_figure.py)
    table1   Kim et al. 2024, Table 1: all initialisations, with fairseq's own and shuffled vectors at Xavier's scale
    duo      Li et al. 2020: two embeddings, tied, GloVe and learned, and the simpler uses of a second embedding

The model is Kim's: 3 + 3 layers, 10 heads, D 300, FFN 512, untied, batches of 64 sentences, Adam at a fixed 2e-4.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PLUGIN = Path(__file__).resolve().parents[2] / "embinit_fairseq"
KIM = """--task translation --encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 300 --decoder-embed-dim 300
    --encoder-attention-heads 10 --decoder-attention-heads 10 --batch-size 64 --required-batch-size-multiple 1
    --optimizer fused_adam --adam-betas (0.9,0.98) --adam-eps 1e-9 --lr 2e-4 --lr-scheduler fixed
    --criterion fused_cross_entropy --no-epoch-checkpoints --num-workers 0
    --log-format json --log-interval 100""".split()
FFN = ("--encoder-ffn-embed-dim", "--decoder-ffn-embed-dim")
VALID_BLEU = [
    "--eval-bleu",
    "--eval-tokenized-bleu",
    "--eval-bleu-args",
    '{"beam": 1, "max_len_a": 1.2, "max_len_b": 10}',
]
NEEDS_VECTORS = ("pretrained", "pretrained_xavier", "shuffled")


@dataclass(frozen=True)
class Training:
    """name: of its folder. labels: what tables are sorted by. options: of fairseq-train, behind Kim's."""

    name: str
    labels: dict[str, str]
    options: tuple[str, ...]


def training(labels: dict[str, str], seed: int, epochs: int, *options: str) -> Training:
    """Labels that name an option's value are part of the folder's name."""
    name = ".".join([*labels.values(), f"seed{seed}"])
    ends = ("--seed", str(seed), "--max-epoch", str(epochs))
    defaults = {
        "--arch": "transformer",
        "--dropout": "0.1",
        "--encoder-ffn-embed-dim": "512",
        "--decoder-ffn-embed-dim": "512",
    }
    given = [word for flag, value in defaults.items() if flag not in options for word in (flag, value)]
    return Training(name, labels, (*given, *options, *ends))


def initialised(strategy: str, vectors: dict[str, str], *more: str) -> tuple[str, ...]:
    """--embed-init with the vectors of both languages where the strategy takes any."""
    paths = ("--embed-init-path", f"encoder={vectors['de']}", f"decoder={vectors['en']}")
    return ("--embed-init", strategy, *(paths if strategy in NEEDS_VECTORS else ()), *more)


def scale(vectors: dict[str, str]) -> Iterator[Training]:
    """All factors for six epochs of one seed, then the ends and the middle for twelve epochs of three seeds."""
    positions = {
        "added": ("--arch", "transformer"),
        "absent": ("--arch", "transformer", "--no-token-positional-embeddings"),
        "untied": ("--arch", "tupe_transformer"),
    }
    factors = ("1", "0.125", "8", "0.25", "4", "0.5", "2")
    seeds = [(factor, 1, 6) for factor in factors]
    seeds += [(factor, seed, 12) for seed in (1, 2, 3) for factor in factors[:3]]
    for factor, seed, epochs in seeds:
        for place, options in positions.items():
            for strategy in ("xavier", "pretrained_xavier"):
                labels = {"init": strategy, "sigma": f"{factor}x", "positions": place}
                filled = initialised(strategy, vectors, "--embed-init-std", f"{factor}x")
                yield training(labels, seed, epochs, *options, *filled)


def table1(vectors: dict[str, str]) -> Iterator[Training]:
    """Up to twenty epochs; those without a better validation loss for four end earlier."""
    strategies: dict[str, tuple[str, ...]] = {"none": ()}
    for strategy in ("xavier", "pretrained", "pretrained_xavier", "shuffled"):
        strategies[strategy] = initialised(strategy, vectors)
    strategies["shuffled_xavier"] = initialised("shuffled", vectors, "--embed-init-std", "xavier")
    for seed in (1, 2, 3):
        for name, options in strategies.items():
            yield training({"init": name}, seed, 20, "--patience", "4", *options, *VALID_BLEU)


def duo(vectors: dict[str, str]) -> Iterator[Training]:
    """Tied as the paper's model is, with one pre-trained and one learned embedding matrix a side; beside it what one
    stream makes of two sets: their mean, or both side by side (de2, en2: second sets of the same dimension; de_a, de_b,
    en_a, en_b: two sets of dimensions that add up to the model's)."""
    filled, both = initialised("pretrained_xavier", vectors), initialised("pretrained_xavier", vectors)
    models: dict[str, tuple[str, ...]] = {
        "transformer": ("--arch", "transformer", *filled),
        "transformer_equal": ("--arch", "transformer", *(word for flag in FFN for word in (flag, "EQUAL")), *filled),
    }
    for share in ("stream", "pair"):
        for norm in ("decoder", "encoder"):
            options = ("--duo-share-weights", share, "--duo-norm", norm)
            models[f"duo_{share}_{norm}"] = ("--arch", "duo_transformer", *options, *filled)
    if {"de2", "en2"} <= set(vectors):
        both += (f"encoder_p={vectors['de2']}", f"decoder_p={vectors['en2']}")
        models["duo_two_sets"] = ("--arch", "duo_transformer", *both)
        mean = {lang: f"avg:{vectors[lang]},{vectors[lang + '2']}" for lang in ("de", "en")}
        models["transformer_avg"] = ("--arch", "transformer", *initialised("pretrained_xavier", mean))
    if {"de_a", "de_b", "en_a", "en_b"} <= set(vectors):
        joined = {lang: f"concat:{vectors[lang + '_a']},{vectors[lang + '_b']}" for lang in ("de", "en")}
        models["transformer_concat"] = ("--arch", "transformer", *initialised("pretrained_xavier", joined))
    for seed in (1, 2):
        for dropout in ("0.1", "0.3"):
            for name, options in models.items():
                tied = ("--share-decoder-input-output-embed", "--dropout", dropout)
                yield training({"model": name, "dropout": dropout}, seed, 10, *tied, *options)


GRIDS: dict[str, Callable[[dict[str, str]], Iterator[Training]]] = {"scale": scale, "table1": table1, "duo": duo}
#: those whose question is answered by BLEU, too
TRANSLATED = ("table1", "duo")


def machine_options(device: str, precision: str) -> list[str]:
    """Of fairseq-train.

    bfloat16 on a CPU is autocast, and pays only where the processor multiplies it itself: with AVX2 alone Kim's model
    makes 0.07 updates a second in bfloat16, 0.97 in single precision.
    """
    if device == "cpu":
        return ["--cpu", *(["--amp"] if precision == "bf16" else [])]
    return ["--bf16"] if precision == "bf16" else []


def commands(each: Training, args: argparse.Namespace) -> list[str]:
    """Train, and for grids with BLEU translate and score, as a person would type it."""
    run, data = args.output / each.name, args.data
    labels = [f"{key}={value}" for key, value in each.labels.items()]
    train = ["fairseq-train", data / "bin", "--user-dir", PLUGIN, *KIM, *each.options]
    train += [*machine_options(args.device, args.precision), *args.extra]
    lines = [shlex.join(map(str, ["embinit", "run", run, "--label", *labels, "--", *train]))]
    if args.grid in TRANSLATED:
        best = run / "checkpoints" / "checkpoint_best.pt"
        generate = ["fairseq-generate", data / "bin", "--user-dir", PLUGIN, "--path", best, "--beam", 5]
        generate += ["--batch-size", 128, "--num-workers", 0, *(["--cpu"] if args.device == "cpu" else [])]
        score = ["embinit", "score", run, "--ref", data / "corpus/raw/test.en", "--lowercase", "--detokenize", "moses"]
        score += ["--lang", "en", "--tokenized", data / "corpus/tok/test.en"]
        lines.append(f"{shlex.join(map(str, generate))} > {shlex.quote(str(run / 'test.generate.log'))} 2>&1")
        lines.append(shlex.join(map(str, score)))
    return lines


def with_equal_ffn(line: str) -> str:
    """EQUAL: the inner width at which the transformer has the parameters of Duo."""
    if "EQUAL" not in line:
        return line
    words = shlex.split(line)
    start = words.index("fairseq-train")
    plain = [word for word in words[start:] if word != "EQUAL"]
    for flag in FFN:
        plain.insert(plain.index(flag) + 1, "512")
    plain = plain[: plain.index("--embed-init")] + plain[plain.index("--seed") :]
    program = [sys.executable, str(Path(__file__).with_name("equal_ffn.py")), "--", *plain]
    width = subprocess.run(program, check=True, capture_output=True, text=True).stdout.strip()
    return line.replace("EQUAL", width)


def is_finished(run: Path, each: Training, translated: bool) -> bool:
    """Trained as far as this grid says, and scored."""
    path = run / "result.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    wanted = int(each.options[each.options.index("--max-epoch") + 1])
    trained = len(record.get("epochs", {})) >= wanted or ("--patience" in each.options and bool(record))
    return trained and (bool(record.get("scores")) or not translated)


# ---- side by side ---------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """A training under way: its commands one after the other, each in a process group of its own.

    log: gets what they print; None: the screen does.
    """

    each: Training
    lines: list[str]
    log: Path | None
    process: subprocess.Popen | None = None

    def step(self) -> int | None:
        """Start the next command where none is running. None: not at the end yet; else the exit status of the last."""
        code = self.process.poll() if self.process else 0
        if code is None or code or not self.lines:
            return code
        line = with_equal_ffn(self.lines.pop(0))
        with self.log.open("a") if self.log else contextlib.nullcontext() as log:
            print(line, file=log, flush=True)
            output = {"stdout": log, "stderr": subprocess.STDOUT} if log else {}
            command = ["bash", "-euo", "pipefail", "-c", line]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **output)
        return None

    def end(self) -> None:
        """SIGTERM, which `embinit run` gives on to the training; its record and its last checkpoint stay."""
        self.lines.clear()
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)


def start(each: Training, args: argparse.Namespace) -> Job:
    """A training alone has the screen; several have a log each."""
    print(f"{each.name}: started", flush=True)
    log = args.output / each.name / "commands.log" if args.jobs > 1 else None
    if log:
        log.parent.mkdir(parents=True, exist_ok=True)
    return Job(each, commands(each, args), log)


def side_by_side(trainings: list[Training], args: argparse.Namespace) -> list[str]:
    """`args.jobs` at a time until all are done or the time is up; the names of those that failed."""
    waiting, running, failed = list(trainings), [], []
    until = time.monotonic() + 60 * args.minutes
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # several trainings share the cores best with one thread each
    try:
        while (waiting or running) and time.monotonic() < until:
            for job in list(running):
                if (code := job.step()) is not None:
                    running.remove(job)
                    failed += [job.each.name] if code else []
                    where = f", see {job.log}" if job.log else ""
                    print(f"{job.each.name}: {f'failed{where}' if code else 'done'}", flush=True)
            # A longer training of a model goes on in the folder of the shorter one: not both at a time.
            busy = {job.each.name for job in running}
            for each in [each for each in waiting if each.name not in busy][: args.jobs - len(running)]:
                if each.name not in busy:
                    busy.add(each.name)
                    waiting.remove(each)
                    running.append(start(each, args))
            time.sleep(0.2)
    finally:  # also after Ctrl-C and SIGTERM
        for job in running:
            job.end()
        for job in running:
            if job.process:
                job.process.wait()
    if waiting or running:
        left = len({each.name for each in waiting} | {job.each.name for job in running})
        print(f"the time is up, {left} trainings are not finished: the same call goes on with them", flush=True)
    return failed


def parse(words: list[str]) -> argparse.Namespace:
    """What is behind -- goes to fairseq-train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.usage = "%(prog)s GRID --data DIR --vectors de=PATH en=PATH --output DIR [options] [-- OPTION ...]"
    add = parser.add_argument
    add("grid", choices=GRIDS)
    add("--data", type=Path, required=True, help="what prepare.sh made")
    add("--vectors", nargs="+", default=[], metavar="NAME=PATH", help="de=PATH en=PATH, and see `duo`")
    add("--output", type=Path, required=True, help="a folder for each training goes here")
    add("--device", choices=("auto", "cpu", "gpu"), default="auto", help="auto: a GPU where torch finds one")
    add("--precision", choices=("fp32", "bf16"), default="fp32", help="of the trainings; default: %(default)s")
    add("--jobs", type=int, default=1, metavar="N", help="trainings at a time, default %(default)s")
    add("--minutes", type=float, default=float("inf"), metavar="M", help="end after M minutes; the same call goes on")
    add("--worker", default="1/1", metavar="K/N", help="every N-th training, from the K-th")
    add("--print", action="store_true", help="show the commands, run nothing")
    split = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:split])
    args.extra = words[split + 1 :]
    args.vectors = dict(entry.split("=", 1) for entry in args.vectors if "=" in entry)
    if not {"de", "en"} <= set(args.vectors):
        parser.error("--vectors: give de=PATH and en=PATH")
    if args.jobs < 1 or not args.minutes > 0:
        parser.error(f"--jobs {args.jobs}, --minutes {args.minutes:g}: give numbers above 0")
    if args.device == "auto":
        import torch

        args.device = "gpu" if torch.cuda.is_available() else "cpu"
    return args


def main() -> int:
    args = parse(sys.argv[1:])
    worker, workers = map(int, args.worker.split("/"))
    trainings = list(GRIDS[args.grid](args.vectors))[worker - 1 :: workers]
    if args.print:
        for each in trainings:
            print(*commands(each, args), sep="\n")
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    translated = args.grid in TRANSLATED
    failed = side_by_side([t for t in trainings if not is_finished(args.output / t.name, t, translated)], args)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
