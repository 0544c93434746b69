"""Print the trainings of a grid for `embinit grid`: pairs of embeddings, transformers, bags of words.

    python scripts/textcls/list_trainings.py --data data/mr --runs runs/mr --vectors a=a.txt b=b.txt |
        embinit grid - --logs logs

--models:
    couples            every pair of --vectors, and each with itself, by --arch duo_classifier (NAME+NAME: one pair)
    transformer        --arch embinit_classifier with one layer and a random embedding matrix of dimension 100
                       (transformer:NAME: from --vectors, with their dimension)
    tfidf_lr, mlp      bags of words: baselines.py
--vectors NAME=concat:A,B and NAME=avg:A,B (files, or earlier names) have the meaning of --embed-init-path. The
lines are sorted by seed, so that a grid that was stopped has all models with equally many seeds. Options after -- are
given to fairseq-train.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from embinit_fairseq.arguments import ArgumentParser, read_pairs, split_at_dashes
from embinit_fairseq.errors import EmbinitError, OptionError, one_line
from embinit_fairseq.vectors.open import open_sources, parse_source

HERE = Path(__file__).resolve().parent
BASELINES = ("tfidf_lr", "mlp")
#: name -> vectors as --embed-init-path takes them, and the dimension of the embedding matrix made of them
Vectors = dict[str, tuple[str, int]]


def read_vectors(texts: Sequence[str]) -> Vectors:
    """Return the vectors of `NAME=FILE` and `NAME=concat:A,B` with absolute paths; raise OptionError for others."""
    vectors: Vectors = {}
    for name, path in read_pairs("--vectors", texts, "NAME=FILE").items():
        text = f"{name}={path}"
        if set(name) & set("+: "):
            raise OptionError(f"--vectors {text}: give NAME=FILE, a name for tables of letters, digits and _ . -")
        try:
            source = parse_source(path)
            paths = (vectors[file][0] if file in vectors else str(Path(file).resolve()) for file in source.paths)
            source = replace(source, files=tuple(zip(paths, (kind for _, kind in source.files))))
            dims = [reader.dim for reader in open_sources(source)]
        except EmbinitError as error:
            raise OptionError(f"--vectors {text}: {error}") from error
        vectors[name] = source.named(str), sum(dims) if source.how == "concat" else dims[0]
    return vectors


def list_models(texts: Sequence[str], vectors: Vectors) -> list[str]:
    """Return the models, without repetitions; raise OptionError for one that --vectors do not have."""
    models: list[str] = []
    for text in texts:
        pairs = itertools.combinations_with_replacement(vectors, 2)
        models += ["+".join(pair) for pair in pairs] if text == "couples" else [text]
    for model in models:
        names = model.removeprefix("transformer:").split("+")
        if model not in (*BASELINES, "transformer") and not set(names) <= set(vectors):
            raise OptionError(
                f"--models {model}: choose couples, NAME+NAME, transformer, transformer:NAME, {', '.join(BASELINES)}, "
                f"with names of --vectors ({', '.join(vectors) or 'none'})"
            )
    return list(dict.fromkeys(models))


def model_words(model: str, attention: str, vectors: Vectors) -> list[str]:
    """Return architecture and initialisation, for fairseq-train."""
    if "+" in model:
        (s, dim_s), (p, dim_p) = (vectors[name] for name in model.split("+"))
        words = ["--arch", "duo_classifier", "--duo-attention", attention]
        words += ["--encoder-dim-s", str(dim_s), "--encoder-dim-p", str(dim_p)]
        return [*words, "--embed-init", "pretrained", "--embed-init-path", f"encoder={s}", f"encoder_p={p}"]
    path, dim = vectors.get(model.partition(":")[2], ("", 100))
    heads = max(heads for heads in range(1, 11) if dim % heads == 0)
    words = ["--arch", "embinit_classifier", "--encoder-layers", "1", "--encoder-embed-dim", str(dim)]
    words += ["--encoder-attention-heads", str(heads)]
    return [*words, "--embed-init", "pretrained", "--embed-init-path", f"encoder={path}"] if path else words


def line_of(model: str, attention: str, seed: int, args: argparse.Namespace, vectors: Vectors) -> str:
    """Return a line for `embinit grid`."""
    name = ".".join(filter(None, [model.replace(":", "="), attention, str(seed)]))
    data, folder = args.data.resolve(), args.runs.resolve() / name
    stopping = ["--max-epoch", str(args.epochs), "--patience", str(args.patience)]
    if model in BASELINES:
        words = ["python", str(HERE / "baselines.py"), str(data), "--model", model, "--seed", str(seed)]
        words += stopping if model == "mlp" else []
        return f"{name}: {shlex.join([*words, '--save-dir', str(folder)])}"
    labels = f"model={model}" + (f" attention={attention}" if attention else "")
    variables = {"DATA": data, "SEED": seed, "RUN": folder, "LABELS": labels}
    assignments = " ".join(f"{key}={shlex.quote(str(value))}" for key, value in variables.items())
    words = ["bash", str(HERE / "train.sh"), *model_words(model, attention, vectors), *stopping, *args.extra]
    return f"{name}: {assignments} {shlex.join(words)}"


def lines(args: argparse.Namespace) -> Iterator[str]:
    """Yield all lines, seed by seed."""
    seeds = sorted(int(path.parent.name) for path in args.data.glob("seeds/*/bin"))
    if missing := set(args.seeds or [1]) - set(seeds):
        raise OptionError(
            f"--data {args.data}: no seed {min(missing)}; run prepare.sh with OUTPUT={args.data} and SEEDS"
        )
    vectors = read_vectors(args.vectors)
    models = list_models(args.models, vectors)
    for seed in args.seeds or seeds:
        for model in models:
            for attention in args.attentions if "+" in model else [""]:
                yield line_of(model, attention, seed, args, vectors)


def main() -> None:
    """Print the lines."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, models = parser.add_argument, ["couples", "tfidf_lr", "mlp", "transformer"]
    add("--data", type=Path, required=True, help="folder that prepare.sh made")
    add("--runs", type=Path, required=True, help="folder for the folders of the runs")
    add("--vectors", nargs="+", default=[], metavar="NAME=FILE", help="word vectors of any dimensions")
    add("--models", nargs="+", default=models, metavar="MODEL", help=f"see above; default: {' '.join(models)}")
    add("--attentions", nargs="+", default=["softmax"], choices=("softmax", "linear"), help="default: softmax")
    add("--seeds", type=int, nargs="+", help="default: all prepared seeds")
    add("--epochs", type=int, default=200, help="at most; default: %(default)s")
    add("--patience", type=int, default=10, help="epochs without a lower validation loss; default: %(default)s")
    own, extra = split_at_dashes(sys.argv[1:])
    args = parser.parse_args(own)
    args.extra = extra
    print(*lines(args), sep="\n")


if __name__ == "__main__":
    with one_line():
        main()
