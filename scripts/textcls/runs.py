"""What there is to train: models by name, seeds, and the command of fairseq-train for each of them."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path

from textcls.corpus import FileError

USER_DIR = Path(__file__).resolve().parents[2] / "embinit_fairseq"
ATTENTIONS = ("softmax", "linear")
BASELINES = ("tfidf_lr", "mlp")
TRANSFORMER_DIM = 100  # without vectors
LOG = ("--num-workers", "0", "--log-format", "json", "--log-interval", "1000000", "--cpu")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Prepared:
    """A folder made by prepare.sh."""

    folder: Path
    settings: dict[str, str]
    facts: dict[str, int]

    @property
    def words(self) -> str:
        """What was done to the texts."""
        return ", ".join(f"{name} {self.settings[name]}" for name in ("clean", "stop_words", "min_count"))

    def bin(self, seed: int) -> Path:
        """fairseq's data with the validation texts of this seed."""
        return self.folder / "seeds" / str(seed) / "bin"

    def text(self, seed: int) -> Path:
        """The same as text."""
        return self.folder / "seeds" / str(seed) / "text"

    def seeds(self) -> list[int]:
        """Those that were prepared."""
        return sorted(int(path.name) for path in (self.folder / "seeds").iterdir() if path.name.isdigit())


def read_prepared(folder: Path) -> Prepared:
    """Raises FileError if prepare.sh has not finished there."""
    settings, facts = folder / "settings", folder / "corpus" / "facts.json"
    if not settings.is_file() or not facts.is_file() or not (folder / "seeds" / "dict.txt").is_file():
        raise FileError(f"--data {folder}: not prepared; run prepare.sh --output {folder} first")
    values = dict(line.split("=", 1) for line in settings.read_text(encoding="utf-8").splitlines())
    return Prepared(folder, values, json.loads(facts.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Vectors:
    """A vector file under the name it has in tables."""

    name: str
    path: Path
    dim: int


def parse_vectors(texts: list[str]) -> dict[str, Vectors]:
    """`NAME=FILE` values -> name -> vectors; raises FileError for files that are missing, damaged or named twice."""
    from embinit_fairseq.analysis.statistics import is_dictionary
    from embinit_fairseq.errors import EmbinitError
    from embinit_fairseq.vectors.open import open_vectors

    found: dict[str, Vectors] = {}
    for text in texts:
        name, separator, path = text.partition("=")
        if not separator or not _NAME.fullmatch(name):
            raise FileError(f"--vectors {text}: NAME=FILE is needed, a name for tables of letters, digits and _ . -")
        if name in found:
            raise FileError(f"--vectors {text}: the name {name} occurs twice")
        if not Path(path).exists():
            raise FileError(f"--vectors {text}: no such file")
        try:
            reader = open_vectors(path)
            wrong = is_dictionary(reader)
        except EmbinitError as error:
            raise FileError(f"--vectors {text}: {error}") from error
        if wrong:
            raise FileError(f"--vectors {text}: one whole number a word: looks like a fairseq dictionary; give vectors")
        found[name] = Vectors(name, Path(path).resolve(), reader.dim)
    return found


def check_readable(vectors: Vectors, dictionary: Path) -> None:
    """Raise FileError for a file that is cut short or broken further down than its head, as a run would find it.

    Read are the rows of the words in `dictionary`, which a run reads too: a scan of the file.
    """
    from embinit_fairseq.errors import EmbinitError
    from embinit_fairseq.init.alignment import plan
    from embinit_fairseq.vectors.open import open_vectors
    from embinit_fairseq.vocab.dictionary import read_dictionary

    wanted = plan(read_dictionary(dictionary))
    try:
        open_vectors(vectors.path).read(wanted)
    except EmbinitError as error:
        raise FileError(f"--vectors {vectors.name}={vectors.path}: {error}") from error


@dataclass(frozen=True)
class Training:
    """How a model is trained, whatever it is."""

    epochs: int
    patience: int
    lr: str
    batch: int
    extra: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = f"learning rate {self.lr}, batch {self.batch}, patience {self.patience}, at most {self.epochs} epochs"
        return " ".join([words, *self.extra])


@dataclass(frozen=True)
class Run:
    """One model with one seed. model: NAME+NAME, transformer, transformer:NAME, or a baseline."""

    model: str
    seed: int
    attention: str = ""

    @property
    def name(self) -> str:
        """Of its folder."""
        return ".".join([self.model.replace(":", "="), *([self.attention] if self.attention else []), str(self.seed)])

    @property
    def is_baseline(self) -> bool:
        """Not trained by fairseq."""
        return self.model in BASELINES


def vectors_of(model: str) -> list[str] | None:
    """Names of the vectors that a model is made of; None if it is no model."""
    kind, colon, name = model.partition(":")
    if colon:
        return [name] if kind == "transformer" else None
    if model in (*BASELINES, "transformer"):
        return []
    parts = model.split("+")
    return parts if len(parts) == 2 else None


def list_models(texts: list[str], vectors: dict[str, Vectors]) -> list[str]:
    """The names asked for, `couples` replaced by every pair of vectors and each with itself."""
    models: list[str] = []
    for text in texts:
        if text == "couples":
            if not vectors:
                raise FileError("--models couples needs --vectors NAME=FILE ...")
            models += ["+".join(couple) for couple in itertools.combinations_with_replacement(vectors, 2)]
            continue
        parts = vectors_of(text)
        if parts is None:
            raise FileError(
                f"--models {text}: not known; there are couples, NAME+NAME, transformer, transformer:NAME, "
                f"{', '.join(BASELINES)}"
            )
        for part in parts:
            if part not in vectors:
                raise FileError(f"--models {text}: no --vectors {part}=FILE; there are: {', '.join(vectors) or 'none'}")
        models.append(text)
    return list(dict.fromkeys(models))


def list_runs(models: list[str], attentions: list[str], seeds: list[int]) -> list[Run]:
    """Seed by seed: a grid that was stopped has all models with equally many seeds."""
    return [
        Run(model, seed, attention)
        for seed in seeds
        for model in models
        for attention in (attentions if "+" in model else [""])
    ]


def training_command(
    run: Run, prepared: Prepared, vectors: dict[str, Vectors], training: Training, folder: Path
) -> list[str]:
    """The words of fairseq-train; only the best checkpoint, by validation loss, is kept."""
    words = ["fairseq-train", *task_words(run, prepared), *model_words(run, vectors)]
    words += ["--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--adam-eps", "1e-9"]
    words += ["--lr", training.lr, "--lr-scheduler", "fixed", "--batch-size", str(training.batch)]
    words += ["--max-positions", str(prepared.facts["longest"] + 1)]  # </s>
    words += ["--required-batch-size-multiple", "1", "--max-epoch", str(training.epochs)]
    words += ["--patience", str(training.patience), "--seed", str(run.seed)]
    words += ["--no-epoch-checkpoints", "--no-last-checkpoints", "--no-save-optimizer-state"]
    return [*words, "--save-dir", str(folder / "checkpoints"), *LOG, *training.extra]


def task_words(run: Run, prepared: Prepared) -> list[str]:
    """What training and test have in common."""
    words = [str(prepared.bin(run.seed)), "--user-dir", str(USER_DIR), "--task", "sentence_prediction"]
    return [*words, "--criterion", "sentence_prediction_metrics", "--num-classes", str(prepared.facts["labels"])]


def model_words(run: Run, vectors: dict[str, Vectors]) -> list[str]:
    """Architecture and initialisation."""
    if "+" not in run.model:
        name = run.model.partition(":")[2]
        dim = vectors[name].dim if name else TRANSFORMER_DIM
        words = ["--arch", "embinit_classifier", "--encoder-layers", "1", "--encoder-embed-dim", str(dim)]
        words += ["--encoder-attention-heads", str(_heads(dim))]
        if name:
            words += ["--embed-init", "pretrained", "--embed-init-path", f"encoder={vectors[name].path}"]
        return words
    s, p = (vectors[name] for name in run.model.split("+"))
    words = ["--arch", "duo_classifier", "--duo-attention", run.attention]
    words += ["--encoder-dim-s", str(s.dim), "--encoder-dim-p", str(p.dim)]
    return [*words, "--embed-init", "pretrained", "--embed-init-path", f"encoder={s.path}", f"encoder_p={p.path}"]


def _heads(dim: int) -> int:
    """The most heads up to 10 that divide the width."""
    return max(heads for heads in range(1, 11) if dim % heads == 0)


def test_command(run: Run, prepared: Prepared, training: Training, folder: Path) -> list[str]:
    """The words of fairseq-validate for the test texts."""
    words = ["fairseq-validate", *task_words(run, prepared), "--path", str(folder / "checkpoints/checkpoint_best.pt")]
    return [*words, "--valid-subset", "test", "--batch-size", str(training.batch), *LOG]
