"""Hold and check the options of a method (`init.methods`), the same for `expand-vocab` and `transfer-vocab`."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import numpy as np

from embinit_fairseq.errors import OptionError, named_by
from embinit_fairseq.init.alignment import read
from embinit_fairseq.init.draws import check_seed
from embinit_fairseq.init.methods import METHODS, Method
from embinit_fairseq.resize.source import Request
from embinit_fairseq.vectors.open import SourceSpec, parse_source
from embinit_fairseq.vocab.dictionary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class MethodRequest(Request):
    """Hold the options of a method."""

    method: str
    seed: int = 1
    noise_scale: float | None = None
    vectors: str | None = None
    format: str | None = None
    sparsity: int | None = None

    @property
    def chosen(self) -> Method:
        """Return the method."""
        return METHODS[self.method]

    def check_method(self) -> SourceSpec | None:
        """Return --vectors; raise OptionError, before any work, if the options do not fit the method."""
        check_seed(self.seed, "--seed")
        name, method, scale = f"--method {self.method}", self.chosen, self.noise_scale
        if scale is not None and method.scale is None:
            raise OptionError(f"--noise-scale {scale}: {name} has no noise; leave it out")
        if scale is not None and not 0 <= scale < 1e10:
            raise OptionError(
                f"--noise-scale {scale}: a factor of the covariance, 0 to below 1e10 (1: as the old rows)"
            )
        if method.needs_vectors and self.vectors is None:
            raise OptionError(f"{name} needs --vectors FILE: word vectors of the words or subwords, old and new ones")
        for flag, value in (("--vectors", self.vectors), ("--format", self.format)):
            if value is not None and not method.needs_vectors:
                raise OptionError(f"{flag} {value}: {name} reads no vectors; leave it out")
        if method.is_sparse and importlib.util.find_spec("sklearn") is None:
            raise OptionError(f"{name} needs scikit-learn, which is not installed: pip install scikit-learn")
        if self.sparsity is not None and not method.is_sparse:
            raise OptionError(f"--sparsity {self.sparsity}: {name} has none; leave it out")
        if self.sparsity is not None and self.sparsity < 1:
            raise OptionError(f"--sparsity {self.sparsity}: expected a number of shared words, at least 1")
        with named_by("--vectors "):
            return None if self.vectors is None else parse_source(self.vectors, self.format)


def auxiliary_vectors(spec: SourceSpec, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """Return (K,) rows of the new dictionary for which --vectors has all columns, and (K, d) their vectors."""
    reading = read(spec, vocabulary, flag="--vectors ")
    complete = reading.complete[reading.source.rows]
    return reading.source.rows[complete], reading.source.vectors[complete]


def files_of(spec: SourceSpec | None) -> dict[str, str]:
    """Return path -> path of the files of --vectors."""
    return {path: path for path in (spec.paths if spec is not None else ())}
