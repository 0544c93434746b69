"""Train the input rows of new words on a text (`expand-vocab --method distill`).

Token Distillation (Dobler, Elliott and de Melo 2025, arXiv 2505.20133, with the last layer): the model reads
a text twice, in old subwords and with new words. Only the rows E of the new words are trained, in the matrices that are
read, until both readings agree:

    L(E) = 1 / (|M| D) sum_{(i, j) in M} || h*_j - h_i ||^2

    h     (T, D)   last hidden states of the text in old subwords; they do not depend on E
    h*    (T*, D)  last hidden states of the same text with new words, T* <= T
    M              the positions i and j of the same text: all tokens that are in both, and a new word with the last of
                   its subwords, as in Token Distillation's code. The other subwords have no partner

The tokens after a new word attend to it; in encoders the tokens before, too. Language models: h of the decoder. Masked
models: h of the encoder, nothing is masked. Translation: h of the side whose dictionary changes, of the decoder after
the whole source; if both change, L is the sum. There is no dropout. Positions are counted in the text with new words,
as the model will be used: if positions are added to embeddings, L does not reach 0.

E begins as the mean of the subwords. The optimizer is Adam, whose rate falls to 0 linearly.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from fairseq.models import FairseqDecoder, FairseqEncoderDecoderModel, FairseqLanguageModel
from torch import Tensor, nn

from embinit_fairseq.checkpoints.build import dictionaries_of
from embinit_fairseq.errors import OptionError
from embinit_fairseq.init.draws import stream
from embinit_fairseq.init.methods import DISTILL, Recipe, new_rows
from embinit_fairseq.init.weights import columns_of
from embinit_fairseq.io import whole_file
from embinit_fairseq.resize.core import Change, resize_tables, tensors_of
from embinit_fairseq.resize.distill_text import FLAG, Sentence, model_inputs, read_columns, read_sentences
from embinit_fairseq.resize.evaluation import INPUT_SIDES, batched, divergence, logits, rows_of
from embinit_fairseq.resize.old_model import OldModel
from embinit_fairseq.resize.symbol_tensors import embedding_names, output_names
from embinit_fairseq.vocab.segmentation import Segmentation

_MEASURED = 200  #: lines of the text on which KL is measured
_SECONDS = 60.0  #: seconds between two savings of the training's state
Update = list[Sentence]
#: shows progress over updates
Progress = Callable[[Sequence[Update]], Iterable[Update]]


@dataclass(frozen=True)
class Saved:
    """Keep the state of a training that may be killed, in a file next to the output.

    Args:
        path: the file.
        key: describes options and input files; the state of another training is ignored.
        seconds: time between two savings.
    """

    path: Path
    key: str
    seconds: float = _SECONDS

    def load(self) -> dict[str, Any]:
        """Return the content that `save` wrote; empty if there is no readable file."""
        try:
            state = torch.load(self.path, weights_only=True) if self.path.exists() else {}
        except (EOFError, RuntimeError, UnpicklingError):  # cut off by a failure of power
            return {}
        return state if state.get("key") == self.key else {}

    def save(self, **state: Any) -> None:
        """Write the state; the file is complete or as it was."""
        with whole_file(self.path) as file:
            torch.save({"key": self.key, **state}, file)


@dataclass(frozen=True)
class Distillation:
    """Hold the options of the training.

    Args:
        text: one file; of a translation model source and target (only the source if only its dictionary changes).
        sentences: how many of the first sentences with a new word are used, per word.
        epochs: passes over these sentences.
        lr: Adam's rate at the beginning.
        tokens: tokens of old text in an update.
    """

    text: tuple[str, ...]
    sentences: int = int(DISTILL["sentences"])
    epochs: int = int(DISTILL["epochs"])
    lr: float = DISTILL["lr"]
    tokens: int = int(DISTILL["tokens"])


def distill(
    old_model: OldModel,
    change: Change,
    recipe: Recipe,
    segmentation: Segmentation | None,
    settings: Distillation,
    progress: Progress = list,
    saved: Saved | None = None,
) -> tuple[Recipe, dict[str, Any]]:
    """Return the recipe with trained rows, and the record of the training.

    Args:
        old_model: its checkpoint, dictionary and tensors.
        change: the rows of the new words.
        recipe: recipe of the method `distill`, with the words' subwords.
        segmentation: segments the text of the sides that change; None: the text is segmented.
        settings: the options.
        progress: shows progress over updates.
        saved: state from which a killed training continues.

    Raises:
        DataError: the text does not fit the dictionary, or lacks a new word.
        OptionError: the model has no hidden states to compare, or an option does not fit.
    """
    begin = time.process_time()
    names = _changed_inputs(old_model, settings.text)
    # 1. The model with the new words; their rows are the means of their subwords
    recipe = _before_training(old_model, recipe)
    weights = dict(old_model.state["model"])
    resize_tables(old_model, change, [weights], functools.partial(new_rows, recipe))
    model, task = old_model.builder.load(old_model.texts_with(change.text), weights)
    if task.source_dictionary is None:  # speech
        raise OptionError("--method distill: the source of the model is not text; choose --method subword")
    # 2. The text in both segmentations
    dictionaries = dictionaries_of(task)
    new_row = change.new_row_of(len(old_model.symbols))
    subwords = {row: new_row[parts].tolist() for row, (parts, _) in recipe.start.composed.items()}
    columns = read_columns(settings.text, old_model, dictionaries, subwords, segmentation)
    inputs = model_inputs(model, columns, dictionaries, settings.text)
    sentences = read_sentences(inputs, names, subwords, change.symbols, settings.text, settings.sentences)
    # 3. The training
    made = torch.from_numpy(change.made)
    generator = stream(recipe.seed, "distill")
    epochs = [make_updates(sentences, settings.tokens, generator) for _ in range(settings.epochs)]
    updates, names_read = [update for epoch in epochs for update in epoch], list(recipe.shifts)
    start = {name: model.get_parameter(name).detach()[made].double() for name in names_read}
    continues = saved is not None and bool(saved.load())
    losses = train(model, names_read, made, updates, settings.lr, progress, saved)
    trained = {name: model.get_parameter(name).detach()[made].double() for name in names_read}
    record = {
        "sentences": len(sentences),
        "updates": len(updates),
        "loss": [float(np.mean(part)) for part in np.split(losses, np.cumsum([*map(len, epochs)])[:-1])],
        "kl": None,
    }
    if old_model.softmax and recipe.bound(output_names(old_model.model, old_model.tables)) is None:
        head = [column[:_MEASURED] for column in columns]
        record["kl"] = _divergences(model, change, rows_of(model, head, settings.text, dictionaries)[0])
    record["cpu_seconds"] = None if continues else round(time.process_time() - begin, 1)
    return replace(recipe, shifts={name: (trained[name] - start[name]).numpy() for name in names_read}), record


def _before_training(old_model: OldModel, recipe: Recipe) -> Recipe:
    """Return the recipe with zeros as the shifts of all matrices that are read."""
    embeddings = embedding_names(old_model.model)
    read = [table.name for table in old_model.tables if not embeddings.isdisjoint(table.names)]
    tensors = {name: copies[0] for name, copies in tensors_of(old_model, [old_model.state["model"]]).items()}
    return replace(recipe, shifts={name: np.zeros((recipe.count, columns_of(tensors[name]))) for name in read})


def _changed_inputs(old_model: OldModel, texts: Sequence[str]) -> list[str]:
    """Return the arguments of the model whose dictionary changes; raise OptionError for an unsuitable model."""
    model, name = old_model.model, type(old_model.model).__name__
    translates = isinstance(model, FairseqEncoderDecoderModel)
    needed = dict.fromkeys(INPUT_SIDES if translates else ("src_tokens",))
    if not translates and not isinstance(model, FairseqLanguageModel):
        needed["features_only"] = None
    try:
        inspect.signature(model.forward).bind(**needed)
    except TypeError as error:
        raise _without_states(model) from error
    if getattr(type(getattr(model, "decoder", None)), "extract_features", None) is FairseqDecoder.extract_features:
        raise _without_states(model)  # the base class raises NotImplementedError
    reads_both = translates and "decoder" in old_model.sides
    if len(texts) != 1 + reads_both:
        expected = "two files, SOURCE TARGET" if reads_both else "one file"
        raise OptionError(f"{FLAG}: {name} takes {expected}, not {len(texts)}")
    return [key for key, side in INPUT_SIDES.items() if side in old_model.sides] if translates else ["src_tokens"]


def make_updates(sentences: Sequence[Sentence], tokens: int, generator: np.random.Generator) -> list[Update]:
    """Return the sentences of each update of an epoch, in random order, with at least `tokens` tokens per update."""
    updates: list[Update] = [[]]
    for number in generator.permutation(len(sentences)):
        if sum(sentence.tokens for sentence in updates[-1]) >= tokens:
            updates.append([])
        updates[-1].append(sentences[number])
    return updates


# ---- The training ---------------------------------------------------------------------------------------------------


def hidden_states(model: Any, inputs: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Return the last hidden states (B, T, D) of the tokens of these arguments."""
    if isinstance(model, FairseqLanguageModel):
        return {"src_tokens": model.decoder.extract_features(inputs["src_tokens"], None)[0]}
    if not isinstance(model, FairseqEncoderDecoderModel):
        features = model(inputs["src_tokens"], features_only=True)[0]
        if features.dim() != 3:  # one vector per sentence
            raise _without_states(model)
        return {"src_tokens": features}
    encoded = model.encoder(inputs["src_tokens"], src_lengths=inputs["src_lengths"])
    states = {}
    if "src_tokens" in names:
        out = encoded["encoder_out"][0] if isinstance(encoded, dict) else encoded[0]
        states["src_tokens"] = out.transpose(0, 1)
    if "prev_output_tokens" in names:
        states["prev_output_tokens"] = model.decoder.extract_features(inputs["prev_output_tokens"], encoded)[0]
    return states


def _without_states(model: nn.Module) -> OptionError:
    name = type(model).__name__
    return OptionError(f"--method distill: {name} has no hidden state of each token; choose --method subword")


def add_gradients(model: nn.Module, update: Update) -> float:
    """Return L of an update, and add its gradient to the parameters that need one.

    Sentences of the same lengths are computed together, so that no model sees padding.
    """
    counts = Counter(name for sentence in update for name, last in sentence.last.items() for _ in last)
    groups: dict[tuple[int, ...], list[Sentence]] = {}
    for sentence in update:
        lengths = (len(ids) for ids in (*sentence.old.values(), *sentence.new.values()))
        groups.setdefault(tuple(lengths), []).append(sentence)
    total = 0.0
    for group in groups.values():
        with torch.no_grad():
            old = hidden_states(model, _tensors([sentence.old for sentence in group]), counts)
        new = hidden_states(model, _tensors([sentence.new for sentence in group]), counts)
        loss = torch.zeros(())
        for name, states in new.items():
            last = torch.tensor([sentence.last[name] for sentence in group])
            partners = old[name][torch.arange(len(group))[:, None], last]
            loss = loss + (states - partners).square().sum() / (counts[name] * states.shape[-1])
        loss.backward()
        total += float(loss.detach())
    return total


def _tensors(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    tensors = {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}
    if "src_lengths" in tensors:
        tensors["src_lengths"] = tensors["src_lengths"][:, 0]
    return tensors


def train(
    model: nn.Module,
    names: Sequence[str],
    made: Tensor,
    updates: Sequence[Update],
    lr: float,
    progress: Progress,
    saved: Saved | None = None,
) -> list[float]:
    """Train rows of matrices in place; return L of every update.

    Args:
        model: without dropout (eval).
        names: names of the matrices.
        made: (k,) the rows that are trained.
        updates: sentences of every update.
        lr: Adam's rate, which falls to 0.
        progress: shows progress.
        saved: state from which a killed training continues; None: nothing is saved.

    Raises:
        OptionError: L is not finite.
    """
    model.requires_grad_(False)
    matrices = [model.get_parameter(name).requires_grad_() for name in names]
    rows = [nn.Parameter(matrix.detach()[made]) for matrix in matrices]
    optimizer = torch.optim.Adam(rows, lr=lr)
    losses: list[float] = []
    if saved is not None and (state := saved.load()):
        losses = state["losses"]
        optimizer.load_state_dict(state["optimizer"])
        for row, matrix, value in zip(rows, matrices, state["rows"]):
            row.data, matrix.data[made] = value, value
    last_saved = time.monotonic()
    for update in progress(updates[len(losses) :]):
        optimizer.param_groups[0]["lr"] = lr * (1 - len(losses) / len(updates))
        losses.append(add_gradients(model, update))
        if not np.isfinite(losses[-1]):
            raise OptionError(f"--distill-lr {lr:g}: the loss of update {len(losses)} is not finite; give a lower rate")
        for row, matrix in zip(rows, matrices):
            row.grad, matrix.grad = matrix.grad[made], None  # type: ignore[index]  # it was just computed
        optimizer.step()
        for row, matrix in zip(rows, matrices):
            matrix.data[made] = row.data
        if saved is not None and time.monotonic() - last_saved >= saved.seconds:
            saved.save(losses=losses, optimizer=optimizer.state_dict(), rows=[row.data for row in rows])
            last_saved = time.monotonic()
    return losses


def _divergences(model: nn.Module, change: Change, rows: Any) -> dict[str, float]:
    """Return KL(old || new) on a text in old subwords: mean, largest, number of tokens."""
    old, made = torch.from_numpy(np.flatnonzero(change.old_row >= 0)), torch.from_numpy(change.made)
    values = [logits(model, batch) for batch in batched(rows, len(change.old_row))]
    kl = torch.cat([divergence(value[:, old], value[:, made]) for value in values])
    return {"mean": float(kl.mean()), "max": float(kl.max()), "tokens": len(kl)}
