"""Times training steps of an architecture on random sentences, as fairseq's Trainer does them, data loading left out:
tokens/s, FLOP/s and their share of the hardware's peak, the attention kernel, memory; and the hours that a training
would take. Options not listed here go to fairseq, as to fairseq-train: `embinit bench --arch tupe_base --rel-pos`."""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import shlex
from collections.abc import Sequence
from typing import Any

from embinit_fairseq import machine
from embinit_fairseq.bench import report as bench_report
from embinit_fairseq.bench.process import BenchRequest, Measurement, measured
from embinit_fairseq.bench.report import PRECISIONS, estimate, quartiles, relative, throughput, vendor_peak
from embinit_fairseq.cli.progress import progress
from embinit_fairseq.cli.records import print_json
from embinit_fairseq.errors import OptionError

#: main.py gives us what it does not know, in args.further
TAKES_FURTHER_OPTIONS = True
TASKS = ("masked_lm", "translation", "language_modeling", "sentence_prediction")
#: options of fairseq-train that would have no effect, or another one -> what to give instead
_INSTEAD = {
    "--max-tokens": "--batch and --length",
    "--batch-size": "--batch",
    "--tokens-per-sample": "--length",
    "--cpu": "--device cpu",
    "--fp16": "--precision fp16",
    "--bf16": "--precision bf16",
    "--update-freq": "--tokens-per-update, for the estimate",
    "--save-dir": "nothing: nothing is saved",
    "--restore-file": "nothing: nothing is loaded",
}
_PACKAGES = ("torch", "fairseq", "embinit-fairseq")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add(
        "--arch", required=True, metavar="NAME", help="architecture; with options of its own in quotes: 'NAME --option'"
    )
    add("--compare", nargs="+", default=[], metavar="NAME", help="other architectures, in turns with the first")
    add("--task", choices=TASKS, help="default: by the architecture")
    add("--batch", type=_positive, metavar="N", help="sentences (default: as many as make 4,096 tokens)")
    add(
        "--length", type=_positive, metavar="N", help="tokens of a sentence (default: 512; 32 translation, 128 classes)"
    )
    add("--padding", type=float, default=0.0, metavar="P", help="share of padding in every second sentence (default 0)")
    add("--vocabulary", type=_positive, default=32768, metavar="N", help="symbols (default: %(default)s)")
    add("--precision", choices=PRECISIONS, help="default: fp16 on a GPU, fp32 on a CPU; amp: PyTorch's autocast")
    add("--device", choices=("cpu", "cuda"), help="default: cuda if PyTorch finds a GPU")
    add("--steps", type=_positive, default=5, metavar="N", help="timed ones, of each turn (default: %(default)s)")
    add("--warmup", type=_whole, default=2, metavar="N", help="steps before those (default: %(default)s)")
    add("--turns", type=_positive, metavar="N", help="with --compare: turns of each architecture (default 2)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--train", action="store_true", help="steps of training (default)")
    mode.add_argument("--decode", action="store_true", help="beam search instead; every output has --length tokens")
    add("--beam", type=_positive, default=5, metavar="N", help="of --decode (default: %(default)s)")
    add("--updates", type=_positive, metavar="N", help="estimate the hours of a training of so many updates")
    add("--tokens-per-update", type=_positive, metavar="N", help="over all devices, without padding")
    add("--gpus", type=_positive, default=1, metavar="N", help="devices of that training (default: %(default)s)")
    add(
        "--scaling", type=float, default=1.0, metavar="F", help="what each keeps of its speed beside others (default 1)"
    )
    add("--assume-tflops", type=float, metavar="T", help="estimate for a device that does so many TFLOP/s of the model")
    add("--user-dir", metavar="DIR", help="another plugin that an architecture comes from")
    add("--json", action="store_true", help="print one JSON object instead of a summary")


def _whole(text: str, smallest: int = 0) -> int:
    if not re.fullmatch("[0-9]{1,18}", text) or int(text) < smallest:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {smallest} (to 18 digits)")
    return int(text)


def _positive(text: str) -> int:
    return _whole(text, 1)


def run(args: argparse.Namespace) -> int:
    """Measure, in turns; print."""
    _check(args)
    record = bench(args)
    if args.json:
        print_json(record)
    else:
        print(bench_report.render(record))
    return 0


def _check(args: argparse.Namespace) -> None:
    for option in args.further:
        instead = _INSTEAD.get(option.partition("=")[0])
        if instead is not None:
            raise OptionError(f"{option}: not an option here; give {instead}")
    if not 0 <= args.padding <= 0.9:
        raise OptionError(f"--padding {args.padding}: must be a share from 0 to 0.9")
    if args.length is not None and args.length < 4:
        raise OptionError(f"--length {args.length}: must be at least 4, two words between <s> and </s>")
    if args.vocabulary < 16:
        raise OptionError(f"--vocabulary {args.vocabulary}: must be at least 16; five of them are special")
    if not 0 < args.scaling <= 1:
        raise OptionError(f"--scaling {args.scaling}: must be above 0 and at most 1")
    if args.assume_tflops is not None and not 0 < args.assume_tflops < math.inf:
        raise OptionError(f"--assume-tflops {args.assume_tflops}: must be above 0, and finite")
    if (args.updates is None) != (args.tokens_per_update is None):
        raise OptionError("--updates and --tokens-per-update belong together: give both, or neither")
    if args.updates is None and (args.gpus, args.scaling, args.assume_tflops) != (1, 1.0, None):
        raise OptionError(
            "--gpus, --scaling and --assume-tflops are for an estimate: add --updates, --tokens-per-update"
        )
    if args.decode and args.updates is not None:
        raise OptionError("--updates has no effect with --decode: leave one of them out")
    if args.turns is not None and not args.compare:
        raise OptionError("--turns has no effect without --compare; for more steps give --steps")


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """The record: machine, settings, a result for each architecture, their ratios, estimates."""
    requests = _requests(args)
    turns = args.turns or (2 if args.compare else 1)
    runs: dict[str, list[Measurement]] = {request.name: [] for request in requests}
    total = turns * len(requests) * (args.steps + args.warmup)
    with progress(None, "embinit bench", "step", total) as bar:
        for _ in range(turns):
            for request in requests:
                bar.set_postfix_str(request.name)
                runs[request.name].append(measured(request, bar.update))
    peak = max(run["matrix_peak"] for turn in runs.values() for run in turn)
    results = {name: result(turn, peak) for name, turn in runs.items()}
    record = {
        "machine": machine.state(_PACKAGES),
        "mode": "decode" if args.decode else "train",
        "steps": args.steps,
        "warmup": args.warmup,
        "turns": turns,
        "options": list(args.further),
        "results": results,
        "relative": {
            clock: relative({name: found[clock]["median"] / found["tokens"] for name, found in results.items()})
            for clock in ("seconds", "cpu_seconds")
        },
    }
    if args.updates is not None:
        record["estimate"] = {name: _estimate(args, found) for name, found in results.items()}
    return record


def _requests(args: argparse.Namespace) -> list[BenchRequest]:
    names = [args.arch, *args.compare]
    if len(set(names)) < len(names):
        raise OptionError("--compare names the same architecture twice: name each once, --turns repeats them")
    requests = []
    taken = {field.name for field in dataclasses.fields(BenchRequest)} & set(vars(args))
    shared = {name: value for name, value in vars(args).items() if name in taken and name != "arch"}
    for name in names:
        arch, *own = _split(name)
        requests.append(BenchRequest(name=name, arch=arch, options=(*args.further, *own), **shared))
    return requests


def _split(name: str) -> Sequence[str]:
    try:
        parts = shlex.split(name)
    except ValueError as error:
        raise OptionError(f"--arch or --compare {name!r}: {error}; write 'NAME --option VALUE'") from None
    if not parts:
        raise OptionError("--arch or --compare: an empty name; write 'NAME --option VALUE'")
    return parts


def result(turns: list[Measurement], peak: float) -> dict[str, Any]:
    """Measurements of one architecture, of all its turns together, and what follows from them. peak: FLOP/s."""
    merged: dict[str, Any] = dict(turns[0])
    seconds = [value for turn in turns for value in turn["seconds"]]
    cpu_seconds = [value for turn in turns for value in turn["cpu_seconds"]]
    merged["all_seconds"] = seconds
    merged["seconds"], merged["cpu_seconds"] = quartiles(seconds), quartiles(cpu_seconds)
    merged["memory"] = {
        key: None if value is None else max(turn["memory"][key] for turn in turns)
        for key, value in merged["memory"].items()
    }
    merged["matrix_peak"] = peak
    # on a CPU by the seconds of the processor, like the peak: other programs take some of those of the clock
    busy = [value / merged["threads"] for value in cpu_seconds] if merged["device"] == "cpu" else None
    merged |= throughput(seconds, merged["tokens"], merged["flops"], peak, busy)
    vendor = vendor_peak(merged["device_name"] or "", merged["precision"])
    merged["vendor_peak"] = vendor
    rate = merged["flops_per_second"]
    merged["share_of_vendor_peak"] = None if vendor is None or rate is None else rate / vendor
    merged["sentences_per_second"] = merged["sentences"] / merged["seconds"]["median"]
    return merged


def _estimate(args: argparse.Namespace, result: dict[str, Any]) -> dict[str, Any]:
    rate, assumed = result["tokens_per_second"], args.assume_tflops is not None
    if assumed:
        if result["flops_per_token"] is None:
            raise OptionError("--assume-tflops: the FLOPs could not be counted here, so there is nothing to divide")
        rate = args.assume_tflops * 1e12 / result["flops_per_token"]
    return {**estimate(args.updates, args.tokens_per_update, rate, args.gpus, args.scaling), "assumed": assumed}
