"""The numbers of Kim's Tables 2 and 6, against numpy and against the paper's own figures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from embinit_fairseq.analysis.statistics import table_statistics, with_drawn_rows
from embinit_fairseq.errors import CoverageError
from embinit_fairseq.init.alignment import read_sources
from embinit_fairseq.vectors.open import parse_source
from embinit_fairseq.vectors.table import Origin, VectorTable
from embinit_fairseq.vocab.dictionary import read_dictionary


def make_table(words: list[str], matrix: np.ndarray) -> VectorTable:
    return VectorTable(words, matrix.astype(np.float32), Origin("v.txt", "glove", 99, matrix.shape[1]))


class Reader:
    """A reader that has read."""

    def __init__(self, table: VectorTable) -> None:
        self.table, self.path, self.dim = table, table.origin.path, table.origin.dim

    def read(self, wanted):
        return self.table


def reading(table: VectorTable, vocabulary):
    return read_sources([Reader(table)], parse_source("v.txt"), vocabulary)


@pytest.fixture
def vocabulary(tmp_path):
    (tmp_path / "dict.txt").write_text("the 60\ncat 25\nHouse 10\nzyx 4\nqqq 1\n", encoding="utf-8")
    return read_dictionary(tmp_path / "dict.txt")


def test_over_the_found_rows_of_a_dictionary(vocabulary):
    matrix = np.random.default_rng(0).normal(0.2, 0.5, size=(4, 6))
    table = make_table(["unused", "house", "cat", "the"], matrix)
    record = table_statistics(reading(table, vocabulary), vocabulary, missing=1)
    found = matrix[1:].astype(np.float32).astype(np.float64)
    assert (record["rows"], record["dim"], record["found"], record["source_rows"]) == (9, 6, 3, 99)
    assert record["coverage_types"] == pytest.approx(3 / 5)
    assert record["coverage_tokens"] == pytest.approx(95 / 100)
    assert record["rows_by_rule"] == {"exact": 2, "casefold": 1}
    assert record["missing"] == [("zyx", 4)]
    for key, value in (("min", found.min()), ("max", found.max()), ("mean", found.mean()), ("std", found.std(ddof=1))):
        assert record[key] == pytest.approx(value), key


def test_the_lines_beside_the_source(vocabulary):
    matrix = np.random.default_rng(0).normal(0.2, 0.5, size=(3, 6))
    table = make_table(["house", "cat", "the"], matrix)
    record = table_statistics(reading(table, vocabulary), vocabulary, "kim", 40)
    found = table.matrix.astype(np.float64)
    sigma_x = math.sqrt(6 / (9 + 6)) / math.sqrt(3)
    standardised = (found - found.mean()) * sigma_x / found.std(ddof=1)
    tables = record["tables"]
    for key in ("min", "max", "mean", "std"):
        value = standardised.std(ddof=1) if key == "std" else getattr(standardised, key)()
        assert tables["pretrained_xavier"][key] == pytest.approx(value, abs=1e-9)
        assert tables["pretrained"]["scaled"][key] == pytest.approx(record[key] * math.sqrt(6))
    assert tables["xavier"]["max"] == pytest.approx(math.sqrt(6 / 15))
    assert record["absorption_ratio"] == pytest.approx(record["std"] * math.sqrt(6) / record["positions"]["std"])
    assert record["absorption_ratios"]["xavier"] == pytest.approx(sigma_x * math.sqrt(6) / record["positions"]["std"])


def test_all_rows_have_the_moments_of_a_table_that_is_filled_with_a_draw(vocabulary):
    """Against 4,000 tables that are filled: two rows with a vector, six drawn rows, one of padding."""
    matrix = np.random.default_rng(0).normal(0.2, 0.5, size=(2, 6)).astype(np.float32)
    table = make_table(["cat", "the"], matrix)
    record = table_statistics(reading(table, vocabulary), vocabulary)
    bound = math.sqrt(6 / (9 + 6))
    drawn = np.random.default_rng(1).uniform(-bound, bound, (4000, 9, 6))
    drawn[:, :2], drawn[:, 2] = matrix, 0
    whole = record["all_rows"]["pretrained"]
    assert whole["mean"] == pytest.approx(matrix.sum(dtype=np.float64) / 54)
    assert whole["std"] ** 2 == pytest.approx(drawn.reshape(4000, -1).var(axis=1, ddof=1).mean(), rel=0.005)
    assert (whole["min"], whole["max"]) == (min(matrix.min(), -bound), max(matrix.max(), bound))
    expected = whole["std"] * math.sqrt(6) / record["positions"]["std"]
    assert record["absorption_ratios_all_rows"]["pretrained"] == pytest.approx(expected)


def test_nothing_drawn_is_the_matrix_itself():
    matrix = np.random.default_rng(0).normal(0.2, 0.5, size=(5, 6))
    moments = {"min": matrix.min(), "max": matrix.max(), "mean": matrix.mean(), "std": matrix.std(ddof=1)}
    padded = np.concatenate([matrix, np.zeros((1, 6))])
    got = with_drawn_rows(moments, {"min": 0.0, "max": 0.0, "mean": 0.0, "std": 0.0}, 36, 0, 6)
    assert got["mean"] == pytest.approx(padded.mean())
    assert got["std"] == pytest.approx(padded.std(ddof=1))


def test_where_every_row_has_a_vector_the_whole_matrix_is_not_said_again():
    record = table_statistics(make_table(["a", "b"], np.array([[1.0, 2.0], [3.0, 6.0]])))
    assert record["all_rows"] == {}


def test_kims_table_6():
    """The paper's figures, at N = 7.8k: the encoder's vocabulary (its Table 5), not the 5,893 of Table 6's caption."""
    table = make_table([f"w{row}" for row in range(7800)], np.zeros((7800, 300)))
    table.matrix[::2], table.matrix[1::2] = 0.369, -0.369
    record = table_statistics(table, formula="vaswani", length=5000)
    xavier = record["tables"]["xavier"]
    assert xavier["max"] == pytest.approx(0.027, abs=0.0005)
    assert xavier["std"] == pytest.approx(0.016, abs=0.0005)
    assert xavier["scaled"]["max"] == pytest.approx(0.47, abs=0.005)
    assert xavier["scaled"]["std"] == pytest.approx(0.27, abs=0.005)
    assert record["scaled_std"] == pytest.approx(6.39, abs=0.005)
    assert record["positions"]["mean"] == pytest.approx(0.131, abs=0.0005)


def test_without_a_dictionary_all_rows_count():
    record = table_statistics(make_table(["a", "b"], np.array([[1.0, 2.0], [3.0, 6.0]])))
    assert (record["rows"], record["found"], record["coverage_types"]) == (2, 2, None)
    assert (record["min"], record["max"], record["mean"]) == (1.0, 6.0, 3.0)


def test_nothing_found(vocabulary):
    table = make_table(["nothing"], np.ones((1, 4)))
    with pytest.raises(CoverageError, match=r"v\.txt"):
        table_statistics(reading(table, vocabulary), vocabulary)


def test_constant_vectors_have_no_standardised_form():
    record = table_statistics(make_table(["a", "b"], np.ones((2, 4))))
    assert record["std"] == 0.0
    assert math.isnan(record["tables"]["pretrained_xavier"]["std"])
