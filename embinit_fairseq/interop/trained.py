"""Describe the trained model that is exported, and the family of models in transformers that it belongs to."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embinit_fairseq.interop.tensors import Names, rename
from embinit_fairseq.vectors.hf_vocab import EXPORTED_TARGET
from embinit_fairseq.vocab.preparation_record import Recorded

if TYPE_CHECKING:
    from torch import Tensor

#: folder, in that of the export, of the tokenizer of a decoder with a dictionary of its own
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
class Architecture:
    """Describe a family of fairseq's models that transformers computes, by its classes or by code of this package.

    Args:
        archs: values of `--arch`, for messages.
        hf_name: the model in transformers, for messages.
        tags, note: text for the model card.
        models: the names under which fairseq registers the models.
        describe: returns the kind of a trained model in a few words.
        config: returns the content of config.json that only this family has.
        names: patterns for the parameters that are exported; the chosen classification head is called `head`.
        extra: returns further tensors, under their exported names.
        refusals: returns option -> True if the model has it, for all options that transformers' class cannot have.
        tasks: values of `--task` whose inputs are known; empty if all are.
        code: modules of this package that the exported folder needs (`trust_remote_code`).
    """

    archs: str
    hf_name: str
    tags: tuple[str, ...]
    note: str
    models: tuple[str, ...]
    describe: Callable[[Trained], str]
    config: Callable[[Trained], dict[str, Any]]
    names: Names
    extra: Callable[[Trained], dict[str, Tensor]] = lambda trained: {}
    refusals: Callable[[Trained], dict[str, bool]] = lambda trained: {}
    tasks: tuple[str, ...] = ()
    code: tuple[str, ...] = ()

    def refused(self, trained: Trained) -> str | None:
        """Return an option that the class of transformers lacks, with a remedy; None if the model can be exported."""
        options = ", ".join(option for option, is_so in self.refusals(trained).items() if is_so)
        if not options:
            return None
        other = ", or goes to CTranslate2 (docs/ctranslate2.md)" if trained.target is not None else ""
        return f"transformers' {self.hf_name} cannot have {options}: such a model stays in fairseq{other}"

    def weights(self, trained: Trained) -> dict[str, Tensor]:
        """Return the trained model's tensors by their exported names; several may share their memory."""
        stored = trained.model.state_dict()
        if trained.head is not None:
            head = f"classification_heads.{trained.head}."
            stored = {re.sub(f"^{re.escape(head)}", "head.", name): value for name, value in stored.items()}
            stored = {name: value for name, value in stored.items() if not name.startswith("encoder.lm_head.")}
        tensors = {**rename(stored, self.names), **self.extra(trained)}
        if trained.auto_class == "AutoModel":  # a base model has no prefix
            tensors = {name.partition(".")[2]: value for name, value in tensors.items()}
        return tensors


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
        return task_name(self.task_options)

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
        heads = [f"head {name!r}" for name in heads_of(self.model) if name != self.head]
        return [name for name, part in parts.items() if part is not None] + heads


def task_name(options: dict[str, Any]) -> str:
    """Return the name of the task from the options of a training."""
    return str(options.get("_name") or options.get("task"))


def heads_of(model: Any) -> list[str]:
    """Return the names of the classification heads of a model."""
    return list(getattr(model, "classification_heads", ()))
