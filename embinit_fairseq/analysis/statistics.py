"""Numbers about sources of vectors as the table of one dictionary (Kim et al. 2024, Tables 2 and 6).

Letters: N rows and D columns of the model's table, sigma_p of the source's rows, sigma_x of a Xavier table.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from embinit_fairseq.analysis.transforms import position_table, xavier_std
from embinit_fairseq.errors import CoverageError, DataError, OptionError
from embinit_fairseq.init.alignment import Part, Reading
from embinit_fairseq.init.report import absorption_ratio, describe, xavier_bound
from embinit_fairseq.vectors.compressed import open_bytes
from embinit_fairseq.vectors.table import Origin, VectorReader, VectorTable
from embinit_fairseq.vocab.dictionary import Vocabulary, is_dictionary, read_dictionary

# ---- The most frequent words of a dictionary or of a plain text, as the rows of an embedding layer ------------------


def frequent_words(path: str, top: int | None = None) -> Vocabulary:
    """The `top` most frequent words (None: all) of a fairseq dict.txt or of a text (plain, gz, bz2, xz, zip).

    A file whose every line is `symbol count` is a dictionary; anything else is text, split at white space. Words are
    sorted by falling count, equal counts by first occurrence. The result has no special rows. Raises DataError for
    an empty file or bytes that are not UTF-8, OptionError for top < 1.
    """
    if top is not None and top < 1:
        raise OptionError(f"--top must be at least 1, not {top}")
    counts = _dictionary_counts(path) if is_dictionary(path) else _text_counts(path)
    if not counts:
        raise DataError(f"{path}: no words in it; give a fairseq dict.txt or a tokenised text")
    words = sorted(counts, key=lambda word: -counts[word])[:top]
    return Vocabulary(words, np.array([counts[word] for word in words]))


def are_a_dictionary(vectors: VectorReader) -> bool:
    """Was a dictionary opened as text vectors of one dimension?"""
    return vectors.dim == 1 and vectors.format == "glove" and is_dictionary(vectors.path)


def _dictionary_counts(path: str) -> dict[str, int]:
    vocabulary = read_dictionary(path)
    regular = np.flatnonzero(vocabulary.regular).tolist()
    return {vocabulary.symbols[row]: int(vocabulary.counts[row]) for row in regular}


def _text_counts(path: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    with open_bytes(path) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                counts.update(line.decode("utf-8").split())
            except UnicodeDecodeError as error:
                raise DataError(f"{path}, line {number}: not UTF-8 ({error.reason}); convert the text") from error
    return counts


# ----------------------------------------------------------------------------------------------------------------------

Moments = dict[str, float]


def table_statistics(
    source: VectorTable | Reading,
    vocabulary: Vocabulary | None = None,
    formula: str = "fairseq",
    length: int = 1024,
    missing: int = 20,
) -> dict[str, Any]:
    """Everything `embinit stats` reports, as one JSON object.

    source: all rows of a file, or (with their vocabulary) the rows that the words of a dictionary have in one file or
    several. Of a dictionary, `rows` is N, and min, max, mean, std are over the rows that were matched; without one, the
    coverage is None. xavier is the distribution's, not a draw: sigma = sqrt(2 / (N + D)). formula, length: the position
    encoding. Raises CoverageError if a file has no word of the dictionary.
    """
    record: dict[str, Any]
    if isinstance(source, VectorTable):
        rows, dim, given, padding = len(source.words), source.origin.dim, source.matrix, 0
        record = {**_origin(source.origin.path, source.origin), "rows": rows, "found": rows, "rows_by_rule": {}}
        record.update(coverage_types=None, coverage_tokens=None, missing=[])
    else:
        assert vocabulary is not None  # a Reading was read for one
        for part in source.parts:
            _check_coverage(part, len(vocabulary))
        rows, dim, given = len(vocabulary), source.source.vectors.shape[1], source.source.matched_values
        padding = 0 if vocabulary.pad_row is None else dim
        record = {**_sources(source), "rows": rows, **source.coverage, "rows_by_rule": source.rows_by_rule()}
        record["missing"] = missing_words(vocabulary, source.matched, missing)
    moments, filled = describe(given), rows * dim - given.size - padding
    return {**record, **moments, **_beside(moments, rows, dim, filled, padding, formula, length)}


def _check_coverage(part: Part, rows: int) -> None:
    if not part.coverage["found"]:
        raise CoverageError(
            f"{part.origin.path}: none of the {rows} rows of the dictionary is in it; check that language, case and "
            "tokenisation of dictionary and vectors are the same"
        )


def _origin(path: str, origin: Origin) -> dict[str, Any]:
    source = {"vectors": path, "format": origin.format, "source_rows": origin.rows, "dim": origin.dim}
    return {**source, "duplicates": origin.duplicates, "broken_lines": origin.broken_lines}


def _sources(reading: Reading) -> dict[str, Any]:
    """Of several files each with its own coverage and moments, and together the sums."""
    files = [
        {
            **_origin(path, part.origin),
            **part.coverage,
            "rows_by_rule": part.alignment.counts_by_rule(),
            **part.moments,
        }
        for path, part in zip(reading.spec.paths, reading.parts)
    ]
    if reading.spec.how is None:
        return _origin(reading.spec.paths[0], reading.parts[0].origin)
    together = {key: sum(file[key] for file in files) for key in ("source_rows", "duplicates", "broken_lines")}
    record = {
        "vectors": reading.spec.text,
        "format": reading.spec.method,
        "dim": reading.source.vectors.shape[1],
        **together,
    }
    return {**record, "found_in_all": reading.found_in_all, "sources": files}


def missing_words(vocabulary: Vocabulary, matched: np.ndarray, most: int) -> list[tuple[str, int]]:
    """The most frequent words without a vector, with their counts."""
    absent = np.flatnonzero(vocabulary.regular & ~matched)
    order = absent[np.argsort(-vocabulary.counts[absent], kind="stable")][:most]
    return [(vocabulary.symbols[row], int(vocabulary.counts[row])) for row in order]


def _beside(
    moments: Moments, rows: int, dim: int, filled: int, padding: int, formula: str, length: int
) -> dict[str, Any]:
    """The other lines of Table 6: Xavier, pretrained_xavier, both scaled by sqrt(D), and the positions.

    all_rows: of the whole N x D, whose `filled` elements that no vector gives are drawn like Xavier's.
    """
    scale, bound, sigma_x = math.sqrt(dim), xavier_bound(rows, dim), xavier_std(rows, dim)
    xavier = {"min": -bound, "max": bound, "mean": 0.0, "std": sigma_x}
    ratio = sigma_x / moments["std"] if moments["std"] > 0 else math.nan
    standardised = {key: (moments[key] - moments["mean"]) * ratio for key in ("min", "max", "mean")}
    standardised["std"] = sigma_x if moments["std"] > 0 else math.nan
    positions = describe(position_table(formula, length, dim))
    tables = {"xavier": xavier, "pretrained": moments, "pretrained_xavier": standardised}
    whole = {
        name: with_drawn_rows(tables[name], xavier, rows * dim, filled, padding)
        for name in ("pretrained", "pretrained_xavier")
        if filled
    }

    def ratios(named: dict[str, Moments]) -> dict[str, float | None]:
        return {name: absorption_ratio(values["std"], scale, positions["std"]) for name, values in named.items()}

    absorption = ratios(tables)
    return {
        "scale": scale,
        "scaled_std": moments["std"] * scale,
        "xavier_std": sigma_x,
        "position_std": positions["std"],
        "absorption_ratio": absorption["pretrained"],
        "tables": {name: {**values, "scaled": _times(values, scale)} for name, values in tables.items()},
        "positions": {"formula": formula, "length": length, **positions},
        "absorption_ratios": absorption,
        "all_rows": {name: {**values, "scaled": _times(values, scale)} for name, values in whole.items()},
        "absorption_ratios_all_rows": ratios(whole),
    }


def _times(moments: Moments, scale: float) -> Moments:
    return {key: value * scale for key, value in moments.items()}


def with_drawn_rows(matched: Moments, drawn: Moments, size: int, filled: int, padding: int) -> Moments:
    """Moments of a table of `size` elements: `filled` are drawn with mean 0, `padding` are 0, the rest is `matched`.

    std is the root of the sample variance that is expected of the draw: with n = size and S the sums over the matched
    elements, E[sum x^2] = S_2 + filled sigma^2 and E[(sum x)^2] = S_1^2 + filled sigma^2.
    """
    count = size - filled - padding
    first, variance = count * matched["mean"], filled * drawn["std"] ** 2
    second = (count - 1) * matched["std"] ** 2 + count * matched["mean"] ** 2
    others = (drawn["min"], drawn["max"]) + ((0.0,) if padding else ())
    return {
        "min": min(matched["min"], *others),
        "max": max(matched["max"], *others),
        "mean": first / size,
        "std": math.sqrt((second + variance - (first**2 + variance) / size) / (size - 1)),
    }
