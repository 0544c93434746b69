"""Define the errors that a user can act on: a message names the file, line or flag and the remedy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator


class EmbinitError(ValueError):
    """Base of every error this package raises on purpose."""


class VectorFileError(EmbinitError):
    """A vector file cannot be read: missing, empty, truncated, malformed or of an unknown format."""


class DimensionError(EmbinitError):
    """The dimension of the vectors differs from that of the model's embedding matrix.

    Args:
        fact: the difference, without a remedy, for callers that add another remedy.
        dim: dimension of the vectors.
        remedy: advice for the user.
    """

    def __init__(self, fact: str, dim: int, remedy: str = "choose vectors of the expected dimension") -> None:
        super().__init__(f"{fact}. Vectors are never cut or padded: {remedy}.")
        self.fact, self.dim = fact, dim


class OptionError(EmbinitError):
    """An option has a value that cannot be used, alone or together with another option."""


class SlotError(OptionError):
    """An option names a slot that the model does not have, or the model has no usable slot."""


class CoverageError(EmbinitError):
    """The vectors cover none of the dictionary."""


class CheckpointError(EmbinitError):
    """A checkpoint cannot be read safely or lacks an expected part."""


class DataError(EmbinitError):
    """A text, dictionary or result file is malformed or does not fit its neighbours."""


class OutputError(EmbinitError):
    """A file or folder cannot be written: the disk is full, the place is taken or may not be written to."""


def exhausted(error: BaseException) -> str | None:
    """Return fact and remedy if `error` says that memory or Python's stack ran out, else None."""
    if isinstance(error, RecursionError):
        return "a file is nested too deeply to be read: it is damaged. Copy or download its files again."
    text = str(error)  # torch has a class of its own for GPUs only
    if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text:
        return (
            f"memory ran out ({text.splitlines()[0][:200] if text else type(error).__name__}). End other programs, "
            "give smaller files, or take a machine with more memory."
        )
    return None


@contextlib.contextmanager
def named_by(flag: str) -> Iterator[None]:
    """Put the option that names a file in front of the errors of the block, which begin with the file.

    Args:
        flag: the option with its separator: `--vectors `, `--embed-init-path encoder=`.
    """
    try:
        yield
    except EmbinitError as error:
        error.args = (f"{flag}{error}",)
        if isinstance(error, DimensionError):
            error.fact = f"{flag}{error.fact}"
        raise


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """Turn an EmbinitError of a program's body into one line on standard error and exit code 1."""
    try:
        yield
    except EmbinitError as error:
        raise SystemExit(f"error: {error}") from None


def check_heads(heads: int, dim: int, heads_name: str, dim_name: str) -> None:
    """Raise OptionError, which lists the divisors, if the number of attention heads does not divide a dimension."""
    if heads < 1 or dim % heads:
        divisors = ", ".join(str(number) for number in range(1, 33) if dim % number == 0)
        raise OptionError(f"{heads_name} {heads} does not divide {dim_name} {dim}; numbers that do: {divisors}")


def listed(names: Iterable[object], most: int = 10, total: int | None = None) -> str:
    """Return the first names for a message: `a, b and 2,000 more`. total: number of all names, if more."""
    texts = [str(name) for name in names]
    more = (len(texts) if total is None else total) - len(texts[:most])
    return ", ".join(texts[:most]) + (f" and {more:,} more" if more else "")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, for messages: `1 row`, `2,000 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
