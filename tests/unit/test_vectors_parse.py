"""Numbers of text vectors: bit-equal to `numpy.float32(float(token))`, whatever their spelling."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embinit_fairseq.vectors.parse import RowParser, parse_number

DIGITS = st.text("0123456789", min_size=1, max_size=22)
FRACTION = st.text("0123456789", min_size=1, max_size=16)
SIGN = st.sampled_from(["", "-", "+"])
EXPONENT = st.builds("{}{}{}".format, st.sampled_from("eE"), SIGN, st.integers(0, 60))
DECIMAL = st.builds("{}{}.{}".format, SIGN, DIGITS, DIGITS)
TOKENS = st.one_of(
    st.builds("{}{}.{}".format, st.sampled_from(["", "-"]), st.sampled_from("0123"), FRACTION),
    DECIMAL,
    st.builds("{}{}".format, DECIMAL, EXPONENT),
    st.builds("{}{}".format, SIGN, DIGITS),
    st.builds("{}.{}".format, SIGN, DIGITS),
    st.builds("{}{}.".format, SIGN, DIGITS),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda x: str(np.float32(x))),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["-0", "-0.0", "-0.000000", "0.", ".5", "1e-45", "1.4e-45", "7.0e-46", "3.4028236e38", "1e39"]),
)  # fmt: skip


def expected(tokens: list[str]) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.array([np.float32(float(token)) for token in tokens], np.float32)


def assert_bits_equal(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_array_equal(np.ravel(found).view(np.uint32), np.ravel(wanted).view(np.uint32))


def parse(tokens: list[str]) -> tuple[np.ndarray, bool]:
    values, regular = RowParser(len(tokens)).parse([" ".join(tokens).encode()])
    return values[0], bool(regular[0])


@settings(max_examples=150)
@given(st.lists(TOKENS, min_size=1, max_size=40))
def test_any_spelling_equals_float(tokens):
    values, regular = parse(tokens)
    assert regular
    assert_bits_equal(values, expected(tokens))


@settings(max_examples=30)
@given(st.lists(TOKENS, min_size=1, max_size=12), st.integers(65, 200))
def test_many_spellings_at_a_time_equal_float(tokens, copies):
    """Above a number of unusual tokens the array path for long fractions is taken."""
    parser = RowParser(len(tokens))
    values, regular = parser.parse([" ".join(tokens).encode()] * copies)
    assert regular.all()
    assert_bits_equal(values, np.tile(expected(tokens), copies))


@pytest.mark.parametrize("digits", range(1, 18))
def test_every_fraction_length_equals_float(digits):
    generator = np.random.default_rng(digits)
    numbers = generator.integers(0, 10**digits, 3000)
    tokens = [f"{'-' * (i % 2)}{i % 10}.{number:0{digits}d}" for i, number in enumerate(numbers.tolist())]
    values, regular = parse(tokens)
    assert regular
    assert_bits_equal(values, expected(tokens))


def test_double_rounding_is_that_of_float():
    """Half-way between two float32 in float64, not in decimal: rounding the decimal at once would differ."""
    low = np.float32(1.0)
    middle = (float(low) + float(np.nextafter(low, np.float32(2)))) / 2
    tokens = [repr(middle), f"{middle:.20f}", f"{middle:.15f}", f"{middle:.17f}1"]
    values, _ = parse(tokens)
    assert_bits_equal(values, expected(tokens))


def test_long_mantissas_near_the_middle_of_two_float32_equal_float():
    """17 digits are more than float64 holds: an inexact mantissa would fall off the middle, to the wrong side."""
    low = np.random.default_rng(1).uniform(4, 8, 500).astype(np.float32)
    middle = [(Decimal(float(a)) + Decimal(float(b))) / 2 for a, b in zip(low, np.nextafter(low, np.float32(9)))]
    tokens = [f"{number:.16f}" for number in middle]
    values, regular = parse(tokens)
    assert regular
    assert_bits_equal(values, expected(tokens))


def test_rows_that_make_up_for_each_other_are_irregular():
    assert not RowParser(2).parse([b"0.5", b"0.1 0.2 0.3"])[1].any()


@pytest.mark.parametrize(
    "row",
    [
        *(b"0.1", b"0.1 0.2 0.3", b"0.1  0.2", b"0.1 ", b" 0.1 0.2", b"0.1\t0.2", b"0.1\x0b0.2", b"0.1 0.2\r", b""),
        *(b"0.1 0.x2", b"0.1 0..2", b"0.1 --0.2", b"0.1 0.2-", b"0.1 1_0", b"0.1 0x1p3", b"0.1 1e", b"0.1 -", b"0.1 ."),
        *(b"0.1 0.2\x00", b"0.1 0.1\xb2", b"0.1 0.\xd9\xa1", b"0.1 0.1234567\xb0", b"0.1 :.5", b"0.1 /.5"),
        *(b"0.1 0.12345678:", b"0.1 0.1234/678901", b"0.1 0.1234567/8901"),
    ],
)
def test_irregular_rows_are_told_apart_from_their_neighbours(row):
    values, regular = RowParser(2).parse([b"0.5 -0.25", row, b"1.5 2.5"] * 70)
    assert regular.tolist() == [True, False, True] * 70
    assert_bits_equal(values[regular], np.tile(np.float32([0.5, -0.25, 1.5, 2.5]), 70))


@given(st.binary(max_size=30).filter(lambda row: b"\n" not in row))
def test_random_bytes_are_numbers_or_irregular(row):
    values, regular = RowParser(2).parse([row])
    tokens = row.split(b" ")
    numbers = [parse_number(token) for token in tokens]
    assert regular[0] == (len(tokens) == 2 and None not in numbers)
    if regular[0]:
        assert_bits_equal(values, expected([token.decode() for token in tokens]))


@given(st.binary(max_size=8))
def test_a_number_is_what_float_takes_without_underscores_and_white_space(token):
    plain = token.isascii() and b"_" not in token and token == token.strip(b" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85")
    try:
        number = float(token) if plain else None
    except ValueError:
        number = None
    assert repr(parse_number(token)) == repr(number)


def test_the_scratch_space_follows_the_batch():
    parser = RowParser(3)
    for count in (1, 50, 2, 400, 7):
        rows = [b"%d.5 0.25 -%d.125" % (i % 10, i % 7) for i in range(count)]
        values, regular = parser.parse(rows)
        assert regular.all()
        assert values.shape == (count, 3)
        assert_bits_equal(values, expected([token for row in rows for token in row.decode().split()]))
