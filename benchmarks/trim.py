"""Measure a translation model with a large vocabulary before and after `embinit trim-vocab`. Prints JSON.

    python benchmarks/trim.py --checkpoint run/checkpoints/checkpoint_best.pt --data data/de-en/bin --words 100000

Both dictionaries of the model grow by --words words first (`embinit expand-vocab`, rows around the mean of the old
ones), as in a model for many languages, and are trimmed to the old ones then. Each model translates the first
--sentences of the test set with one beam in a process of its own with one thread; memory is that process's peak.
`equal`: the translations with the same tokens.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from peers import child_main, machine, measured, run_job

from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.resize.expand import ExpandRequest, expanding
from embinit_fairseq.resize.trim import TrimRequest, trimming
from embinit_fairseq.vocab.dictionary import read_dictionary


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True, help="of a translation model with a dictionary per side")
    parser.add_argument("--data", required=True, type=Path, help="binary data of fairseq-preprocess with a test set")
    parser.add_argument("--source", default="de")
    parser.add_argument("--target", default="en")
    parser.add_argument("--words", type=int, default=100_000, help="more of each side (default: %(default)s)")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--longest", type=int, default=60, help="tokens of a translation (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="sentences (default: %(default)s)")
    parser.add_argument("--job", choices=("translate",), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        child_main({"translate": translate}, args)
        return
    with tempfile.TemporaryDirectory() as name:
        models = {"large": enlarged(args, Path(name)), "trimmed": trimmed(args, Path(name))}
        records = {name: measure(args, folder) for name, folder in models.items()}
    translations = [record.pop("translations") for record in records.values()]
    equal = sum(one == other for one, other in zip(*translations))
    options = {key: str(value) for key, value in vars(args).items() if key != "job"}
    print(
        json.dumps({"machine": machine(("torch", "fairseq")), "options": options, **records, "equal": equal}, indent=2)
    )


def sides(args: argparse.Namespace) -> list[tuple[str, str]]:
    return [("encoder", f"dict.{args.source}.txt"), ("decoder", f"dict.{args.target}.txt")]


def enlarged(args: argparse.Namespace, folder: Path) -> Path:
    """Return a folder with the model whose dictionaries have grown."""
    words = folder / "words"
    words.write_text("".join(f"word{number}x\n" for number in range(args.words)))
    checkpoint, data = args.checkpoint, args.data
    for side, dictionary in sides(args):
        output = folder / f"large.{side}"
        files = {"checkpoint": checkpoint, "dictionary": str(data / dictionary), "output": str(output)}
        with expanding(ExpandRequest(**files, words=str(words), method="avg", side=side)):
            pass
        checkpoint, data = str(output / "model.pt"), output
    return data


def trimmed(args: argparse.Namespace, folder: Path) -> Path:
    """Return a folder with the model that is trimmed to the words of the data's dictionaries."""
    data = folder / "large.decoder"
    for side, dictionary in sides(args):
        output = folder / f"trimmed.{side}"
        wanted = str(args.data / dictionary)
        files = {"checkpoint": str(data / "model.pt"), "dictionary": str(data / dictionary), "output": str(output)}
        request = TrimRequest(**files, keep=wanted, side=side)
        with trimming(request):
            pass
        data = output
    return data


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return rows of both matrices, megabytes on disk, and the numbers of a process that translates."""
    for path in args.data.glob(f"test.{args.source}-{args.target}.*"):
        (folder / path.name).symlink_to(path.resolve())
    rows = [len(read_dictionary(folder / dictionary)) for _, dictionary in sides(args)]
    options = {"--checkpoint": folder / "model.pt", "--data": folder, "--sentences": args.sentences}
    options |= {"--beam": args.beam, "--longest": args.longest, "--batch": args.batch}
    words = [str(word) for pair in options.items() for word in pair]
    megabytes = (folder / "model.pt").stat().st_size / 1e6
    return {"rows": rows, "file_mb": megabytes, **run_job(__file__, "translate", words)}


def translate(args: argparse.Namespace) -> dict[str, Any]:
    """Translate the test set; this is a process of its own."""
    from ct2 import fairseq

    args.subset = "test"
    program, sources = fairseq(args)
    translations, numbers = measured(program)
    speed = len(sources) / numbers["wall_seconds"]
    return {"sentences_per_second": speed, "peak_mb": numbers["peak_mb"], "translations": translations}


if __name__ == "__main__":
    main()
