"""Numbers about a source of vectors as the table of one dictionary (Kim et al. 2024, Tables 2 and 6).

Letters: N rows and D columns of the model's table, sigma_p of the source's rows, sigma_x of a Xavier table.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from embinit_fairseq.analysis.positions import position_table
from embinit_fairseq.analysis.transforms import xavier_std
from embinit_fairseq.errors import CoverageError
from embinit_fairseq.init.statistics import absorption_ratio, coverage, describe, xavier_bound
from embinit_fairseq.vectors.table import VectorTable
from embinit_fairseq.vocab.align import Alignment
from embinit_fairseq.vocab.dictionary import Vocabulary

Moments = dict[str, float]


def table_statistics(
    table: VectorTable,
    vocabulary: Vocabulary | None = None,
    alignment: Alignment | None = None,
    formula: str = "fairseq",
    length: int = 1024,
    missing: int = 20,
) -> dict[str, Any]:
    """Everything `embinit stats` reports, as one JSON object.

    With a vocabulary, `rows` is its N and min, max, mean, std are over the rows that were found in the source;
    without one, all rows of the table are meant and the coverage is None. xavier is the distribution's, not a draw:
    sigma = sqrt(2 / (N + D)). formula, length: the position encoding. Raises CoverageError if nothing was found.
    """
    if vocabulary is None or alignment is None:
        rows, matrix = len(table.words), table.matrix
        matched: dict[str, Any] = {"found": rows, "coverage_types": None, "coverage_tokens": None}
        matched.update(rows_by_rule={}, missing=[])
    else:
        rows, matrix = len(vocabulary), alignment.gather(table, vocabulary)[1]
        matched = {**coverage(vocabulary, alignment), "rows_by_rule": alignment.counts_by_rule()}
        matched["missing"] = missing_words(vocabulary, alignment, missing)
    if not matched["found"]:
        raise CoverageError(
            f"{table.origin.path}: none of the {rows} rows of the dictionary is in it; check that language, case and "
            "tokenisation of dictionary and vectors are the same"
        )
    origin = table.origin
    source = {"vectors": origin.path, "format": origin.format, "source_rows": origin.rows, "dim": origin.dim}
    flaws = {"duplicates": origin.duplicates, "broken_lines": origin.broken_lines}
    moments = describe(matrix)
    return {
        **source,
        **flaws,
        "rows": rows,
        **matched,
        **moments,
        **_beside(moments, rows, origin.dim, formula, length),
    }


def missing_words(vocabulary: Vocabulary, alignment: Alignment, most: int) -> list[tuple[str, int]]:
    """The most frequent words without a vector, with their counts."""
    absent = np.flatnonzero(vocabulary.regular & ~alignment.found)
    order = absent[np.argsort(-vocabulary.counts[absent], kind="stable")][:most]
    return [(vocabulary.symbols[row], int(vocabulary.counts[row])) for row in order]


def _beside(moments: Moments, rows: int, dim: int, formula: str, length: int) -> dict[str, Any]:
    """The other lines of Table 6: Xavier, pretrained_xavier, both scaled by sqrt(D), and the positions."""
    scale, bound, sigma_x = math.sqrt(dim), xavier_bound(rows, dim), xavier_std(rows, dim)
    xavier = {"min": -bound, "max": bound, "mean": 0.0, "std": sigma_x}
    ratio = sigma_x / moments["std"] if moments["std"] > 0 else math.nan
    standardised = {key: (moments[key] - moments["mean"]) * ratio for key in ("min", "max", "mean")}
    standardised["std"] = sigma_x if moments["std"] > 0 else math.nan
    positions = describe(position_table(formula, length, dim))
    tables = {"xavier": xavier, "pretrained": moments, "pretrained_xavier": standardised}
    absorption = {name: absorption_ratio(values["std"], scale, positions["std"]) for name, values in tables.items()}
    return {
        "scale": scale,
        "scaled_std": moments["std"] * scale,
        "xavier_std": sigma_x,
        "position_std": positions["std"],
        "absorption_ratio": absorption["pretrained"],
        "tables": {
            name: {**values, "scaled": {key: value * scale for key, value in values.items()}}
            for name, values in tables.items()
        },
        "positions": {"formula": formula, "length": length, **positions},
        "absorption_ratios": absorption,
    }
