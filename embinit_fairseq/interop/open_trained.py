"""Open a checkpoint for an export: read safely, built by fairseq itself, with its dictionaries, head and labels."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embinit_fairseq.checkpoint_file import options_of, updates_of
from embinit_fairseq.checkpoints.build import UNKNOWN_LANGUAGES, Builder, Texts, languages_of
from embinit_fairseq.checkpoints.loading import check_dictionary, load_model_checkpoint
from embinit_fairseq.checkpoints.trained_preparation import find_preparation
from embinit_fairseq.errors import CheckpointError, DataError, OptionError
from embinit_fairseq.interop.architectures import ARCHITECTURES
from embinit_fairseq.interop.tensors import check_finite
from embinit_fairseq.interop.trained import Architecture, Side, Trained, heads_of, task_name
from embinit_fairseq.models._hub import tokens_of_input
from embinit_fairseq.vocab.dictionary import read_dictionary
from embinit_fairseq.vocab.preparation_record import Recorded


def open_trained(
    checkpoint: str,
    dictionary: str | None = None,
    label_dictionary: str | None = None,
    head: str | None = None,
    target_dictionary: str | None = None,
    preparation: str | None = None,
) -> Trained:
    """Read, check and build a checkpoint.

    Args:
        checkpoint: path of the checkpoint.
        dictionary, target_dictionary, label_dictionary: paths; None to find the file of the training.
        head: name of the classification head; None to choose it.
        preparation: the user's steps; with them, a record that does not fit is ignored.

    Raises:
        CheckpointError: the checkpoint is damaged, does not fit the dictionaries, or is of a model or a task that
            cannot be exported.
        DataError: a dictionary or the labels belong to another model.
        OptionError: an option does not fit the model, or a dictionary is not found.
    """
    state = load_model_checkpoint(checkpoint)
    check_finite(checkpoint, state["model"])
    options = options_of(state, "task")
    arch, architecture = _architecture_of(checkpoint, state, task_name(options))
    languages = languages_of(options, dictionary or checkpoint)
    if languages is None and target_dictionary is not None:
        raise OptionError(f"--target-dict {target_dictionary}: {checkpoint} has one dictionary; give it by --dict")
    paths = _find_dictionaries(checkpoint, options, languages, dictionary, target_dictionary)
    for flag, path in paths.items():
        read_dictionary(path, flag)  # names the line that is wrong
    texts = [Path(path).read_bytes().decode("utf-8") for path in paths.values()]
    model, task = load(checkpoint, state, languages, Texts(texts[0], texts[-1]))
    source, target = (
        None if side is None else dataclasses.replace(side, recorded=_recorded(side.path, state, preparation))
        for side in _sides(model, task, languages, list(paths.values()), options)
    )
    assert source is not None
    slots = {"encoder": source.symbols, **({} if target is None else {"decoder": target.symbols})}
    check_dictionary(state, checkpoint, " and ".join(f"{flag} {path}" for flag, path in paths.items()), slots)
    head = _choose_head(checkpoint, heads_of(model), head)
    trained = Trained(checkpoint, arch, architecture, model, source, target, options, updates_of(state) or 0, head)
    if (refused := architecture.refused(trained)) is not None:
        raise CheckpointError(f"{checkpoint} (--arch {arch}): {refused}")
    recorded = (state.get("task_state") or {}).get("labels")
    labels = _labels(trained, label_dictionary, recorded)
    return dataclasses.replace(trained, labels=labels, numbers=_numbers(trained))


def _recorded(dictionary: str, state: dict[str, Any], stated: str | None) -> Recorded | None:
    """Return the record of a dictionary's text, None if there is none, or if stated steps replace a stale one."""
    try:
        return find_preparation(dictionary, state)
    except DataError:
        if stated is None:
            raise
        return None


def load(path: str, state: dict[str, Any], languages: tuple[str, str] | None, texts: Texts) -> tuple[Any, Any]:
    """Return (model, task), which fairseq builds and loads; raise CheckpointError if it cannot."""
    try:
        return Builder(path, state, languages).load(texts, state["model"])
    except OptionError as error:  # the model's message about weights and options lacks the file's name
        raise CheckpointError(f"{path}: {error}") from error


def _architecture_of(path: str, state: dict[str, Any], task: str) -> tuple[str, Architecture]:
    """Return the value of --arch and its architecture; CheckpointError if there is none for it or for this task."""
    import fairseq.models

    import embinit_fairseq.models.electra
    import embinit_fairseq.models.tupe  # noqa: F401 # both register their architectures

    options = options_of(state, "model")
    arch = str(options.get("_name") or options.get("arch"))
    model = fairseq.models.ARCH_MODEL_NAME_REGISTRY.get(arch)
    architecture = next((one for one in ARCHITECTURES if model in one.models), None)
    if model is None:
        raise CheckpointError(
            f"{path}: --arch {arch} is unknown to fairseq and to this plugin: name the plugin of the training by "
            "--user-dir, whose preset of an architecture that is known here can be exported"
        )
    if architecture is None:
        raise CheckpointError(
            f"{path} holds a model of --arch {arch}, which export-hf has no class of transformers for: it knows "
            f"{'; '.join(one.archs for one in ARCHITECTURES)}; translation models of fairseq go to CTranslate2 "
            "(docs/ctranslate2.md)"
        )
    if architecture.tasks and task not in architecture.tasks:
        raise CheckpointError(
            f"{path}: trained with --task {task}, whose inputs export-hf does not know; for {architecture.archs} it "
            f"knows {', '.join(architecture.tasks)}: such a model stays in fairseq, or goes to CTranslate2 "
            "(docs/ctranslate2.md)"
        )
    return arch, architecture


def _folders(*paths: str | None, options: dict[str, Any]) -> list[Path]:
    """Return the folders of files, then the data of the training if the checkpoint names them."""
    data = str(options.get("data") or "").split(os.pathsep)[0]
    return [Path(path).parent for path in paths if path is not None] + ([Path(data)] if data else [])


def _find_dictionaries(
    checkpoint: str, options: dict[str, Any], languages: tuple[str, str] | None, source: str | None, target: str | None
) -> dict[str, str]:
    """Return option -> dictionary: the user's, or one next to the other one or the checkpoint, or in the data."""
    folders = _folders(source, target, checkpoint, options=options)
    wanted = {"--dict": (source, ["dict.txt", "input0/dict.txt"])}
    if languages is not None:
        of_language = [[f"dict.{language}.txt"] for language in languages]
        wanted = {"--dict": (source, of_language[0]), "--target-dict": (target, of_language[1])}
    paths = {}
    for flag, (path, names) in wanted.items():
        places = (folder / name for folder in folders for name in names)
        path = path or next((str(place) for place in places if place.is_file()), None)
        if path is None:
            unnamed = "the checkpoint does not say its languages; " if languages == UNKNOWN_LANGUAGES else ""
            searched = " or ".join(dict.fromkeys(map(str, folders)))
            flags = " and ".join(wanted) if unnamed else flag
            raise OptionError(f"{unnamed}no {names[0]} in {searched}: name the dictionary of the training by {flags}")
        paths[flag] = path
    return paths


def _sides(
    model: Any, task: Any, languages: tuple[str, str] | None, paths: list[str], options: dict[str, Any]
) -> tuple[Side, Side | None]:
    """Return source and target, None for an encoder."""
    dictionary, positions = task.source_dictionary, model.max_positions()
    before, between = ([], []) if task_name(options) == "translation" else tokens_of_input(task)
    if not hasattr(model, "decoder"):
        return Side(paths[0], dictionary, positions, before, between), None
    source, target = languages or (None, None)
    return (
        Side(paths[0], dictionary, positions[0], before, between, source),
        Side(paths[-1], task.target_dictionary, positions[1], before, between, target),
    )


def _choose_head(path: str, heads: list[str], wanted: str | None) -> str | None:
    """Return the wanted head, else the only one or the one that fairseq names by default."""
    if wanted is None and not heads:
        return None
    chosen = wanted or (heads[0] if len(heads) == 1 else "sentence_classification_head")
    if chosen not in heads:
        raise OptionError(f"{path}: found the heads {', '.join(heads) or 'none'}; choose one by --head, not {chosen}")
    return chosen


def _labels(trained: Trained, path: str | None, recorded: list[str] | None) -> list[str] | None:
    """Return the names of the classes; None for a regression, or if they are unknown.

    Args:
        path: the user's label/dict.txt, whose line k is class k.
        recorded: the labels in the checkpoint, if fairseq_compat wrote them: a label/dict.txt that was made again may
            have another order.
    """
    if trained.head is None or trained.is_regression:
        if path is not None:
            raise OptionError(f"--label-dict {path}: {trained.path} has no classes; leave it out")
        return None
    if path is None and recorded and len(recorded) == trained.head_module.out_proj.out_features:
        return [*recorded]
    file = path or next(_label_files(trained, "dict.txt"), None)
    if file is None:
        return None
    vocabulary = read_dictionary(file, "--label-dict")
    labels = [symbol for symbol, is_regular in zip(vocabulary.symbols, vocabulary.regular) if is_regular]
    classes = trained.head_module.out_proj.out_features
    if len(labels) != classes:
        raise DataError(
            f"{file}: {len(labels)} labels, the head {trained.head!r} has {classes} classes: name the dictionary of "
            "its labels by --label-dict"
        )
    return labels


def _numbers(trained: Trained) -> str | None:
    """Describe the numbers of a regression: the units and the range of the labels of its training.

    `label/scale`, which scripts/glue writes, is the factor by which the labels of the data set were multiplied.
    """
    if not trained.is_regression:
        return None
    text = "in the units of the labels of the training"
    labels = next(_label_files(trained, "train.label"), None)
    if labels is None:
        return text
    try:
        values = [float(word) for word in labels.read_text(encoding="utf-8-sig").split()]
    except ValueError as error:
        raise DataError(f"{labels}: {error}; it holds the labels of a regression: numbers, a line each") from error
    text += f", which are {min(values):g} to {max(values):g}" if values else ""
    scale = labels.with_name("scale")
    return text + (f" (the labels of the data set times {float(scale.read_text()):g})" if scale.is_file() else "")


def _label_files(trained: Trained, name: str) -> Iterator[Path]:
    """Yield the files `label/NAME` next to the dictionary, above it, next to the checkpoint, and in the data."""
    dictionary = Path(trained.source.path).resolve()
    for folder in _folders(str(dictionary), str(dictionary.parent), trained.path, options=trained.task_options):
        if (folder / "label" / name).is_file():
            yield folder / "label" / name
