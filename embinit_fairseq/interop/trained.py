"""Open the trained model for an export: read safely, built by fairseq, with its dictionaries, head and labels."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embinit_fairseq.checkpoint_file import options_of, updates_of
from embinit_fairseq.checkpoints.build import UNKNOWN_LANGUAGES, Builder, Texts, languages_of
from embinit_fairseq.checkpoints.loading import check_dictionary, load_model_checkpoint
from embinit_fairseq.checkpoints.trained_preparation import find_preparation
from embinit_fairseq.errors import CheckpointError, DataError, OptionError
from embinit_fairseq.interop.architectures import ARCHITECTURES, Architecture
from embinit_fairseq.models._hub import tokens_of_input
from embinit_fairseq.vectors.hf_vocab import EXPORTED_TARGET
from embinit_fairseq.vocab.dictionary import read_dictionary
from embinit_fairseq.vocab.preparation_record import Recorded

if TYPE_CHECKING:
    from torch import Tensor

#: folder inside the export for the tokenizer of a decoder with another dictionary
TARGET = EXPORTED_TARGET


@dataclass(frozen=True)
class Side:
    """Hold the dictionary of an encoder or a decoder, and the form of its sentences.

    Args:
        path: path of the dict.txt.
        dictionary: fairseq's dictionary, with the symbols that the task appends.
        longest: number of positions.
        before, between: ids before a sentence and before the second sentence of a pair; `</s>` ends both.
        language: language of the text; None except for translation.
        recorded: preparation of the text, None if there is no record.
    """

    path: str
    dictionary: Any
    longest: int
    before: list[int]
    between: list[int]
    language: str | None = None
    recorded: Recorded | None = None

    @functools.cached_property
    def symbols(self) -> list[str]:
        """The symbols, row by row."""
        return list(self.dictionary.symbols)

    def encode(self, line: str) -> list[int]:
        """Return fairseq's ids of a line of symbols, as the model's input."""
        ids = self.dictionary.encode_line(line, append_eos=False, add_if_not_exist=False).tolist()
        return [*self.before, *ids, self.dictionary.eos()]

    def special_symbols(self) -> dict[str, str]:
        """Return role in transformers -> symbol."""
        roles = {"bos": "<s>", "cls": "<s>", "pad": "<pad>", "eos": "</s>", "sep": "</s>", "unk": "<unk>"}
        if "<mask>" in self.dictionary.indices:
            roles["mask"] = "<mask>"
        return {f"{role}_token": symbol for role, symbol in roles.items()}


@dataclass(frozen=True)
class Trained:
    """Hold a model of fairseq with its dictionaries and the options of its training.

    Args:
        path: the checkpoint's path.
        target: target side of an encoder-decoder model; equals `source` if both have one dictionary.
            None for an encoder.
        head: name of the classification head; None for a pre-trained model.
        labels: names of the head's classes; None if they are unknown.
        numbers: description of the numbers that a regression returns.
    """

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
    def options(self) -> Any:
        """Return the options of the model."""
        return getattr(self.model, "cfg", None) or self.model.args

    @property
    def task(self) -> str:
        """The name of the task."""
        return _task_name(self.task_options)

    @property
    def sequence_sides(self) -> tuple[Side, Side]:
        """Return source and target of an encoder-decoder model."""
        assert self.target is not None
        return self.source, self.target

    @property
    def sides(self) -> dict[str, Side]:
        """Return folder in the export -> side whose tokenizer is in it; "" is the export itself."""
        if self.target is None or self.target.symbols == self.source.symbols:
            return {"": self.source}
        return {"": self.source, TARGET: self.target}

    @property
    def lm_head(self) -> Any:
        """Return the language-model head; None for a fine-tuned model and for the discriminator of an ELECTRA."""
        return getattr(self.model.encoder, "lm_head", None)

    @property
    def head_module(self) -> Any:
        """The classification head."""
        return self.model.classification_heads[self.head]

    @property
    def is_regression(self) -> bool:
        """Return True if the head predicts a number."""
        return self.head is not None and bool(self.task_options.get("regression_target"))

    @property
    def auto_class(self) -> str:
        """Return the class of transformers that opens the exported model."""
        if self.head is not None:
            return "AutoModelForSequenceClassification"
        if self.target is not None:
            return "AutoModelForSeq2SeqLM"
        return "AutoModel" if self.lm_head is None else "AutoModelForMaskedLM"

    @property
    def sizes(self) -> str:
        """Return layers, dimensions, heads, positions and symbols as text."""
        options, model = self.options, self.model
        if self.target is None:
            sizes = (
                f"{len(model.encoder.sentence_encoder.layers)} layers, dimension {options.encoder_embed_dim}, FFN "
                f"{options.encoder_ffn_embed_dim}, {options.encoder_attention_heads} heads, {options.max_positions} "
                "positions"
            )
        else:
            parts = []
            for side in ("encoder", "decoder"):
                ffn, heads = (getattr(options, f"{side}_{part}") for part in ("ffn_embed_dim", "attention_heads"))
                parts.append(f"{side} of {len(getattr(model, side).layers)} layers, FFN {ffn}, {heads} heads")
            parts += [f"dimension {options.encoder_embed_dim}", f"{max(model.max_positions())} positions"]
            sizes = ", ".join(parts)
        return f"{sizes}, {' and '.join(f'{len(side.symbols):,}' for side in self.sides.values())} symbols"

    @property
    def left_out(self) -> list[str]:
        """Return the parts of the model that are not exported."""
        parts = {
            "generator": getattr(self.model, "generator", None),
            "replaced-token head": getattr(self.model.encoder, "rtd_head", None),
            "language-model head": self.lm_head if self.head is not None else None,
        }
        heads = [f"head {name!r}" for name in _heads(self.model) if name != self.head]
        return [name for name, part in parts.items() if part is not None] + heads


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
    arch, architecture = _architecture_of(checkpoint, state, _task_name(options))
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
    head = _choose_head(checkpoint, _heads(model), head)
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


def check_finite(path: str, weights: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError if a parameter holds NaN or infinity."""
    import torch

    for name, value in weights.items():
        if not torch.isfinite(value).all():
            raise CheckpointError(f"{path}: {name} holds NaN or infinity; take an earlier checkpoint of the training")


def _task_name(options: dict[str, Any]) -> str:
    return str(options.get("_name") or options.get("task"))


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
    before, between = ([], []) if _task_name(options) == "translation" else tokens_of_input(task)
    if not hasattr(model, "decoder"):
        return Side(paths[0], dictionary, positions, before, between), None
    source, target = languages or (None, None)
    return (
        Side(paths[0], dictionary, positions[0], before, between, source),
        Side(paths[-1], task.target_dictionary, positions[1], before, between, target),
    )


def _heads(model: Any) -> list[str]:
    return list(getattr(model, "classification_heads", ()))


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
