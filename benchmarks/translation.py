"""Train Kim's translation model: plain fairseq, fairseq with this plugin's fused parts, JoeyNMT. Prints JSON.

    OUTPUT=data/de-en bash scripts/multi30k/prepare.sh
    pip install joeynmt==2.3.0 --no-deps --target joey        # and the packages that `python -m joeynmt` needs
    python benchmarks/translation.py --data data/de-en --joeynmt joey

Three layers each, D 300, FFN 512, 10 heads, untied, dropout 0.1, batches of 64 sentences, Adam, the same text and
dictionaries; one thread. Each program trains by its own command, for --updates updates and for --before; the difference
counts, so neither imports nor reading do. They take turns. `updates_per_second` are by the processor's
time, of the fastest of --repeats; `peak_mb` is of the longer training; `ratio` is to the last program's, JoeyNMT's.
`--precision fp32 bf16` trains fairseq in both; bf16 is PyTorch's autocast, which JoeyNMT does not have on a CPU: there
it stays at single precision. fairseq's batches have sentences of like length, JoeyNMT's are drawn: part of the
difference is padding. Without --joeynmt only fairseq is run, and the ratio is to the fused one in the last precision.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from peers import machine

from embinit_fairseq.arguments import ArgumentParser

PLUGIN = Path(__file__).resolve().parents[1] / "embinit_fairseq"
MODEL = """--task translation --arch transformer --encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 300
    --decoder-embed-dim 300 --encoder-ffn-embed-dim 512 --decoder-ffn-embed-dim 512 --encoder-attention-heads 10
    --decoder-attention-heads 10 --dropout 0.1 --batch-size 64 --required-batch-size-multiple 1 --lr 2e-4 --seed 1
    --adam-betas (0.9,0.98) --adam-eps 1e-9 --cpu --num-workers 0 --no-save --disable-validation
    --log-format none""".split()
#: number of updates -> command line
Program = Callable[[int], list[str]]
_PLUGIN = ("--user-dir", str(PLUGIN))
#: name -> options of fairseq-train: plain, with each fused part alone, with both
FAIRSEQ = {
    "fairseq": ("--optimizer", "adam", "--criterion", "cross_entropy"),
    "fairseq, fused loss": (*_PLUGIN, "--optimizer", "adam", "--criterion", "fused_cross_entropy"),
    "fairseq, fused Adam": (*_PLUGIN, "--optimizer", "fused_adam", "--criterion", "cross_entropy"),
    "fairseq, fused": (*_PLUGIN, "--optimizer", "fused_adam", "--criterion", "fused_cross_entropy"),
}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="folder that scripts/multi30k/prepare.sh made")
    parser.add_argument("--joeynmt", type=Path, help="folder into which JoeyNMT was installed")
    parser.add_argument(
        "--precision",
        choices=("fp32", "bf16"),
        nargs="+",
        default=["fp32"],
        help="of fairseq's trainings (default: fp32)",
    )
    parser.add_argument("--before", type=int, default=5, help="updates that do not count (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=65, help="the last one (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    pair = next((path.name.split(".")[1] for path in args.data.glob("bin/train.*-*.*.bin")), None)
    if pair is None:
        parser.error(f"--data {args.data}: no folder bin with binarised data; name the folder that prepare.sh made")
    if args.updates <= args.before:
        parser.error("--updates: give more than --before")
    programs = {
        f"{name}, {precision}": fairseq(args, options, precision)
        for precision in args.precision
        for name, options in FAIRSEQ.items()
    }
    results: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        if args.joeynmt:
            programs["joeynmt"] = joeynmt(args, Path(folder), *pair.split("-"))
        for repeat in range(args.repeats):
            for name, program in programs.items():
                ends = [spent(program, updates, args) for updates in (args.before, args.updates)]
                seconds = ends[1]["seconds"] - ends[0]["seconds"]
                rate = (args.updates - args.before) / seconds
                results.setdefault(name, []).append({"rate": round(rate, 3), "peak_mb": round(ends[1]["peak_mb"])})
                print(f"{name}, turn {repeat + 1}: {rate:.2f} updates per second", file=sys.stderr)
    best = {name: max(run["rate"] for run in runs) for name, runs in results.items()}
    record = {
        "machine": machine(("torch", "numpy", "fairseq")),
        "options": {name: str(value) for name, value in vars(args).items()},
        "runs": results,
        "updates_per_second": best,
        "peak_mb": {name: min(run["peak_mb"] for run in runs) for name, runs in results.items()},
        "ratio": {name: round(rate / best[next(reversed(best))], 2) for name, rate in best.items()},
    }
    print(json.dumps(record, indent=2))


def fairseq(args: argparse.Namespace, options: Sequence[str], precision: str) -> Program:
    """Return the commands of fairseq-train."""
    amp = ["--amp"] if precision == "bf16" else []
    train = [sys.executable, "-m", "fairseq_cli.train", str(args.data / "bin"), *MODEL, *options, *amp]
    return lambda updates: [*train, "--max-update", str(updates)]


def joeynmt(args: argparse.Namespace, folder: Path, source: str, target: str) -> Program:
    """Return the commands of JoeyNMT, whose settings are a file, written for each training. JSON is YAML."""
    words = {lang: vocabulary(args.data / "bin" / f"dict.{lang}.txt", folder) for lang in (source, target)}
    side = {"level": "word", "lowercase": False, "max_length": 1024}

    half = {
        "type": "transformer",
        "num_layers": 3,
        "num_heads": 10,
        "hidden_size": 300,
        "ff_size": 512,
        "dropout": 0.1,
        "layer_norm": "post",
        "embeddings": {"embedding_dim": 300, "scale": True, "dropout": 0.1},
    }

    def command(updates: int) -> list[str]:
        settings = {
            "name": "kim",
            "model_dir": str(folder / "model"),
            "use_cuda": False,
            "random_seed": 1,
            "data": {
                "train": str(args.data / "text" / "train"),
                "dev": str(args.data / "text" / "valid"),
                "dataset_type": "plain",
                "src": {"lang": source, "voc_file": words[source], **side},
                "trg": {"lang": target, "voc_file": words[target], **side},
            },
            "testing": {"beam_size": 1},
            "training": {
                **{"optimizer": "adam", "adam_betas": [0.9, 0.98], "learning_rate": 2e-4},
                **{"scheduling": "decaying", "decaying_step_size": 1_000, "loss": "crossentropy"},
                **{"normalization": "tokens", "batch_size": 64, "batch_type": "sentence", "shuffle": True},
                **{"epochs": 1, "updates": updates, "overwrite": True},
                **{"validation_freq": 1_000_000, "logging_freq": 1_000, "early_stopping_metric": "loss"},
            },
            "model": {"encoder": half, "decoder": half, "tied_embeddings": False, "tied_softmax": False},
        }
        file = folder / "settings.yaml"
        file.write_text(json.dumps(settings), encoding="utf-8")
        return [sys.executable, "-m", "joeynmt", "train", str(file), "--skip-test"]

    return command


def vocabulary(dictionary: Path, folder: Path) -> str:
    """Return the name of a file with fairseq's words, a line each."""
    file = folder / f"{dictionary.stem}.words"
    lines = dictionary.read_text(encoding="utf-8").splitlines()
    file.write_text("".join(f"{line.rsplit(' ', 1)[0]}\n" for line in lines), encoding="utf-8")
    return str(file)


def spent(program: Program, updates: int, args: argparse.Namespace) -> dict[str, float]:
    """Return seconds of the processor, and the peak memory, of this many updates."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    line = program(updates)
    if "joeynmt" in line:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(args.joeynmt), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(line, env=environment, stdout=said, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            said.seek(0)
            sys.exit(f"benchmarks/translation.py: error: {' '.join(line)} says:\n{said.read()[-2000:]}")
    return {"seconds": usage.ru_utime + usage.ru_stime, "peak_mb": usage.ru_maxrss / 1024}


if __name__ == "__main__":
    main()
