"""Hold the options of a method (`init.methods`), check that they fit it, and read its vectors. NumPy only."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

import numpy as np

from embinit_fairseq.errors import OptionError, named_by
from embinit_fairseq.init.alignment import read
from embinit_fairseq.init.draws import check_seed
from embinit_fairseq.init.methods import METHODS, Method
from embinit_fairseq.io import PathLike
from embinit_fairseq.vectors.open import SourceSpec, parse_source
from embinit_fairseq.vocab.dictionary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """Hold the options of a method.

    Args:
        method: a name in `init.methods.METHODS`.
        seed: seed of rows that are drawn.
        noise_scale: factor of the noise's covariance; None: the method's own.
        vectors: file with vectors of old and new words, for `focus` and `omp`.
        format: format of the vectors; None to recognise it.
        sparsity: largest number of old words for a new one, for `omp`.
    """

    method: str
    seed: int = 1
    noise_scale: float | None = None
    vectors: PathLike | None = None
    format: str | None = None
    sparsity: int | None = None

    @property
    def chosen(self) -> Method:
        """Return the method."""
        return METHODS[self.method]

    @staticmethod
    def spelled(option: str) -> str:
        """Return an option as messages name it."""
        return option

    def check_method(self) -> SourceSpec | None:
        """Return the vectors; raise OptionError, before any work, if the options do not fit the method."""
        check_seed(self.seed, self.spelled("seed"))
        name, method, scale = f"{self.spelled('method')} {self.method}", self.chosen, self.noise_scale
        if scale is not None and method.scale is None:
            raise OptionError(f"{self.spelled('noise_scale')} {scale}: {name} has no noise; leave it out")
        if scale is not None and not 0 <= scale < 1e10:
            raise OptionError(
                f"{self.spelled('noise_scale')} {scale}: a factor of the covariance, 0 to below 1e10 (1: as the old "
                "rows)"
            )
        if method.needs_vectors and self.vectors is None:
            raise OptionError(
                f"{name} needs {self.spelled('vectors')} FILE: word vectors of the words or subwords, old and new ones"
            )
        for option in ("vectors", "format"):
            if (value := getattr(self, option)) is not None and not method.needs_vectors:
                raise OptionError(f"{self.spelled(option)} {value}: {name} reads no vectors; leave it out")
        if method.is_sparse and importlib.util.find_spec("sklearn") is None:
            raise OptionError(f"{name} needs scikit-learn, which is not installed: pip install scikit-learn")
        if self.sparsity is not None and not method.is_sparse:
            raise OptionError(f"{self.spelled('sparsity')} {self.sparsity}: {name} has none; leave it out")
        if self.sparsity is not None and self.sparsity < 1:
            raise OptionError(
                f"{self.spelled('sparsity')} {self.sparsity}: expected a number of shared words, at least 1"
            )
        with named_by(f"{self.spelled('vectors')} "):
            return None if self.vectors is None else parse_source(os.fspath(self.vectors), self.format)


def auxiliary_vectors(
    spec: SourceSpec, vocabulary: Vocabulary, flag: str = "--vectors "
) -> tuple[np.ndarray, np.ndarray]:
    """Return (K,) rows of the new dictionary for which the vectors have all columns, and (K, d) their vectors.

    Args:
        spec: the vectors.
        vocabulary: the new dictionary.
        flag: option that names the vectors, with its separator, for messages.
    """
    reading = read(spec, vocabulary, flag=flag)
    complete = reading.complete[reading.source.rows]
    return reading.source.rows[complete], reading.source.vectors[complete]
