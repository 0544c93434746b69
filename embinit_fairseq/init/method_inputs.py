"""Collect the inputs of a method (`init.methods.MethodInputs`), for Python and the commands. NumPy only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from embinit_fairseq.errors import OptionError
from embinit_fairseq.init.methods import Method, MethodInputs
from embinit_fairseq.init.requirements import auxiliary_vectors
from embinit_fairseq.init.symbols import Symbols, subword_means
from embinit_fairseq.vectors.open import SourceSpec
from embinit_fairseq.vocab.dictionary import Vocabulary
from embinit_fairseq.vocab.subword_styles import Token


def rows_to_average(vocabulary: Vocabulary, over: str, rows: np.ndarray) -> np.ndarray:
    """Return the old rows that are averaged.

    Args:
        vocabulary: the first old rows, without symbols that a task appends.
        over: "all": all of `rows`; "words": the rows of words among them.
        rows: the old rows that were trained: without fillers, with appended symbols.
    """
    if over not in ("all", "words"):
        raise OptionError(f"average_over={over!r}: choose from all, words")
    return rows if over == "all" else rows[np.isin(rows, np.flatnonzero(~vocabulary.special))]


def transfer_inputs(
    old: Symbols, new: Symbols, shared: np.ndarray, method: Method, segment: Callable[[Token], list[str]] | None = None
) -> MethodInputs:
    """Return the rows from which another dictionary's rows are made, before `with_vectors`.

    Args:
        old, new: the symbols of the two dictionaries.
        shared: (new N,) the old row of each symbol that both have, else -1.
        method: says whether subwords are needed.
        segment: as for `subword_means`.

    Raises:
        DataError: `segment` segments no word.
    """
    inputs = MethodInputs(len(old.names), shared, new.word, (np.array(old.words), None))
    if not method.needs_subwords:
        return inputs
    return replace(inputs, subwords=subword_means(old, new, inputs.wanted.tolist(), segment))


def with_vectors(
    inputs: MethodInputs, spec: SourceSpec | None, new: Vocabulary, sparsity: int | None, flag: str = "--vectors "
) -> MethodInputs:
    """Return the inputs with the vectors of old and new words, if there are vectors.

    Args:
        inputs: rows and words; old words count as words of the new dictionary, too.
        spec: the vectors.
        new: the new dictionary, without symbols that a task appends.
        sparsity: as in `MethodInputs`.
        flag: option that names the vectors, with its separator, for messages.
    """
    if spec is None:
        return inputs
    rows, vectors = auxiliary_vectors(spec, new, flag)
    word = inputs.word.copy()
    word[: len(new)] |= new.regular
    return replace(inputs, word=word, vector_rows=rows, vectors=vectors, sparsity=sparsity)
