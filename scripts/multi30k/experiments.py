"""Print the grids of docs/results on Multi30k: plain commands, a line per training, for `embinit grid`.

    OUTPUT=data/de-en bash scripts/multi30k/prepare.sh
    python scripts/train_vectors.py --text data/de-en/text/train.de --dim 300 --output data/vectors.de.txt
    python scripts/multi30k/experiments.py scale --data data/de-en --vectors de=data/vectors.de.txt en=glove.txt \
        --output runs/scale | embinit grid - --logs runs/scale/logs --jobs 12
    embinit compare runs/scale --output runs/scale

    scale      sigma of the embeddings at 1/8 to 8 times Xavier's, positions added, absent or untied: is it absorption?
    positions  Xavier's numbers and raw vectors with positions added, absent, untied, rotary, and as a penalty (ALiBi)
    step       sigma of the embeddings x factor of the forward pass: is the penalty one of size or of Adam's step?
    remedy     large embeddings with a learning rate of their own, as a multiple of --lr
    content    few pairs, vectors learned from them or from a model of other pairs, also shuffled (content.sh)
    table1     Kim et al. 2024, Table 1: all initialisations, with fairseq's own and shuffled vectors at Xavier's scale
    duo        Li et al. 2020: two embeddings, tied, GloVe and learned, and the simpler uses of a second embedding
    ladder     Li et al. 2020, Table 5: the parts of Duo one after the other, untied and random (needs no --vectors)

A line is a name and a command that works by itself: a training by `embinit run`, in a folder of that name, then, but
for grids that need the loss alone (BY_LOSS), the translation of the test set with its best checkpoint, and the scores.
Several trainings share one GPU (`--jobs 12`). Calls on several machines share the list (`--worker 1/2`, `--worker
2/2`). `--minutes 9` ends a call, and the same call continues. All runs of one grid need the same --precision. Options
after -- are given to fairseq-train.

The model is Kim's: 3 + 3 layers, 10 heads, D 300, FFN 512, untied, batches of 64 sentences, Adam at a fixed 2e-4.
"""

from __future__ import annotations

import argparse
import functools
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from embinit_fairseq.arguments import ArgumentParser, read_pairs, split_at_dashes
from embinit_fairseq.errors import OptionError, one_line
from embinit_fairseq.init.strategies import STRATEGIES

PLUGIN = Path(__file__).resolve().parents[2] / "embinit_fairseq"
KIM = """--task translation --encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 300 --decoder-embed-dim 300
    --encoder-attention-heads 10 --decoder-attention-heads 10 --batch-size 64 --required-batch-size-multiple 1
    --optimizer fused_adam --adam-betas (0.9,0.98) --adam-eps 1e-9 --lr 2e-4 --lr-scheduler fixed
    --criterion fused_cross_entropy --no-epoch-checkpoints --num-workers 0
    --log-format json --log-interval 100""".split()
FFN = ("--encoder-ffn-embed-dim", "--decoder-ffn-embed-dim")
#: Kim's values of options that some trainings replace
DEFAULTS = {"--arch": "transformer", "--dropout": "0.1", FFN[0]: "512", FFN[1]: "512"}
TIED = "--share-decoder-input-output-embed"
#: placeholder for the inner width with which a transformer has as many parameters as Duo
EQUAL = "EQUAL"
WIDER = (FFN[0], EQUAL, FFN[1], EQUAL)
VALID_BLEU = [
    "--eval-bleu",
    "--eval-tokenized-bleu",
    "--eval-bleu-args",
    '{"beam": 1, "max_len_a": 1.2, "max_len_b": 10}',
]
Vectors = dict[str, str]


@dataclass(frozen=True)
class Training:
    """Hold name of the folder, labels for tables, and options of fairseq-train, which follow Kim's."""

    name: str
    labels: dict[str, str]
    options: tuple[str, ...]


def training(labels: dict[str, str], seed: int, epochs: int, *options: str) -> Training:
    """Return a training whose folder has the values of the labels in its name."""
    name = ".".join([*labels.values(), f"seed{seed}"])
    defaults = [word for flag, value in DEFAULTS.items() if flag not in options for word in (flag, value)]
    return Training(name, labels, (*defaults, *options, "--seed", str(seed), "--max-epoch", str(epochs)))


def initialised(strategy: str, vectors: Vectors, *more: str) -> tuple[str, ...]:
    """Return --embed-init, with the vectors of both languages if the strategy needs vectors."""
    paths: tuple[str, ...] = ()
    if STRATEGIES[strategy].needs_source:
        paths = ("--embed-init-path", f"encoder={vectors['de']}", f"decoder={vectors['en']}")
    return ("--embed-init", strategy, *paths, *more)


#: place of positions -> options
PLACES = {
    "added": ("--arch", "transformer"),
    "absent": ("--arch", "transformer", "--no-token-positional-embeddings"),
    "untied": ("--arch", "tupe_transformer"),
    "rope": ("--arch", "tupe_transformer", "--positions", "rope"),
    "alibi": ("--arch", "tupe_transformer", "--positions", "alibi"),
}


def scale(vectors: Vectors) -> Iterator[Training]:
    """Yield all factors for six epochs of one seed; the ends and the middle for twelve epochs and three seeds.

    With a fixed learning rate the first six epochs do not depend on the number of epochs.
    """
    factors = ("1", "0.125", "8", "0.25", "4", "0.5", "2")
    seeds = [(factor, 1, 12 if factor in factors[:3] else 6) for factor in factors]
    seeds += [(factor, seed, 12) for seed in (2, 3) for factor in factors[:3]]
    for factor, seed, epochs in seeds:
        for place in ("added", "absent", "untied"):
            for strategy in ("xavier", "pretrained_xavier"):
                labels = {"init": strategy, "sigma": f"{factor}x", "positions": place}
                filled = initialised(strategy, vectors, "--embed-init-std", f"{factor}x")
                yield training(labels, seed, epochs, *PLACES[place], *filled)


def positions(vectors: Vectors) -> Iterator[Training]:
    """Yield Xavier's numbers and raw vectors with all kinds of positions, for the cost of raw vectors."""
    for seed in (1, 2, 3):
        for place, options in PLACES.items():
            for strategy in ("xavier", "pretrained"):
                labels = {"init": strategy, "positions": place}
                yield training(labels, seed, 8, *options, *initialised(strategy, vectors))


#: sigma of the embeddings relative to Xavier's, factor sqrt(D) of the forward pass, where positions are
STEPS = (
    ("1x", "on", "added"),
    ("10x", "off", "added"),
    ("10x", "on", "added"),
    ("10x", "on", "untied"),
    ("1x", "on", "untied"),
    ("100x", "off", "added"),
    ("1x", "off", "added"),
    ("0.1x", "on", "added"),
    ("1x", "on", "absent"),
    ("10x", "on", "absent"),
)


def step(vectors: Vectors) -> Iterator[Training]:
    """Yield random embeddings whose size in the forward pass and size relative to a step of Adam vary separately.

    For D = 100 the factor is 10: 10x without it gives exactly the forward values of 1x with it.
    """
    for seed in (1, 2, 3):
        for sigma, factor, place in STEPS:
            labels = {"sigma": sigma, "factor": factor, "positions": place}
            unscaled = () if factor == "on" else ("--no-scale-embedding",)
            filled = initialised("xavier", vectors, "--embed-init-std", sigma)
            yield training(labels, seed, 5, *PLACES[place], *unscaled, *filled)


def remedy(vectors: Vectors) -> Iterator[Training]:
    """Yield large embeddings whose learning rate is the same multiple of Xavier's as their sigma, and without it.

    Relative to what the first layer reads, word plus position, Xavier's numbers at 4 times the rate have the step of
    10x at 10 times the rate; 10x at 3 times the rate has that of Xavier's numbers. Without positions there is no
    absorption.
    """
    numbers = initialised("xavier", vectors, "--embed-init-std", "10x")
    arms = {
        ("10x", "3", "added"): numbers,
        ("1x", "4", "added"): initialised("xavier", vectors),
        ("10x", "sigma", "added"): numbers,
        ("10x", "30", "added"): numbers,
        ("10x", "sigma", "absent"): numbers,
        ("raw", "one", "added"): initialised("pretrained", vectors),
        ("raw", "sigma", "added"): initialised("pretrained", vectors),
        ("vectors_1x", "one", "added"): initialised("pretrained_xavier", vectors),
        ("10x", "sigma", "untied"): numbers,
        ("raw", "one", "untied"): initialised("pretrained", vectors),
        ("raw", "sigma", "untied"): initialised("pretrained", vectors),
        ("vectors_1x", "one", "untied"): initialised("pretrained_xavier", vectors),
    }
    for seed in (1, 2, 3):
        for (sigma, rate, place), options in arms.items():
            labels = {"sigma": sigma, "rate": rate, "positions": place}
            scaled = () if rate == "one" else ("--embed-init-lr-scale", rate)
            yield training(labels, seed, 5, *PLACES[place], *options, *scaled)


def content(vectors: Vectors) -> Iterator[Training]:
    """Yield Xavier's numbers, two sets of vectors at Xavier's scale, and each of them shuffled, until they overfit.

    The `oracle` vectors (de_oracle, en_oracle) come from a model of the same task: content.sh.
    """
    arms = {"xavier": initialised("xavier", vectors)}
    for name, suffix in (("oracle", "_oracle"), ("own", "")):
        paths = {lang: vectors[lang + suffix] for lang in ("de", "en")}
        arms[name] = initialised("pretrained_xavier", paths)
        arms[f"{name}_shuffled"] = initialised("shuffled", paths, "--embed-init-std", "xavier")
    for seed in (1, 2, 3):
        for name, options in arms.items():
            yield training({"init": name}, seed, 200, "--patience", "5", *options)


def table1(vectors: Vectors) -> Iterator[Training]:
    """Yield trainings of at most twenty epochs, which end after four epochs without a better validation loss."""
    names = ("xavier", "pretrained", "pretrained_xavier", "shuffled")
    strategies = {"none": (), **{name: initialised(name, vectors) for name in names}}
    strategies["shuffled_xavier"] = initialised("shuffled", vectors, "--embed-init-std", "xavier")
    for seed in (1, 2, 3):
        for name, options in strategies.items():
            yield training({"init": name}, seed, 20, "--patience", "4", *options, *VALID_BLEU)


def joined(how: str, vectors: Vectors, first: str, second: str) -> tuple[str, ...]:
    """Return --embed-init with two sets of vectors per language in one matrix; a comma in a path is written twice."""
    paths = {
        lang: f"{how}:" + ",".join(vectors[lang + name].replace(",", ",,") for name in (first, second))
        for lang in ("de", "en")
    }
    return initialised("pretrained_xavier", paths)


def duo(vectors: Vectors) -> Iterator[Training]:
    """Yield Duo with one pre-trained and one learned embedding matrix per side, tied as the paper's model, and
    transformers that use two sets of vectors in one matrix, each vector at length 1: their mean (with second sets of
    the same dimension, de2 and en2), or both concatenated (de_a, de_b, en_a, en_b: their dimensions add up to D)."""
    filled, stock = initialised("pretrained_xavier", vectors), ("--arch", "transformer")
    models = {"transformer": (*stock, *filled), "transformer_equal": (*stock, *WIDER, *filled)}
    for share in ("stream", "pair"):
        for norm in ("decoder", "encoder"):
            options = ("--arch", "duo_transformer", "--duo-share-weights", share, "--duo-norm", norm)
            models[f"duo_{share}_{norm}"] = (*options, *filled)
    if {"de2", "en2"} <= set(vectors):
        second = (f"encoder_p={vectors['de2']}", f"decoder_p={vectors['en2']}")
        models["duo_two_sets"] = ("--arch", "duo_transformer", *filled, *second)
        mean = joined("avg-l2", vectors, "", "2")
        models |= {"transformer_avg": (*stock, *mean), "transformer_equal_avg": (*stock, *WIDER, *mean)}
    if {"de_a", "de_b", "en_a", "en_b"} <= set(vectors):
        both = joined("concat-l2", vectors, "_a", "_b")
        models |= {"transformer_concat": (*stock, *both), "transformer_equal_concat": (*stock, *WIDER, *both)}
    for seed in (1, 2, 3):
        for dropout in ("0.1", "0.3"):
            for name, options in models.items():
                labels = {"model": name, "dropout": dropout}
                yield training(labels, seed, 10, TIED, "--dropout", dropout, *options)


def ladder(vectors: Vectors) -> Iterator[Training]:
    """Yield Table 5 from "+ Meta Embeddings" to "+ Fusion Layer", and transformers of the same dimension and of as many
    parameters; greedy BLEU of the validation text after every epoch, as in Tables 6 and 7."""
    duo, fusion, norm = ("--arch", "duo_transformer"), ("--duo-fusion", "off"), ("--duo-norm", "off")
    models = {
        "transformer": ("--arch", "transformer"),
        "transformer_equal": ("--arch", "transformer", *WIDER),
        "duo_meta": (*duo, "--duo-share-weights", "off", *norm, *fusion),
        "duo_shared": (*duo, *norm, *fusion),
        "duo_norm": (*duo, *fusion),
        "duo": duo,
    }
    for name, options in models.items():
        yield training({"model": name}, 1, 5, *options, *initialised("xavier", vectors), *VALID_BLEU)


#: grids whose question is answered by the loss alone
BY_LOSS = ("scale", "positions", "step", "remedy", "content")
GRIDS: dict[str, Callable[[Vectors], Iterator[Training]]] = {
    "scale": scale,
    "positions": positions,
    "step": step,
    "remedy": remedy,
    "content": content,
    "table1": table1,
    "duo": duo,
    "ladder": ladder,
}


@functools.cache
def equal_width(words: tuple[str, ...]) -> int:
    """Return the inner width with which a `transformer` has as many parameters as the `duo_transformer`.

    The number of parameters is linear in the width, and two models say by how much a step of one changes it
    (layers x (2 D + 1)): the two numbers differ by at most half of that.

    Args:
        words: arguments of fairseq-train for both models.
    """
    from fairseq import options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.utils import import_user_module

    import_user_module(argparse.Namespace(user_dir=str(PLUGIN)))

    def parameters(arch: str, further: int = 0) -> tuple[int, int]:
        with tempfile.TemporaryDirectory() as empty:  # for the record of --embed-init
            command = [*words, "--arch", arch, "--save-dir", empty]
            args = options.parse_args_and_arch(options.get_training_parser(), command)
            width = args.encoder_ffn_embed_dim
            args.encoder_ffn_embed_dim = args.decoder_ffn_embed_dim = width + further
            cfg = convert_namespace_to_omegaconf(args)
            model = tasks.setup_task(cfg.task).build_model(cfg.model)
        return sum(parameter.numel() for parameter in model.parameters()), width

    (stock, width), (wider, _) = parameters("transformer"), parameters("transformer", further=1)
    duo, _ = parameters("duo_transformer")
    return width + round((duo - stock) / (wider - stock))


def train_words(of: Training, args: argparse.Namespace) -> list[str]:
    """Return the command of a training."""
    # bfloat16 on a CPU is autocast, and only faster if the processor has instructions for it (docs/speed.md)
    device = {"cpu": ["--cpu"], "gpu": []}[args.device]
    device += {"fp32": [], "bf16": ["--amp" if args.device == "cpu" else "--bf16"]}[args.precision]
    words = ["fairseq-train", str(args.data / "bin"), "--user-dir", str(PLUGIN)]
    words += [*KIM, *of.options, *device, *args.extra]
    if EQUAL not in words:
        return words
    tied = [TIED] if TIED in words else []
    ffn = [word for flag in FFN for word in (flag, DEFAULTS[flag])]
    # drawn at random: without vectors to be read
    width = equal_width((words[1], *KIM, *tied, *ffn, "--cpu", *args.extra, "--embed-init", "xavier"))
    last = [f"{flag}={width}" for flag in FFN if any(word.partition("=")[0] == flag for word in args.extra)]
    return [str(width) if word == EQUAL else word for word in words] + last


def command(of: Training, args: argparse.Namespace) -> str:
    """Return the commands of a training and, for grids with BLEU, of its translation and scores."""
    run, data, target = args.output / of.name, args.data, args.target
    labels = [*args.label, *(f"{key}={value}" for key, value in of.labels.items())]
    lines = [shlex.join(["embinit", "run", str(run), "--label", *labels, "--", *train_words(of, args)])]
    if args.grid not in BY_LOSS:
        best = run / "checkpoints" / "checkpoint_best.pt"
        generate = ["fairseq-generate", data / "bin", "--user-dir", PLUGIN, "--path", best, "--beam", 5]
        generate += ["--batch-size", 128, "--num-workers", 0, *(["--cpu"] if args.device == "cpu" else [])]
        score = ["embinit", "score", run, "--ref", data / f"corpus/raw/test.{target}", "--lowercase"]
        score += ["--detokenize", "moses", "--lang", target, "--tokenized", data / f"corpus/tok/test.{target}"]
        lines.append(f"{shlex.join(map(str, generate))} > {shlex.quote(str(run / 'test.generate.log'))} 2>&1")
        lines.append(shlex.join(map(str, score)))
    return " && ".join(lines)


def parse(words: list[str]) -> argparse.Namespace:
    """Return the arguments; `extra` are those after --."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.usage = "%(prog)s GRID --data DIR --vectors de=PATH en=PATH --output DIR [options] [-- OPTION ...]"
    add = parser.add_argument
    add("grid", choices=GRIDS)
    add("--data", type=Path, required=True, help="prepare.sh's folder; `ladder` takes both directions")
    add("--vectors", nargs="+", default=[], metavar="NAME=PATH", help="de=PATH en=PATH, and see `duo`")
    add("--label", nargs="+", default=[], metavar="KEY=VALUE", help="further labels of all trainings")
    add("--output", type=Path, required=True, help="a folder for each training goes here")
    add("--device", choices=("auto", "cpu", "gpu"), default="auto", help="auto: a GPU where torch finds one")
    add("--precision", choices=("fp32", "bf16"), default="fp32", help="of the trainings; default: %(default)s")
    own, extra = split_at_dashes(words)
    args = parser.parse_args(own)
    args.extra = extra
    args.vectors = read_pairs("--vectors", args.vectors, "NAME=PATH")
    pairs = [pair for pair in ("de-en", "en-de") if (args.data / f"bin/train.{pair}.en.bin").is_file()]
    if not pairs:
        raise OptionError(f"--data {args.data}: no folder bin with binarised data in it; name prepare.sh's folder")
    args.target = pairs[0][-2:]
    if args.grid != "ladder" and not {"de", "en"} <= set(args.vectors):
        parser.error("--vectors: give de=PATH and en=PATH")
    if args.grid != "ladder" and args.target != "en":
        parser.error(f"--data {args.data}: from English; this grid needs German to English (DIRECTION=de-en)")
    if args.device == "auto":
        import torch

        args.device = "gpu" if torch.cuda.is_available() else "cpu"
    return args


def main(words: list[str]) -> None:
    """Print a line per training."""
    args = parse(words)
    for of in GRIDS[args.grid](args.vectors):
        print(f"{of.name}: {command(of, args)}")


if __name__ == "__main__":
    with one_line():
        main(sys.argv[1:])
