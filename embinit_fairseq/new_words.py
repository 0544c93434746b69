"""Make rows of new words for embedding matrices, output layers and biases in Python, without fairseq.

    import embinit_fairseq as ei

    new = ei.expand({"in": embedding, "out": output}, symbols, ["frodo"], "subword", subwords={"frodo": ["fro", "do"]})
    new.matrices["in"], new.symbols, new.report["bound"]
    ei.transfer(embedding, old_symbols, new_symbols, "focus", vectors="glove.6B.300d.txt").matrices

The numbers equal `embinit expand-vocab` and `transfer-vocab` with the same names of matrices, symbols and seed. For a
model of Hugging Face, see `ei.expand_hf` (`hf_models`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from embinit_fairseq.embeddings import vocabulary_of_rows
from embinit_fairseq.errors import DataError, OptionError, named_by
from embinit_fairseq.init.method_inputs import rows_to_average, transfer_inputs, with_vectors
from embinit_fairseq.init.methods import EXPANSION, METHODS, TRANSFER, MethodInputs, Recipe, recipe_of
from embinit_fairseq.init.requirements import MethodOptions
from embinit_fairseq.init.symbols import shared_rows, symbols_of
from embinit_fairseq.init.weights import KINDS, Combination, bound_entries
from embinit_fairseq.matrices import Matrices
from embinit_fairseq.vectors.open import SourceSpec
from embinit_fairseq.vocab.dictionary import Vocabulary, is_filler

#: word -> its old subwords, or old symbols with weights that sum to 1
Subwords = Mapping[str, "Sequence[str] | Mapping[str, float]"]
#: largest difference of the sum of a user's weights from 1: float32
_TOLERANCE = 1e-6


class Changed(NamedTuple):
    """Hold the matrices, in the form of the input, the symbols of their rows, and the report."""

    matrices: Any
    symbols: list[str]
    report: dict[str, Any]


def expand(
    matrices: Any,
    symbols: Any,
    words: Sequence[str],
    method: str = "avg",
    *,
    subwords: Subwords | None = None,
    average_over: str = "all",
    counts: Mapping[str, int] | None = None,
    **options: Any,
) -> Changed:
    """Add rows of new words after the last row, as `embinit expand-vocab` makes them.

    The input matrices stay as they are. Old rows are copied. Matrices that share their numbers (tied ones)
    share them afterwards. The optimizer's moments are not changed: make the optimizer afterwards.

    Args:
        matrices: an array or tensor (N, D), a bias (N,), an `nn.Embedding`, an `nn.Linear`, or a mapping of names to
            them. All have the same symbols.
        symbols: symbols of the N rows, as for `embedding_matrix`.
        words: the new words.
        method: a name in `init.methods.EXPANSION`, except `distill`.
        subwords: for `subword`: word -> old subwords, or word -> {old symbol: weight}, whose weights sum to 1.
        average_over: `all` old rows, or `words` (no special ones); fillers (`madeupword0000`) are never averaged.
        counts: symbol -> its occurrences in a text, for `tokens` of the report.
        **options: `vectors`, `format`, `noise_scale`, `sparsity`, `seed` (`init.requirements.MethodOptions`).

    Returns:
        The longer matrices, their symbols, and a report. `bound` is the largest KL(old || new) in nats that any text
        can have, None if there is none; `bounds` says how tight it is. `words` counts the new words by their origin,
        `tokens` has the share of the text's symbols by the origin of their rows.

    Raises:
        OptionError, DataError: naming the argument and the remedy.
    """
    chosen, spec = checked_method(expand, method, EXPANSION, options)
    old = vocabulary_of_rows(symbols, None)
    texts = new_words(words, old.symbols)
    names = [*old.symbols, *texts]
    held = Matrices(matrices, len(old))
    vocabulary = Vocabulary(names, np.ones(len(names), dtype=np.int64), old.roles, old.added)
    old_row = np.concatenate([np.arange(len(old)), np.full(len(texts), -1)])
    averaged = rows_to_average(old, average_over, np.flatnonzero(~old.filler))
    rows = {text: len(old) + number for number, text in enumerate(texts)}
    composed = combinations(subwords or {}, rows, old.symbols) if chosen.chosen.needs_subwords else {}
    if missing := [text for text in texts if chosen.chosen.needs_subwords and rows[text] not in composed]:
        raise OptionError(
            f"subwords: method {method} needs the old subwords of {missing[0]!r}; give "
            f"subwords={{{missing[0]!r}: ['...', '...']}}, or take another method"
        )
    recipe = expansion(chosen, spec, old, vocabulary, old_row, averaged, composed)
    return Changed(held.changed(recipe), names, report_of(recipe, names, old_row < 0, counts))


def transfer(
    matrices: Any,
    old: Any,
    new: Any,
    method: str = "subword",
    *,
    subwords: Subwords | None = None,
    counts: Mapping[str, int] | None = None,
    **options: Any,
) -> Changed:
    """Return the matrices with the rows of another list of symbols, as `embinit transfer-vocab` makes them.

    Args:
        matrices: as for `expand`.
        old: symbols of the rows.
        new: the other symbols; lists, mappings, paths of a dict.txt, Dictionaries or tokenizers, as for
            `embedding_matrix`.
        method: a name in `init.methods.TRANSFER`.
        subwords: for `subword`: new symbol -> old subwords; by default the longest from the left.
        counts: symbol -> its occurrences in a text; by default the counts in the dict.txt or Dictionary.
        **options: `vectors`, `format`, `noise_scale`, `sparsity`, `seed` (`init.requirements.MethodOptions`).

    Returns:
        As `expand`. `bound` is the largest KL(old given the kept symbols || new).

    Raises:
        OptionError, DataError: naming the argument and the remedy.
    """
    chosen, spec = checked_method(transfer, method, TRANSFER, options)
    old_vocabulary, vocabulary = vocabulary_of_rows(old, None), vocabulary_of_rows(new, None)
    held = Matrices(matrices, len(old_vocabulary))
    before, after = (symbols_of(v.symbols, v) for v in (old_vocabulary, vocabulary))
    if not before.words:
        raise DataError("old: none of the symbols is a word; give the symbols of the rows")
    shared = shared_rows(before, after)
    row_of_role = {role: row for row, role in reversed(old_vocabulary.roles.items()) if role != "extra"}
    # GPT-2's `<|endoftext|>` begins and ends texts, and is the end here: the row of a beginning is never generated
    old_end, new_end = (getattr(symbols, "eos_token_id", None) for symbols in (old, new))
    if old_end is not None:
        row_of_role.setdefault("eos", old_end)
    for row, role in vocabulary.roles.items():  # `<pad>` for `[PAD]`
        if shared[row] < 0:
            shared[row] = row_of_role.get("eos" if row == new_end else role, -1)
    if chosen.chosen.needs_shared and not (shared[after.word] >= 0).any():
        raise DataError(f"new: none of its words is in old, where method {method} starts; take subword or avg")
    inputs = transfer_inputs(before, after, shared, chosen.chosen)
    if chosen.chosen.needs_subwords and subwords:
        wanted = {after.names[row]: row for row in inputs.wanted.tolist()}
        composed = combinations(subwords, wanted, old_vocabulary.symbols)
        inputs = replace(inputs, subwords={**inputs.subwords, **composed})
    recipe = _recipe(chosen, with_vectors(inputs, spec, vocabulary, chosen.sparsity, "vectors "))
    if counts is None and vocabulary.has_counts:
        counts = dict(zip(vocabulary.symbols, vocabulary.counts.tolist()))
    names = list(vocabulary.symbols)
    return Changed(held.changed(recipe), names, report_of(recipe, names, after.word, counts))


# ---- Initialisation of the new rows ---------------------------------------------------------------------------------


def checked_method(
    function: Callable[..., Any], method: str, methods: Sequence[str], options: Mapping[str, Any]
) -> tuple[MethodOptions, SourceSpec | None]:
    """Return the options of a method and its vectors; raise OptionError if the method does not have or take them.

    Args:
        function: the function that the user calls.
        method: the user's method.
        methods: all methods of the function.
        options: further arguments of the user.
    """
    further = [option.name for option in fields(MethodOptions) if option.name != "method"]
    if unknown := [name for name in options if name not in further]:
        arguments = [name for name in inspect.signature(function).parameters if name != "options"]
        raise OptionError(
            f"{function.__name__}: no argument {unknown[0]!r}; choose from {', '.join(arguments + further)}"
        )
    offered = [name for name in methods if not METHODS[name].needs_text]
    if method not in offered:
        reason = "is trained on a text; call embinit expand-vocab" if method in methods else "no such method"
        raise OptionError(f"method={method!r}: {reason}, or choose from {', '.join(offered)}")
    chosen = MethodOptions(method=method, **options)
    return chosen, chosen.check_method()


def new_words(words: Sequence[str], symbols: Sequence[str]) -> list[str]:
    """Return the new words; raise OptionError for words that are symbols already, or cannot be words."""
    if isinstance(words, str):
        raise OptionError(f"words={words!r}: give several, as in words=[{words!r}]")
    texts, present = list(words), set(symbols)
    if not texts:
        raise OptionError("words: none; give at least one new word")
    for number, word in enumerate(texts):
        if not isinstance(word, str) or not word.strip() or is_filler(word):
            raise OptionError(f"words[{number}]={word!r}: expected the text of a word; remove it, or write another")
        if word.strip("\r\n\ufeff") != word:
            raise OptionError(
                f"words[{number}]={word!r}: a line end or a byte-order mark is no part of a word; take it off"
            )
        if word in present:
            where = "twice in words" if word in texts[:number] else "one of the symbols already"
            raise OptionError(f"words[{number}]={word!r}: it is {where}; remove it")
        present.add(word)
    return texts


def combinations(subwords: Subwords, rows: Mapping[str, int], symbols: Sequence[str]) -> dict[int, Combination]:
    """Return new row -> combination of old rows, for the words that have rows.

    Raises:
        OptionError: a subword is none of the symbols, or weights do not sum to 1; names word and subword.
    """
    old_row = {symbol: row for row, symbol in enumerate(symbols)}
    result: dict[int, Combination] = {}
    for word, parts in subwords.items():
        if isinstance(parts, str) or not isinstance(parts, Collection) or not len(parts):
            raise OptionError(f"subwords: {word!r} has {parts!r}; give a list of old symbols, ['...', '...']")
        if missing := [part for part in parts if part not in old_row]:
            raise OptionError(f"subwords: {missing[0]!r}, of {word!r}, is none of the symbols; give other subwords")
        if word not in rows:
            raise OptionError(f"subwords: {word!r} is no new word; remove it")
        columns, weights = np.array([old_row[part] for part in parts]), None
        if isinstance(parts, Mapping):
            weights = np.array(list(parts.values()), dtype=np.float64)
            if not abs(weights.sum() - 1) <= _TOLERANCE:
                raise OptionError(f"subwords: the weights of {word!r} sum to {weights.sum():g}; divide them by the sum")
            weights = weights / weights.sum()
        result[rows[word]] = columns, weights
    return result


def expansion(
    chosen: MethodOptions,
    spec: SourceSpec | None,
    old: Vocabulary,
    new: Vocabulary,
    old_row: np.ndarray,
    averaged: np.ndarray,
    composed: Mapping[int, Combination],
) -> Recipe:
    """Return how the rows of new words are made.

    Args:
        chosen: the method.
        spec: its vectors.
        old: the symbols of the old rows.
        new: the symbols of the new rows.
        old_row: (new N,) the old row, -1 for new words and new fillers.
        averaged: (n,) the old rows that are averaged.
        composed: new row -> the mean of its subwords.
    """
    if not len(averaged):
        raise OptionError(
            "average_over: none of the symbols is a word, so there is no row to average; give the symbols of all rows"
        )
    inputs = MethodInputs(len(old), old_row, (old_row < 0) & ~new.filler, (averaged, None), composed)
    return _recipe(chosen, with_vectors(inputs, spec, new, chosen.sparsity, "vectors "))


def _recipe(chosen: MethodOptions, inputs: MethodInputs) -> Recipe:
    with named_by(f"vectors {chosen.vectors}: " if chosen.vectors is not None else ""):
        return recipe_of(chosen.method, inputs, chosen.noise_scale, chosen.seed)


def report_of(
    recipe: Recipe, names: Sequence[str], word: np.ndarray, counts: Mapping[str, int] | None, has_bound: bool = True
) -> dict[str, Any]:
    """Return the report.

    Args:
        recipe: how the rows are made.
        names: the new symbols.
        word: (new N,) bool, the rows that `words` counts.
        counts: symbol -> occurrences in a text.
        has_bound: False if logits are not linear in the rows.
    """
    weights, limits = recipe.weights, recipe.bound(()) if has_bound else None
    report: dict[str, Any] = {"method": recipe.method, "noise_scale": recipe.c, "seed": recipe.seed}
    report |= {"n": len(weights.averaged[0]), "k": recipe.count, **bound_entries(limits)}
    report["words"] = {kind: int(word[weights.rows_of(kind)].sum()) for kind in KINDS}
    if counts is not None:
        occurrences = np.array([counts.get(name, 0) for name in names], dtype=np.float64)
        if not (total := float(sum(counts.values()))) > 0 or occurrences.min() < 0:
            raise OptionError("counts: expected occurrences of symbols, 0 or more, at least one above 0")
        shares = {kind: float(occurrences[weights.rows_of(kind)].sum() / total) for kind in KINDS}
        report["tokens"] = {**shares, "unknown": max(0.0, 1 - float(occurrences.sum() / total))}
    return report
