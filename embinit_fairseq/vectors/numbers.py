"""Parse decimal numbers of vector files, many at a time, bit-equal to `numpy.float32(float(token))`.

Nearly all tokens look like `-0.24487`: a sign, one digit, a point, a few digits. Their digits are read eight at a time
in 64-bit words (Lemire 2021, "Number parsing at a gigabyte per second": SIMD within a register). Rounding is exact:
a mantissa below 2**53 and a power of ten up to 10**22 are both float64 values, so one division gives the correctly
rounded float64 (Clinger 1990), which is what `float(token)` is; float32 rounds that once more, as NumPy does.
Every other spelling is parsed by `float` itself.

Letters: R rows (lines), D numbers in each, T = R * D tokens.
"""

from __future__ import annotations

import re

import numpy as np

_NUMBER = re.compile(rb"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf(?:inity)?|nan))")
_POWERS = 10.0 ** np.arange(23)
_EXACT = 2.0**53
_SPACE, _NEWLINE, _MINUS, _POINT, _ZERO = b" \n-.0"
#: digits in one 64-bit word
_WORD_DIGITS = 8
#: bytes after the last token, since two words are loaded for it
_PADDING = bytes(3 * _WORD_DIGITS)

_ASCII_ZEROS = np.uint64(0x3030303030303030)
#: 10 + 0x76 sets the high bit of a byte, 9 + 0x76 does not
_ABOVE_NINE = np.uint64(0x7676767676767676)
_HIGH_BITS = np.uint64(0x8080808080808080)
_WORD_BITS = np.uint64(64)
_SIGN_BIT = np.uint32(31)
#: number of tokens above which arrays are faster than `float`
_MANY = 64
#: (multiplier, shift, mask) that join neighbouring digits to pairs, pairs to fours, fours to eight
_JOIN = tuple(
    (np.uint64(base << bits | 1), np.uint64(bits), np.uint64(mask))
    for base, bits, mask in (
        (10, 8, 0x00FF00FF00FF00FF),
        (100, 16, 0x0000FFFF0000FFFF),
        (10000, 32, 0x00000000FFFFFFFF),
    )
)


def parse_number(token: bytes) -> float | None:
    """Return the number that a token spells (NaN and infinity included), None if it is not a number.

    Stricter than `float`, which also takes `1_000` and surrounding control characters.
    """
    return float(token) if _NUMBER.fullmatch(token) else None


class RowParser:
    """Parse batches of rows of D numbers; keeps its scratch space, since new pages cost as much as the arithmetic."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._size = 0
        self._values = np.empty((0, dim), np.float32)

    def parse(self, rows: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """Parse rows of D numbers separated by single spaces.

        Args:
            rows: R lines without the word and without newline.

        Returns:
            values (R, D) float32, which the next call overwrites, and regular (R,) bool. If `regular` is False, the row
            has another number of fields, other separators or a field that is not a number, and its values mean nothing.
        """
        if len(rows) > len(self._values):
            self._values = np.empty((len(rows), self.dim), np.float32)
        values = self._values[: len(rows)]
        text, ends = self._split(rows)
        if ends is not None:
            return values, self._parse_all(text, ends, values)
        regular = np.fromiter((self._split([row])[1] is not None for row in rows), bool, len(rows))
        if regular.any():
            part, good = self.parse([row for row, fits in zip(rows, regular) if fits])
            values[regular] = part.copy()  # they share memory
            regular[regular] = good
        return values, regular

    def _split(self, rows: list[bytes]) -> tuple[bytes, np.ndarray | None]:
        """Join and pad the rows; return the text, and ends (T,), the offset after each token (None if irregular)."""
        text = b"\n".join([*rows, _PADDING])
        raw = np.frombuffer(text, np.uint8, len(text) - len(_PADDING))
        self._reserve(len(rows) * self.dim, len(raw))
        mask = self._mask[: len(raw)]
        ends = np.flatnonzero(np.less_equal(raw, _SPACE, out=mask))
        regular = (
            len(ends) == len(rows) * self.dim
            and np.count_nonzero(np.equal(raw, _SPACE, out=mask)) == len(rows) * (self.dim - 1)
            and bool((raw[ends[self.dim - 1 :: self.dim]] == _NEWLINE).all())
        )
        return text, ends if regular else None

    def _reserve(self, tokens: int, size: int) -> None:
        if tokens > self._size:
            self._size = tokens
            self._index = np.empty((5, tokens), np.int64)
            self._words = np.empty((3, tokens), np.uint64)
            self._bytes = np.empty((2, tokens), np.uint8)
            self._flags = np.empty((3, tokens), bool)
            self._bits = np.empty(tokens, np.uint32)
            self._real = np.empty((2, tokens), np.float64)
            self._mask = np.empty(size, bool)
        elif size > len(self._mask):
            self._mask = np.empty(size + size // 4, bool)

    def _parse_all(self, text: bytes, ends: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Fill values (R, D) with the tokens that end at `ends`; return regular (R,) bool."""
        starts = self._index[0, : len(ends)]
        starts[:1] = 0
        np.add(ends[:-1], 1, out=starts[1:])
        flat = values.reshape(-1)
        regular = np.ones(len(values), bool)
        easy = self._parse_easy(text, starts, ends, flat)
        hard = np.flatnonzero(~easy)
        if len(hard) > _MANY:
            hard = hard[~_parse_long(text, starts[hard], ends[hard], flat, hard)]
        for token in hard.tolist():
            number = parse_number(text[starts[token] : ends[token]])
            if number is None:
                regular[token // self.dim] = False
            else:
                with np.errstate(over="ignore"):
                    flat[token] = np.float32(number)
        return regular

    def _parse_easy(self, text: bytes, starts: np.ndarray, ends: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Parse the tokens spelled `-?d.d{1,8}` into `out` (T,) float32; return which tokens they are (T,) bool."""
        count = len(ends)
        _, at, length, index, shift = self._index[:, :count]
        byte, whole = self._bytes[:, :count]
        easy, minus, flag = self._flags[:, :count]
        raw = np.frombuffer(text, np.uint8)
        # The integer part: one digit after an optional minus, then a point.
        raw.take(starts, out=byte, mode="clip")
        np.equal(byte, _MINUS, out=minus)
        np.add(starts, minus, out=at)
        raw.take(at, out=whole, mode="clip")
        whole -= _ZERO
        np.less(whole, 10, out=easy)
        at += 1
        raw.take(at, out=byte, mode="clip")
        easy &= np.equal(byte, _POINT, out=flag)
        # The fraction: `length` digits, shifted to the upper end of a word so that bytes after the token fall off.
        at += 1
        np.subtract(ends, at, out=length)
        word = self._load(np.frombuffer(text, "<u8", len(text) // _WORD_DIGITS), at, index, shift)
        np.subtract(_WORD_DIGITS, length, out=shift)
        shift <<= 3
        bits = shift.view(np.uint64)
        easy &= np.less(bits, _WORD_BITS, out=flag)
        word <<= bits
        easy &= _join_digits(word, self._words[2, :count], flag)
        self._round(whole, word, length, minus, out)
        return easy

    def _load(self, aligned: np.ndarray, at: np.ndarray, index: np.ndarray, shift: np.ndarray) -> np.ndarray:
        """Return the eight bytes at each offset, from two aligned words, as values of digits."""
        word, upper = self._words[:2, : len(at)]
        np.right_shift(at, 3, out=index)
        aligned.take(index, out=word, mode="clip")
        index += 1
        aligned.take(index, out=upper, mode="clip")
        np.bitwise_and(at, 7, out=shift)
        shift <<= 3
        bits = shift.view(np.uint64)
        word >>= bits
        np.subtract(_WORD_BITS, bits, out=bits)
        upper <<= bits  # NumPy defines a shift by 64 as zero
        word |= upper
        word ^= _ASCII_ZEROS
        return word

    def _round(
        self, whole: np.ndarray, fraction: np.ndarray, length: np.ndarray, minus: np.ndarray, out: np.ndarray
    ) -> None:
        """Set out = float32(+-(whole + fraction / 10**length)), rounded as `float` rounds."""
        power, mantissa = self._real[:, : len(out)]
        _POWERS.take(length, out=power, mode="clip")
        np.multiply(whole, power, out=mantissa)
        mantissa += fraction.view(np.int64)
        np.divide(mantissa, power, out=out, casting="same_kind")
        sign = self._bits[: len(out)]
        np.left_shift(minus, _SIGN_BIT, out=sign, dtype=np.uint32)
        np.bitwise_xor(out.view(np.uint32), sign, out=out.view(np.uint32))  # also -0.0


def _join_digits(word: np.ndarray, spare: np.ndarray, flag: np.ndarray) -> np.ndarray:
    """Replace words of eight digits (lowest byte: first digit) by their number; return which were all digits."""
    np.add(word, _ABOVE_NINE, out=spare)
    spare |= word
    spare &= _HIGH_BITS
    np.equal(spare, 0, out=flag)
    for factor, bits, mask in _JOIN:
        word *= factor
        word >>= bits
        word &= mask
    return flag


def _parse_long(text: bytes, starts: np.ndarray, ends: np.ndarray, out: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Parse the tokens spelled `-?d.d{9,16}` whose digits are a number below 2**53 (float32 printed in full).

    Args:
        text: all tokens.
        starts, ends: (K,) offsets of the tokens.
        out: (T,) float32, filled at `where` (K,).

    Returns:
        Which tokens were parsed, (K,) bool.
    """
    raw = np.frombuffer(text, np.uint8)
    minus = raw[starts] == _MINUS
    whole = raw[starts + minus] - np.uint8(_ZERO)
    first = starts + minus + 2
    length = ends - first
    done = (whole < 10) & (raw[first - 1] == _POINT) & (length > _WORD_DIGITS) & (length <= 2 * _WORD_DIGITS)
    picked = np.flatnonzero(done)
    first, length, last = first[picked], length[picked], ends[picked]
    halves = []
    for at, missing in ((first, 2 * _WORD_DIGITS - length), (last - _WORD_DIGITS, np.zeros_like(length))):
        digits = raw[at[:, None] + np.arange(_WORD_DIGITS)].reshape(-1).view("<u8").astype(np.uint64)
        digits ^= _ASCII_ZEROS
        digits <<= (missing << 3).astype(np.uint64)
        done[picked] &= _join_digits(digits, np.empty_like(digits), np.empty(len(digits), bool))
        halves.append(digits.astype(np.float64))
    power = _POWERS[length]
    mantissa = whole[picked] * power + halves[0] * _POWERS[_WORD_DIGITS] + halves[1]
    done[picked] &= mantissa < _EXACT
    number = np.where(minus[picked], -1.0, 1.0) * (mantissa / power)
    keep = done[picked]
    out[where[done]] = number[keep].astype(np.float32)
    return done
