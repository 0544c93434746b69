"""The trained model that is exported: read safely, built and loaded by fairseq itself, and what it is made of."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embinit_fairseq.bounded import read_lines
from embinit_fairseq.checkpoints.build import UNKNOWN_LANGUAGES, Builder, Texts, languages_of
from embinit_fairseq.checkpoints.reading import check_dictionary, load_model_checkpoint, options_of, updates_of
from embinit_fairseq.errors import CheckpointError, DataError, OptionError
from embinit_fairseq.export.architectures import Architecture, architecture_of, known_archs
from embinit_fairseq.vocab.dictionary import read_dictionary

#: folder, in that of the export, of the tokenizer of a decoder with a dictionary of its own
TARGET = "target"
_DECODER = "decoder.embed_tokens.weight"


@dataclass(frozen=True)
class Side:
    """What goes into an encoder, or comes out of a decoder. path: of its dict.txt. dictionary: as fairseq has it, with
    the symbols that the task appends. longest: positions. language: None if there is one side only."""

    path: str
    dictionary: Any
    longest: int
    language: str | None = None

    @property
    def symbols(self) -> list[str]:
        """All, row by row."""
        return list(self.dictionary.symbols)


@dataclass(frozen=True)
class Trained:
    """path: of the checkpoint. target: of an encoder-decoder model; the source itself if it has one dictionary. head:
    name of the classification head, None: pre-trained. labels: names of its classes, None: unknown. numbers: the units
    of a regression."""

    path: str
    arch: str
    architecture: Architecture
    model: Any
    source: Side
    target: Side | None
    task_options: dict[str, Any]
    num_updates: int
    head: str | None = None
    labels: list[str] | None = None
    numbers: str | None = None

    @property
    def dictionary(self) -> str:
        """Path of the (source's) dict.txt."""
        return self.source.path

    @property
    def symbols(self) -> list[str]:
        """Of the source."""
        return self.source.symbols

    @property
    def task(self) -> str:
        """Its name."""
        return str(self.task_options.get("_name") or self.task_options.get("task"))

    @property
    def sides(self) -> dict[str, Side]:
        """Folder of the export -> what it has a tokenizer for: "" is the folder itself, "target" is in it."""
        two = self.target is not None and self.target.symbols != self.source.symbols
        return {"": self.source, **({TARGET: self.target} if two else {})}  # type: ignore[dict-item]

    @property
    def lm_head(self) -> Any:
        """The language-model head; None for a fine-tuned model and for the discriminator of an ELECTRA."""
        return getattr(self.model.encoder, "lm_head", None)

    @property
    def auto_class(self) -> str:
        """The class of transformers that opens the exported model."""
        if self.head is not None:
            return "AutoModelForSequenceClassification"
        if self.target is not None:
            return "AutoModelForSeq2SeqLM"
        return "AutoModel" if self.lm_head is None else "AutoModelForMaskedLM"

    @property
    def left_out(self) -> list[str]:
        """Parts of the model that are not exported."""
        parts = {
            "generator": getattr(self.model, "generator", None),
            "replaced-token head": getattr(self.model.encoder, "rtd_head", None),
            "language-model head": self.lm_head if self.head is not None else None,
        }
        heads = [f"head {name!r}" for name in _heads(self.model) if name != self.head]
        return [name for name, part in parts.items() if part is not None] + heads

    @property
    def is_regression(self) -> bool:
        """Does the head predict a number?"""
        return self.head is not None and bool(self.task_options.get("regression_target"))


def open_trained(
    checkpoint: str,
    dictionary: str | None,
    label_dictionary: str | None,
    head: str | None,
    target_dictionary: str | None = None,
) -> Trained:
    """Read, check and build. Raises CheckpointError, DataError or OptionError."""
    state = load_model_checkpoint(checkpoint)
    arch, architecture = _known(checkpoint, state)
    options = options_of(state, "task")
    _check_task(checkpoint, architecture, options)
    languages = languages_of(options, dictionary or checkpoint)
    if languages is None and target_dictionary is not None:
        raise OptionError(f"--target-dict {target_dictionary}: {checkpoint} has one dictionary; give it by --dict")
    given = {"--dict": dictionary, "--target-dict": target_dictionary}
    paths = _find_dictionaries(checkpoint, options, languages, given)
    _check_finite(checkpoint, state["model"])
    model, task = _load(checkpoint, state, languages, paths)
    source, target = _sides(model, task, languages, paths)
    slots = {"encoder": source.symbols, **({} if target is None else {"decoder": target.symbols})}
    check_dictionary(state, checkpoint, " and ".join(f"{flag} {path}" for flag, path in paths.items()), slots)
    head = _chosen_head(checkpoint, _heads(model), head)
    updates = updates_of(state) or 0
    trained = Trained(checkpoint, arch, architecture, model, source, target, options, updates, head)
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


def _check_task(path: str, architecture: Architecture, options: dict[str, Any]) -> None:
    task = str(options.get("_name") or options.get("task"))
    if architecture.TASKS and task not in architecture.TASKS:
        raise CheckpointError(
            f"{path}: trained with --task {task}, whose inputs export-hf does not know; for {architecture.ARCHS} it "
            f"knows {', '.join(architecture.TASKS)}: such a model stays in fairseq"
        )


def _find_dictionaries(
    checkpoint: str, options: dict[str, Any], languages: tuple[str, str] | None, given: dict[str, str | None]
) -> dict[str, str]:
    """Option -> file: what is given; beside another one that is; beside the checkpoint; in the data of the training."""
    names: dict[str, tuple[str, ...]] = {"--dict": ("dict.txt", "input0/dict.txt")}
    if languages is not None:
        names = {flag: (f"dict.{name}.txt",) for flag, name in zip(given, languages)}
    data = str(options.get("data") or "").split(os.pathsep)[0]
    near = [Path(path).parent for path in given.values() if path is not None]
    folders = [*near, Path(checkpoint).parent, *([Path(data)] if data else [])]
    found = {}
    for flag, files in names.items():
        places = (folder / name for folder in folders for name in files)
        path = given[flag] or next((str(place) for place in places if place.is_file()), None)
        if path is None:
            unnamed = "the checkpoint does not say its languages; " if languages == UNKNOWN_LANGUAGES else ""
            searched = " or ".join(dict.fromkeys(map(str, folders)))
            flags = " and ".join(names) if unnamed else flag
            raise OptionError(f"{unnamed}no {files[0]} in {searched}: name the dictionary of the training by {flags}")
        found[flag] = path
    return found


def _load(
    checkpoint: str, state: dict[str, Any], languages: tuple[str, str] | None, paths: dict[str, str]
) -> tuple[Any, Any]:
    """(model, task), once the dictionaries have the sizes of the checkpoint."""
    vocabularies = [read_dictionary(path, flag) for flag, path in paths.items()]
    texts = [Path(path).read_bytes().decode("utf-8") for path in paths.values()]
    builder = Builder(checkpoint, state, languages)
    task = builder.set_up(Texts(texts[0], texts[-1]))
    dictionaries = (task.source_dictionary, task.target_dictionary)
    tables = ("encoder.sentence_encoder.embed_tokens.weight", "encoder.embed_tokens.weight"), (_DECODER,)
    for (flag, path), vocabulary, dictionary, names in zip(paths.items(), vocabularies, dictionaries, tables):
        _check_size(checkpoint, f"{flag} {path}", len(dictionary), state["model"], names)
        if dictionary.symbols[: len(vocabulary)] != list(vocabulary.symbols):
            raise DataError(f"{flag} {path}: fairseq reads other symbols from it; remove unusual white space")
    try:
        return builder.load(Texts(texts[0], texts[-1]), state["model"])
    except OptionError as error:  # what the model says of a checkpoint that does not fit: it knows no files
        raise OptionError(f"{checkpoint} with the dictionary {' and '.join(paths.values())}: {error}") from error


def _sides(model: Any, task: Any, languages: tuple[str, str] | None, paths: dict[str, str]) -> tuple[Side, Side | None]:
    """The target is None where there is no decoder."""
    files, positions = list(paths.values()), model.max_positions()
    if not hasattr(model, "decoder"):
        return Side(files[0], task.source_dictionary, positions), None
    names = languages or (None, None)
    source = Side(files[0], task.source_dictionary, positions[0], names[0])
    return source, Side(files[-1], task.target_dictionary, positions[1], names[1])


def _heads(model: Any) -> list[str]:
    return list(getattr(model, "classification_heads", ()))


def _check_size(path: str, flag: str, symbols: int, weights: dict[str, Any], names: tuple[str, ...]) -> None:
    """flag: with the file. symbols: of the dictionary and those that the task appends. names: ends of the tables'."""
    rows = {len(value) for name, value in weights.items() if name.endswith(names)}
    if rows - {symbols}:
        raise DataError(
            f"{flag}: the checkpoint has {max(rows)} symbols, the dictionary {symbols}, with those of the "
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
