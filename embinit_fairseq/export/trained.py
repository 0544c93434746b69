"""The trained model that is exported: read safely, built and loaded by fairseq itself, and what it is made of."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.bounded import read_lines
from embinit_fairseq.checkpoints.reading import check_dictionary, options_of, updates_of
from embinit_fairseq.errors import CheckpointError, DataError, OptionError
from embinit_fairseq.expand.model import Builder, Texts
from embinit_fairseq.expand.request import read_checkpoint
from embinit_fairseq.export.architectures import Architecture, architecture_of, known_archs
from embinit_fairseq.vocab.dictionary import read_dictionary

if TYPE_CHECKING:
    from fairseq.models import FairseqEncoderModel


@dataclass(frozen=True)
class Trained:
    """path: of the checkpoint. dictionary: of its dict.txt. symbols: all, those the task appends included. head: name
    of the classification head, None: pre-trained. labels: names of its classes, None: unknown. numbers: the units of a
    regression."""

    path: str
    dictionary: str
    arch: str
    architecture: Architecture
    model: FairseqEncoderModel
    symbols: list[str]
    task_options: dict[str, Any]
    num_updates: int
    head: str | None = None
    labels: list[str] | None = None
    numbers: str | None = None

    @property
    def lm_head(self) -> Any:
        """The language-model head; None for a fine-tuned model and for the discriminator of an ELECTRA."""
        return getattr(self.model.encoder, "lm_head", None)

    @property
    def auto_class(self) -> str:
        """The class of transformers that opens the exported model."""
        if self.head is not None:
            return "AutoModelForSequenceClassification"
        return "AutoModel" if self.lm_head is None else "AutoModelForMaskedLM"

    @property
    def left_out(self) -> list[str]:
        """Parts of the model that are not exported."""
        parts = {
            "generator": getattr(self.model, "generator", None),
            "replaced-token head": getattr(self.model.encoder, "rtd_head", None),
            "language-model head": self.lm_head if self.head is not None else None,
        }
        heads = [f"head {name!r}" for name in self.model.classification_heads if name != self.head]
        return [name for name, part in parts.items() if part is not None] + heads

    @property
    def is_regression(self) -> bool:
        """Does the head predict a number?"""
        return self.head is not None and bool(self.task_options.get("regression_target"))


def open_trained(checkpoint: str, dictionary: str | None, label_dictionary: str | None, head: str | None) -> Trained:
    """Read, check and build. Raises CheckpointError, DataError or OptionError."""
    state = read_checkpoint(checkpoint)
    arch, architecture = _known(checkpoint, state)
    options = options_of(state, "task")
    dictionary = dictionary or _find_dictionary(checkpoint, options)
    vocabulary = read_dictionary(dictionary)
    _check_finite(checkpoint, state["model"])
    text = Path(dictionary).read_bytes().decode("utf-8")
    builder = Builder(checkpoint, state, None)
    _check_size(checkpoint, dictionary, len(builder.set_up(Texts(text, text)).source_dictionary), state["model"])
    try:
        model, task = builder.load(Texts(text, text), state["model"])
    except OptionError as error:  # what the model says of a checkpoint that does not fit: it knows no files
        raise OptionError(f"{checkpoint} with the dictionary {dictionary}: {error}") from error
    symbols = list(task.source_dictionary.symbols)
    if symbols[: len(vocabulary)] != list(vocabulary.symbols):
        raise DataError(f"--dict {dictionary}: fairseq reads other symbols from it; remove unusual white space")
    check_dictionary(state, checkpoint, f"--dict {dictionary}", {"encoder": symbols})
    head = _chosen_head(checkpoint, list(model.classification_heads), head)
    updates = updates_of(state) or 0
    trained = Trained(checkpoint, dictionary, arch, architecture, model, symbols, options, updates, head)
    refused = architecture.refused(trained)
    if refused is not None:
        raise CheckpointError(f"{checkpoint} (--arch {arch}): {refused}")
    return dataclasses.replace(trained, labels=_labels(trained, label_dictionary), numbers=_numbers(trained))


def _known(path: str, state: dict[str, Any]) -> tuple[str, Architecture]:
    """Name and module of the architecture; CheckpointError for one that transformers cannot hold."""
    import fairseq.models

    import embinit_fairseq.models.electra
    import embinit_fairseq.models.tupe  # noqa: F401 # both register what they have

    options = options_of(state, "model")
    arch = str(options.get("_name") or options.get("arch"))
    known = architecture_of(fairseq.models.ARCH_MODEL_REGISTRY.get(arch))
    if known is None:
        raise CheckpointError(
            f"{path} holds a model of --arch {arch}, which export-hf has no class of transformers for: it knows "
            f"{known_archs()}; translation models of fairseq go to CTranslate2 (docs/ctranslate2.md)"
        )
    return arch, known


def _find_dictionary(checkpoint: str, options: dict[str, Any]) -> str:
    """dict.txt beside the checkpoint, or in the data folder that it was trained with."""
    data = str(options.get("data") or "").split(os.pathsep)[0]
    folders = [Path(checkpoint).parent, *([Path(data)] if data else [])]
    places = [folder / name for folder in folders for name in ("dict.txt", "input0/dict.txt")]
    dictionary = next((place for place in places if place.is_file()), None)
    if dictionary is None:
        raise OptionError(
            f"no dict.txt in {' or '.join(map(str, folders))}: name the dictionary of the training by --dict"
        )
    return str(dictionary)


def _check_size(path: str, dictionary: str, symbols: int, weights: dict[str, Any]) -> None:
    """symbols: of the dictionary and those that the task appends."""
    rows = {len(value) for name, value in weights.items() if name.endswith("sentence_encoder.embed_tokens.weight")}
    if rows - {symbols}:
        raise DataError(
            f"--dict {dictionary}: the checkpoint has {max(rows)} symbols, the dictionary {symbols}, with those of the "
            f"task; name the dictionary that {path} was trained with"
        )


def _check_finite(path: str, weights: dict[str, Any]) -> None:
    import torch

    for name, value in weights.items():
        if not torch.isfinite(value).all():
            raise CheckpointError(f"{path}: {name} holds NaN or infinity; export an earlier checkpoint")


def _chosen_head(path: str, heads: list[str], wanted: str | None) -> str | None:
    if wanted is not None and wanted not in heads:
        raise OptionError(f"--head {wanted}: {path} has {'the heads ' + ', '.join(heads) if heads else 'no heads'}")
    if wanted is not None or not heads:
        return wanted
    if len(heads) > 1 and "sentence_classification_head" not in heads:
        raise OptionError(f"{path} has several heads: choose one by --head ({', '.join(heads)})")
    return heads[0] if len(heads) == 1 else "sentence_classification_head"


def _labels(trained: Trained, given: str | None) -> list[str] | None:
    """Names of the classes: line k of label/dict.txt is class k. None for a regression and where there is no file."""
    if trained.head is None or trained.is_regression:
        if given is not None:
            raise OptionError(f"--label-dict {given}: {trained.path} has no classes; leave it out")
        return None
    path = given or next((str(place) for place in _label_places(trained) if place.is_file()), None)
    if path is None:
        return None
    vocabulary = read_dictionary(path, "--label-dict")
    labels = [symbol for symbol, regular in zip(vocabulary.symbols, vocabulary.regular) if regular]
    classes = trained.model.classification_heads[trained.head].out_proj.out_features
    if len(labels) != classes:
        raise DataError(
            f"{path}: {len(labels)} labels, the head {trained.head!r} has {classes} classes: name the dictionary of "
            "its labels by --label-dict"
        )
    return labels


def _numbers(trained: Trained) -> str | None:
    """The units of a regression: those of the labels it learned from, their range, and what they were multiplied by
    (`label/scale`, of our recipe)."""
    if not trained.is_regression:
        return None
    said = "in the units of the labels of the training"
    places = (place.with_name("train.label") for place in _label_places(trained))
    labels = next((place for place in places if place.is_file()), None)
    if labels is None:
        return said
    values = _read_numbers(labels)
    scale = _read_numbers(labels.with_name("scale")) if labels.with_name("scale").is_file() else []
    said += f", which are {min(values):g} to {max(values):g}" if values else ""
    return said + (f" (those of the data set times {scale[0]:g})" if scale else "")


def _read_numbers(path: Path) -> list[float]:
    words = [word for _, line in read_lines(path, DataError, "labels") for word in line.split()]
    try:
        return [float(word) for word in words]
    except ValueError as error:
        raise DataError(f"{path}: {error}; it holds the labels of a regression: numbers, a line each") from error


def _label_places(trained: Trained) -> Iterator[Path]:
    given = Path(trained.dictionary).resolve().parent
    data = str(trained.task_options.get("data") or "").split(os.pathsep)[0]
    for folder in (given, given.parent, Path(trained.path).parent, *([Path(data)] if data else [])):
        yield folder / "label" / "dict.txt"
