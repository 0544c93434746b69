"""Print the grids of docs/results on Multi30k: plain commands, a line per training, for `embinit grid`.

    OUTPUT=data/de-en bash scripts/multi30k/prepare.sh
    python scripts/train_vectors.py --text data/de-en/text/train.de --dim 300 --output data/vectors.de.txt
    python scripts/multi30k/experiments.py scale --data data/de-en --vectors de=data/vectors.de.txt en=glove.txt \
        --output runs/scale | embinit grid - --logs runs/scale/logs --jobs 12
    embinit compare runs/scale --output runs/scale

    scale    sigma of the embeddings at 1/8 to 8 times Xavier's, positions added, absent or untied: is it absorption?
             (table and figure: scale_figure.py)
    table1   Kim et al. 2024, Table 1: all initialisations, with fairseq's own and shuffled vectors at Xavier's scale
    duo      Li et al. 2020: two embeddings, tied, GloVe and learned, and the simpler uses of a second embedding
    ladder   Li et al. 2020, Table 5: the parts of Duo one after the other, untied and random (needs no --vectors)

A line is a name and a command that works by itself: a training by `embinit run`, in a folder of that name, then, but
for `scale`, the translation of the test set with its best checkpoint, and the scores. Several trainings share one GPU
(`--jobs 12`). Calls on several machines share the list (`--worker 1/2`, `--worker 2/2`). `--minutes 9` ends a call, and
the same call continues. All runs of one grid need the same --precision. Options after -- are given to fairseq-train.

The model is Kim's: 3 + 3 layers, 10 heads, D 300, FFN 512, untied, batches of 64 sentences, Adam at a fixed 2e-4.
"""

from __future__ import annotations

import argparse
import functools
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a checkout, installed or not

from embinit_fairseq.errors import OptionError, one_line
from embinit_fairseq.init.strategies import STRATEGIES

PLUGIN = Path(__file__).resolve().parents[2] / "embinit_fairseq"
KIM = """--task translation --encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 300 --decoder-embed-dim 300
    --encoder-attention-heads 10 --decoder-attention-heads 10 --batch-size 64 --required-batch-size-multiple 1
    --optimizer fused_adam --adam-betas (0.9,0.98) --adam-eps 1e-9 --lr 2e-4 --lr-scheduler fixed
    --criterion fused_cross_entropy --no-epoch-checkpoints --num-workers 0
    --log-format json --log-interval 100""".split()
FFN = ("--encoder-ffn-embed-dim", "--decoder-ffn-embed-dim")
#: in place of the inner width with which a transformer has the parameters of Duo
EQUAL = "EQUAL"
#: of a training alone: they do not change the number of parameters
ALONE = ("--seed", "--max-epoch", "--dropout")
VALID_BLEU = [
    "--eval-bleu",
    "--eval-tokenized-bleu",
    "--eval-bleu-args",
    '{"beam": 1, "max_len_a": 1.2, "max_len_b": 10}',
]
Vectors = dict[str, str]


@dataclass(frozen=True)
class Training:
    """Name of the folder, labels for tables, and options of fairseq-train, which follow Kim's."""

    name: str
    labels: dict[str, str]
    options: tuple[str, ...]


def training(labels: dict[str, str], seed: int, epochs: int, *options: str) -> Training:
    """Return a training whose folder has the values of the labels in its name."""
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


def initialised(strategy: str, vectors: Vectors, *more: str) -> tuple[str, ...]:
    """Return --embed-init, with the vectors of both languages if the strategy needs vectors."""
    paths: tuple[str, ...] = ()
    if STRATEGIES[strategy].needs_source:
        paths = ("--embed-init-path", f"encoder={vectors['de']}", f"decoder={vectors['en']}")
    return ("--embed-init", strategy, *paths, *more)


def scale(vectors: Vectors) -> Iterator[Training]:
    """Yield all factors for six epochs of one seed; the ends and the middle for twelve epochs and three seeds.

    With a fixed learning rate the first six epochs do not depend on the number of epochs.
    """
    positions = {
        "added": ("--arch", "transformer"),
        "absent": ("--arch", "transformer", "--no-token-positional-embeddings"),
        "untied": ("--arch", "tupe_transformer"),
    }
    factors = ("1", "0.125", "8", "0.25", "4", "0.5", "2")
    seeds = [(factor, 1, 12 if factor in factors[:3] else 6) for factor in factors]
    seeds += [(factor, seed, 12) for seed in (2, 3) for factor in factors[:3]]
    for factor, seed, epochs in seeds:
        for place, options in positions.items():
            for strategy in ("xavier", "pretrained_xavier"):
                labels = {"init": strategy, "sigma": f"{factor}x", "positions": place}
                filled = initialised(strategy, vectors, "--embed-init-std", f"{factor}x")
                yield training(labels, seed, epochs, *options, *filled)


def table1(vectors: Vectors) -> Iterator[Training]:
    """Yield trainings of at most twenty epochs, which end after four epochs without a better validation loss."""
    strategies: dict[str, tuple[str, ...]] = {"none": ()}
    for strategy in ("xavier", "pretrained", "pretrained_xavier", "shuffled"):
        strategies[strategy] = initialised(strategy, vectors)
    strategies["shuffled_xavier"] = initialised("shuffled", vectors, "--embed-init-std", "xavier")
    for seed in (1, 2, 3):
        for name, options in strategies.items():
            yield training({"init": name}, seed, 20, "--patience", "4", *options, *VALID_BLEU)


def several(how: str, *paths: str) -> str:
    """Return a combination of several files for --embed-init-path; a comma in a name is written twice."""
    return f"{how}:" + ",".join(path.replace(",", ",,") for path in paths)


def wider() -> tuple[str, ...]:
    """Return the options of a transformer with as many parameters as Duo."""
    return ("--arch", "transformer", *(word for flag in FFN for word in (flag, EQUAL)))


def duo(vectors: Vectors) -> Iterator[Training]:
    """Yield Duo with one pre-trained and one learned embedding matrix per side, tied as the paper's model, and
    transformers that use two sets of vectors in one matrix, each vector at length 1: their mean (with second sets of
    the same dimension, de2 and en2), or both concatenated (de_a, de_b, en_a, en_b: their dimensions add up to D)."""
    filled, both = initialised("pretrained_xavier", vectors), initialised("pretrained_xavier", vectors)
    models: dict[str, tuple[str, ...]] = {
        "transformer": ("--arch", "transformer", *filled),
        "transformer_equal": (*wider(), *filled),
    }
    for share in ("stream", "pair"):
        for norm in ("decoder", "encoder"):
            options = ("--duo-share-weights", share, "--duo-norm", norm)
            models[f"duo_{share}_{norm}"] = ("--arch", "duo_transformer", *options, *filled)
    if {"de2", "en2"} <= set(vectors):
        both += (f"encoder_p={vectors['de2']}", f"decoder_p={vectors['en2']}")
        models["duo_two_sets"] = ("--arch", "duo_transformer", *both)
        mean = {lang: several("avg-l2", vectors[lang], vectors[lang + "2"]) for lang in ("de", "en")}
        models["transformer_avg"] = ("--arch", "transformer", *initialised("pretrained_xavier", mean))
        models["transformer_equal_avg"] = (*wider(), *initialised("pretrained_xavier", mean))
    if {"de_a", "de_b", "en_a", "en_b"} <= set(vectors):
        joined = {lang: several("concat-l2", vectors[lang + "_a"], vectors[lang + "_b"]) for lang in ("de", "en")}
        models["transformer_concat"] = ("--arch", "transformer", *initialised("pretrained_xavier", joined))
        models["transformer_equal_concat"] = (*wider(), *initialised("pretrained_xavier", joined))
    for seed in (1, 2):
        for dropout in ("0.1", "0.3"):
            for name, options in models.items():
                tied = ("--share-decoder-input-output-embed", "--dropout", dropout)
                yield training({"model": name, "dropout": dropout}, seed, 10, *tied, *options)


def ladder(vectors: Vectors) -> Iterator[Training]:
    """Yield Table 5 from "+ Meta Embeddings" to "+ Fusion Layer", and transformers of the same dimension and of as many
    parameters; greedy BLEU of the validation text after every epoch, as in Tables 6 and 7."""
    off = {"share-weights": ("--duo-share-weights", "off"), "norm": ("--duo-norm", "off")}
    fusion = ("--duo-fusion", "off")
    models = {
        "transformer": ("--arch", "transformer"),
        "transformer_equal": wider(),
        "duo_meta": ("--arch", "duo_transformer", *off["share-weights"], *off["norm"], *fusion),
        "duo_shared": ("--arch", "duo_transformer", *off["norm"], *fusion),
        "duo_norm": ("--arch", "duo_transformer", *fusion),
        "duo": ("--arch", "duo_transformer"),
    }
    for name, options in models.items():
        yield training({"model": name}, 1, 5, *options, *initialised("xavier", vectors), *VALID_BLEU)


GRIDS: dict[str, Callable[[Vectors], Iterator[Training]]] = {
    "scale": scale,
    "table1": table1,
    "duo": duo,
    "ladder": ladder,
}
#: the one whose question is answered by the loss alone
UNTRANSLATED = "scale"


def machine_options(device: str, precision: str) -> list[str]:
    """Return the options of fairseq-train for a device and a precision.

    bfloat16 on a CPU is autocast, and only faster if the processor has instructions for it: with AVX2 Kim's model makes
    0.07 updates per second in bfloat16, 0.97 in single precision.
    """
    if device == "cpu":
        return ["--cpu", *(["--amp"] if precision == "bf16" else [])]
    return ["--bf16"] if precision == "bf16" else []


def command(each: Training, args: argparse.Namespace) -> str:
    """Return the commands of a training and, for grids with BLEU, of its translation and scores."""
    run, data, target = args.output / each.name, args.data, args.target
    labels = [f"{key}={value}" for key, value in each.labels.items()]
    train = ["fairseq-train", data / "bin", "--user-dir", PLUGIN, *KIM, *each.options]
    train = with_equal_ffn([*map(str, train), *machine_options(args.device, args.precision), *args.extra])
    lines = [shlex.join([*map(str, ["embinit", "run", run, "--label", *labels, "--"]), *train])]
    if args.grid != UNTRANSLATED:
        best = run / "checkpoints" / "checkpoint_best.pt"
        generate = ["fairseq-generate", data / "bin", "--user-dir", PLUGIN, "--path", best, "--beam", 5]
        generate += ["--batch-size", 128, "--num-workers", 0, *(["--cpu"] if args.device == "cpu" else [])]
        score = ["embinit", "score", run, "--ref", data / f"corpus/raw/test.{target}", "--lowercase"]
        score += ["--detokenize", "moses", "--lang", target, "--tokenized", data / f"corpus/tok/test.{target}"]
        lines.append(f"{shlex.join(map(str, generate))} > {shlex.quote(str(run / 'test.generate.log'))} 2>&1")
        lines.append(shlex.join(map(str, score)))
    return " && ".join(lines)


# ---- as many parameters as Duo --------------------------------------------------------------------------------------


def with_equal_ffn(words: Sequence[str]) -> list[str]:
    """Replace EQUAL by the inner width with which the transformer has as many parameters as Duo."""
    if EQUAL not in words:
        return list(words)
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    plain, skip = [], False
    for word in ("512" if word == EQUAL else word for word in words):
        skip = word in ALONE or word.startswith("--embed-init") or (skip and not word.startswith("--"))
        plain += [] if skip else [word]
    width = str(equal_width(tuple(plain)))
    return [width if before in FFN else word for before, word in zip(["", *words], words, strict=False)]


@functools.cache
def equal_width(command: tuple[str, ...], duo_options: tuple[str, ...] = ()) -> int:
    """Return the inner width with which `transformer` has as many parameters as `duo_transformer`.

    The number of parameters is linear in the width, and two models say by how much a step of one changes it
    (layers x (2 D + 1)): the two numbers differ by at most half of that.

    Args:
        command: trains a `transformer`, without --embed-init; everything else is taken from it.
        duo_options: further options of the `duo_transformer`.

    Raises:
        OptionError: a transformer of any width has more parameters.
    """
    last = {name: len(command) - 1 - command[::-1].index(name) for name in FFN}
    width = int(command[last[FFN[0]] + 1])
    more = list(command)
    for place in last.values():
        more[place + 1] = str(width + 1)
    duo = [*command, *duo_options]
    duo[duo.index("--arch") + 1] = "duo_transformer"
    stock = parameters(command)
    equal = width + round((parameters(duo) - stock) / (parameters(more) - stock))
    if equal < 1:
        raise OptionError(f"{' '.join(duo_options)}: a transformer has more parameters with any inner width")
    return equal


def parameters(command: Sequence[str]) -> int:
    """Return the number of parameters of the model of this command; shared ones count once."""
    from fairseq import options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.utils import import_user_module

    words = command[1:]
    if "--user-dir" in words:
        import_user_module(argparse.Namespace(user_dir=words[words.index("--user-dir") + 1]))
    with tempfile.TemporaryDirectory() as empty:  # without a checkpoint of the run
        args = options.parse_args_and_arch(options.get_training_parser(), input_args=[*words, "--save-dir", empty])
        cfg = convert_namespace_to_omegaconf(args)
        model = tasks.setup_task(cfg.task).build_model(cfg.model)
    return sum(parameter.numel() for parameter in model.parameters())


# ---- the list -------------------------------------------------------------------------------------------------------


def parse(words: list[str]) -> argparse.Namespace:
    """Return the arguments; `extra` are those after --."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.usage = "%(prog)s GRID --data DIR --vectors de=PATH en=PATH --output DIR [options] [-- OPTION ...]"
    add = parser.add_argument
    add("grid", choices=GRIDS)
    add("--data", type=Path, required=True, help="what prepare.sh made; `ladder` takes both directions")
    add("--vectors", nargs="+", default=[], metavar="NAME=PATH", help="de=PATH en=PATH, and see `duo`")
    add("--output", type=Path, required=True, help="a folder for each training goes here")
    add("--device", choices=("auto", "cpu", "gpu"), default="auto", help="auto: a GPU where torch finds one")
    add("--precision", choices=("fp32", "bf16"), default="fp32", help="of the trainings; default: %(default)s")
    split = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:split])
    args.extra = words[split + 1 :]
    if unnamed := [entry for entry in args.vectors if "=" not in entry]:
        parser.error(f"--vectors {unnamed[0]}: say whose vectors they are, as in de={unnamed[0]}")
    args.vectors = dict(entry.split("=", 1) for entry in args.vectors)
    if args.grid != "ladder" and not {"de", "en"} <= set(args.vectors):
        parser.error("--vectors: give de=PATH and en=PATH")
    args.target = target_language(args.data)
    if args.grid != "ladder" and args.target != "en":
        parser.error(f"--data {args.data}: from English; this grid needs German to English (DIRECTION=de-en)")
    if args.device == "auto":
        import torch

        args.device = "gpu" if torch.cuda.is_available() else "cpu"
    return args


def target_language(data: Path) -> str:
    """Return the target language of what prepare.sh made; raise OptionError for another folder."""
    for pair in ("de-en", "en-de"):
        if (data / "bin" / f"train.{pair}.en.bin").is_file():
            return pair[-2:]
    raise OptionError(f"--data {data}: no folder bin with binarised data in it; name what prepare.sh made")


def main(words: list[str]) -> None:
    args = parse(words)
    for each in GRIDS[args.grid](args.vectors):
        print(f"{each.name}: {command(each, args)}")


if __name__ == "__main__":
    with one_line():
        main(sys.argv[1:])
