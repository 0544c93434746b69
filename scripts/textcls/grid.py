"""Print the trainings of a grid for `embinit grid`: pairs of embeddings, transformers, bags of words.

    python scripts/textcls/grid.py --data data/mr --runs runs/mr --vectors a=a.txt b=b.txt | embinit grid - --logs logs

--models:
    couples            every pair of --vectors, and each with itself, by --arch duo_classifier (NAME+NAME: one pair)
    transformer        --arch embinit_classifier with one layer and a random embedding matrix of dimension 100
                       (transformer:NAME: from --vectors, with their dimension)
    tfidf_lr, mlp      bags of words: baselines.py
--vectors NAME=concat:A,B and NAME=avg:A,B (files, or earlier names) are what --embed-init-path makes of them. The
lines are sorted by seed, so that a grid that was stopped has all models with equally many seeds. Options after -- are
given to fairseq-train.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a checkout, installed or not

from embinit_fairseq.errors import EmbinitError, OptionError, one_line
from embinit_fairseq.vectors.open import SourceSpec, open_sources, parse_source

HERE = Path(__file__).resolve().parent
ATTENTIONS = ("softmax", "linear")
BASELINES = ("tfidf_lr", "mlp")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Vectors:
    """Files of vectors, as --embed-init-path takes them, and the dimension of the embedding matrix made of them."""

    source: SourceSpec
    dim: int

    def __str__(self) -> str:
        """Return the vectors as in a command."""
        return self.source.named(str)


@dataclass(frozen=True)
class Run:
    """One model with one seed; `model` is NAME+NAME, transformer, transformer:NAME, or one of BASELINES."""

    model: str
    seed: int
    attention: str = ""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return ".".join(filter(None, [self.model.replace(":", "="), self.attention, str(self.seed)]))

    @property
    def labels(self) -> str:
        """The labels for tables."""
        return f"model={self.model}" + (f" attention={self.attention}" if self.attention else "")


def read_vectors(texts: Sequence[str]) -> dict[str, Vectors]:
    """Return name -> vectors with absolute paths, of `NAME=FILE` and `NAME=concat:A,B`; else raise OptionError."""
    found: dict[str, Vectors] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise OptionError(f"--vectors {text}: give NAME=FILE, a name for tables of letters, digits and _ . -")
        if name in found:
            raise OptionError(f"--vectors {text}: the name {name} is given twice; choose another one")
        try:
            spec = parse_source(path)
            files = tuple(
                (str(found[file]) if file in found else str(Path(file).resolve()), kind) for file, kind in spec.files
            )
            source = replace(spec, files=files)
            readers = open_sources(source)
        except EmbinitError as error:
            raise OptionError(f"--vectors {text}: {error}") from error
        dim = sum(reader.dim for reader in readers) if source.how == "concat" else readers[0].dim
        found[name] = Vectors(source, dim)
    return found


def vectors_of(model: str) -> list[str] | None:
    """Return the names of the vectors of a model; None if there is no such model."""
    kind, colon, name = model.partition(":")
    if colon:
        return [name] if kind == "transformer" else None
    if model in (*BASELINES, "transformer"):
        return []
    parts = model.split("+")
    return parts if len(parts) == 2 else None


def list_models(texts: Sequence[str], vectors: Sequence[str]) -> list[str]:
    """Return the models, without repetitions; `couples` is every pair of vectors, and each with itself."""
    models: list[str] = []
    for text in texts:
        if text == "couples":
            if not vectors:
                raise OptionError("--models couples: needs --vectors NAME=FILE ...; give them, or name other models")
            models += ["+".join(couple) for couple in itertools.combinations_with_replacement(vectors, 2)]
            continue
        parts = vectors_of(text)
        if parts is None:
            known = f"couples, NAME+NAME, transformer, transformer:NAME, {', '.join(BASELINES)}"
            raise OptionError(f"--models {text}: not known; choose from {known}")
        for part in parts:
            if part not in vectors:
                raise OptionError(
                    f"--models {text}: no --vectors {part}=FILE; there are: {', '.join(vectors) or 'none'}"
                )
        models.append(text)
    return list(dict.fromkeys(models))


def list_runs(models: Sequence[str], attentions: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    """Return the runs, sorted by seed."""
    return [
        Run(model, seed, attention)
        for seed in seeds
        for model in models
        for attention in (attentions if "+" in model else [""])
    ]


def prepared_seeds(data: Path) -> list[int]:
    """Return the seeds for which prepare.sh has made data; raise OptionError if there are none."""
    seeds = sorted(int(path.parent.name) for path in data.glob("seeds/*/bin") if path.parent.name.isdigit())
    if not seeds or not (data / "seeds" / "dict.txt").is_file():
        raise OptionError(f"--data {data}: not prepared; run prepare.sh with OUTPUT={data} first")
    return seeds


def model_words(run: Run, vectors: dict[str, Vectors]) -> list[str]:
    """Return architecture and initialisation, for fairseq-train."""
    if "+" in run.model:
        s, p = (vectors[name] for name in run.model.split("+"))
        words = ["--arch", "duo_classifier", "--duo-attention", run.attention]
        words += ["--encoder-dim-s", str(s.dim), "--encoder-dim-p", str(p.dim)]
        return [*words, "--embed-init", "pretrained", "--embed-init-path", f"encoder={s}", f"encoder_p={p}"]
    name = run.model.partition(":")[2]
    dim = vectors[name].dim if name else 100
    heads = max(heads for heads in range(1, 11) if dim % heads == 0)
    words = ["--arch", "embinit_classifier", "--encoder-layers", "1", "--encoder-embed-dim", str(dim)]
    words += ["--encoder-attention-heads", str(heads)]
    return [*words, "--embed-init", "pretrained", "--embed-init-path", f"encoder={vectors[name]}"] if name else words


def line_of(run: Run, args: argparse.Namespace, vectors: dict[str, Vectors], extra: Sequence[str]) -> str:
    """Return a line for `embinit grid`."""
    data, folder = args.data.resolve(), args.runs.resolve() / run.name
    stopping = ["--patience", str(args.patience)]
    if run.model in BASELINES:
        words = ["python", str(HERE / "baselines.py"), str(data), "--model", run.model, "--seed", str(run.seed)]
        words += ["--max-epoch", str(args.epochs), *stopping] if run.model == "mlp" else []
        return f"{run.name}: {shlex.join([*words, '--save-dir', str(folder)])}"
    values = {"DATA": data, "SEED": run.seed, "RUN": folder, "LABELS": run.labels}
    words = [*model_words(run, vectors), "--max-epoch", str(args.epochs), *stopping, *extra]
    variables = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in values.items())
    return f"{run.name}: {variables} bash {shlex.join([str(HERE / 'train.sh'), *words])}"


def lines(args: argparse.Namespace, extra: Sequence[str]) -> Iterator[str]:
    """Return all lines; raise OptionError for what cannot be trained."""
    available = prepared_seeds(args.data)
    for seed in args.seeds or ():
        if seed not in available:
            raise OptionError(f"--seeds {seed}: not prepared; run prepare.sh with OUTPUT={args.data} SEEDS={seed}")
    vectors = read_vectors(args.vectors)
    runs = list_runs(list_models(args.models, list(vectors)), args.attentions, args.seeds or available)
    return (line_of(run, args, vectors, extra) for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, models = parser.add_argument, ["couples", "tfidf_lr", "mlp", "transformer"]
    add("--data", type=Path, required=True, help="what prepare.sh made")
    add("--runs", type=Path, required=True, help="folder for the folders of the runs")
    add("--vectors", nargs="+", action="extend", default=[], metavar="NAME=FILE", help="word vectors of any dimensions")
    add("--models", nargs="+", default=models, metavar="MODEL", help=f"see above; default: {' '.join(models)}")
    add("--attentions", nargs="+", default=["softmax"], choices=ATTENTIONS, help="of couples; default: softmax")
    add("--seeds", type=int, nargs="+", help="default: those that were prepared")
    add("--epochs", type=int, default=200, help="at most; default: %(default)s")
    add("--patience", type=int, default=10, help="epochs without a lower validation loss; default: %(default)s")
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:split])
    print(*lines(args, words[split + 1 :]), sep="\n")


if __name__ == "__main__":
    with one_line():
        main()
