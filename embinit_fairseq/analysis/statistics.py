"""Describe vectors as the embedding matrix of a dictionary (Kim et al. 2024, Tables 2 and 6).

N rows and D columns of the embedding matrix; sigma_p: standard deviation of the vectors; sigma_x: standard deviation of
Xavier's distribution for (N, D).
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from embinit_fairseq.analysis.transforms import position_table, xavier_std
from embinit_fairseq.errors import DataError
from embinit_fairseq.init.alignment import Reading
from embinit_fairseq.init.init_report import absorption_ratio, describe, xavier_bound
from embinit_fairseq.vectors.compressed import open_bytes
from embinit_fairseq.vectors.table import Origin, VectorTable
from embinit_fairseq.vocab.dictionary import Vocabulary, is_dictionary, read_dictionary

#: min, max, mean, std
Moments = dict[str, float]

# ---- Words by frequency ---------------------------------------------------------------------------------------------


def frequent_words(path: str, top: int | None = None) -> Vocabulary:
    """Return the most frequent words of a dictionary or a text, equal counts by first occurrence; no special rows.

    Args:
        path: a fairseq dict.txt (every line is `symbol count`), or any other text (plain, gz, bz2, xz, zip), which is
            split at white space.
        top: number of words; None: all.

    Raises:
        DataError: the file has no words or is not UTF-8.
    """
    if is_dictionary(path):
        vocabulary = read_dictionary(path)
        rows = np.flatnonzero(vocabulary.regular).tolist()
        counts = {vocabulary.symbols[row]: int(vocabulary.counts[row]) for row in rows}
    else:
        counts = _text_counts(path)
    if not counts:
        raise DataError(f"{path}: no words in it; give a fairseq dict.txt or a tokenised text")
    words = sorted(counts, key=lambda word: -counts[word])[:top]
    return Vocabulary(words, np.array([counts[word] for word in words]))


def _text_counts(path: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    with open_bytes(path) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                counts.update(line.decode("utf-8").split())
            except UnicodeDecodeError as error:
                raise DataError(f"{path}, line {number}: not UTF-8 ({error.reason}); convert the text") from error
    return counts


def missing_words(vocabulary: Vocabulary, matched: np.ndarray, most: int) -> list[tuple[str, int]]:
    """Return (word, count) of the most frequent words without a vector; matched: (N,) bool."""
    absent = np.flatnonzero(vocabulary.regular & ~matched)
    order = absent[np.argsort(-vocabulary.counts[absent], kind="stable")][:most]
    return [(vocabulary.symbols[row], int(vocabulary.counts[row])) for row in order]


# ---- The record of `embinit stats` ----------------------------------------------------------------------------------


def file_statistics(table: VectorTable, formula: str = "fairseq", length: int = 1024) -> dict[str, Any]:
    """Return the record of all vectors of a file as an embedding matrix; formula, length: of `position_table`."""
    rows = len(table.words)
    record = {**_origin(table.origin.path, table.origin), "rows": rows, "found": rows, "rows_by_rule": {}}
    record |= {"coverage_types": None, "coverage_tokens": None, "missing": []}
    moments = describe(table.matrix)
    return {**record, **moments, **_comparisons(moments, (rows, table.origin.dim), 0, 0, formula, length)}


def dictionary_statistics(
    reading: Reading, vocabulary: Vocabulary, formula: str = "fairseq", length: int = 1024, missing: int = 20
) -> dict[str, Any]:
    """Return the record of the vectors that the words of a dictionary have in one file or several.

    `rows` is N; min, max, mean and std are over the matched rows.

    Args:
        reading: the vectors, as they were read for the dictionary.
        vocabulary: the dictionary.
        formula, length: arguments of `position_table`.
        missing: how many words without a vector are listed.
    """
    rows, dim, values = len(vocabulary), reading.source.vectors.shape[1], reading.source.matched_values
    record = {**_sources(reading), "rows": rows, **reading.coverage, "rows_by_rule": reading.rows_by_rule()}
    record["missing"] = missing_words(vocabulary, reading.matched, missing)
    padding = 0 if vocabulary.pad_row is None else dim
    moments, drawn = describe(values), rows * dim - values.size - padding
    return {**record, **moments, **_comparisons(moments, (rows, dim), drawn, padding, formula, length)}


def _origin(path: str, origin: Origin) -> dict[str, Any]:
    source = {"vectors": path, "format": origin.format, "source_rows": origin.rows, "dim": origin.dim}
    return {
        **source,
        "duplicates": origin.duplicates,
        "broken_lines": origin.broken_lines,
        "language": origin.language,
    }


def _sources(reading: Reading) -> dict[str, Any]:
    """Return the origin of a file; for several files sums and, in `sources`, coverage and moments of each."""
    spec = reading.spec
    origins = [_origin(path, part.origin) for path, part in zip(spec.paths, reading.parts)]
    if spec.how is None:
        return origins[0]
    files = [
        {**origin, **part.coverage, "rows_by_rule": part.alignment.counts_by_rule(), **part.moments}
        for origin, part in zip(origins, reading.parts)
    ]
    record = {"vectors": spec.text, "format": spec.method, "dim": reading.source.vectors.shape[1]}
    record |= {key: sum(origin[key] for origin in origins) for key in ("source_rows", "duplicates", "broken_lines")}
    return {**record, "found_in_all": reading.found_in_all, "sources": files}


def _comparisons(
    moments: Moments, shape: tuple[int, int], drawn: int, padding: int, formula: str, length: int
) -> dict[str, Any]:
    """Return the other lines of Table 6: Xavier, pretrained_xavier, all scaled by sqrt(D), and the positions.

    all_rows: lines for the whole (N, D) matrix, in which Xavier draws the `drawn` elements without a vector.
    """
    rows, dim = shape
    scale, bound, sigma_x = math.sqrt(dim), xavier_bound(rows, dim), xavier_std(rows, dim)
    xavier = {"min": -bound, "max": bound, "mean": 0.0, "std": sigma_x}
    ratio = sigma_x / moments["std"] if moments["std"] > 0 else math.nan
    standardised = {key: (moments[key] - moments["mean"]) * ratio for key in ("min", "max", "mean")}
    standardised["std"] = sigma_x if moments["std"] > 0 else math.nan
    positions = describe(position_table(formula, length, dim))
    tables = {"xavier": xavier, "pretrained": moments, "pretrained_xavier": standardised}
    whole = {
        name: with_drawn_rows(tables[name], xavier, rows * dim, drawn, padding)
        for name in ("pretrained", "pretrained_xavier")
        if drawn
    }

    def with_scaled(tables: dict[str, Moments]) -> dict[str, Any]:
        return {
            name: {**values, "scaled": {key: value * scale for key, value in values.items()}}
            for name, values in tables.items()
        }

    def ratios(tables: dict[str, Moments]) -> dict[str, float | None]:
        return {name: absorption_ratio(values["std"], scale, positions["std"]) for name, values in tables.items()}

    absorption = ratios(tables)
    return {
        "scale": scale,
        "scaled_std": moments["std"] * scale,
        "xavier_std": sigma_x,
        "position_std": positions["std"],
        "absorption_ratio": absorption["pretrained"],
        "tables": with_scaled(tables),
        "positions": {"formula": formula, "length": length, **positions},
        "absorption_ratios": absorption,
        "all_rows": with_scaled(whole),
        "absorption_ratios_all_rows": ratios(whole),
    }


def with_drawn_rows(matched: Moments, xavier: Moments, size: int, drawn: int, padding: int) -> Moments:
    """Return the moments of a matrix of `size` elements: `drawn` by Xavier, `padding` zeros, the others `matched`.

    std is the root of the expected sample variance. With n = size, and S_1 and S_2 the sums of the matched elements and
    of their squares, E[sum x^2] = S_2 + drawn sigma_x^2 and E[(sum x)^2] = S_1^2 + drawn sigma_x^2.
    """
    count = size - drawn - padding
    first, variance = count * matched["mean"], drawn * xavier["std"] ** 2
    second = (count - 1) * matched["std"] ** 2 + count * matched["mean"] ** 2
    others = (xavier["min"], xavier["max"]) + ((0.0,) if padding else ())
    return {
        "min": min(matched["min"], *others),
        "max": max(matched["max"], *others),
        "mean": first / size,
        "std": math.sqrt((second + variance - (first**2 + variance) / size) / (size - 1)),
    }
