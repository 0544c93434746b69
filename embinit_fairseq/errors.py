"""Errors that a user can act on: each message names the file, line or flag and the remedy."""

from __future__ import annotations


class EmbinitError(ValueError):
    """Base of every error this package raises on purpose."""


class VectorFileError(EmbinitError):
    """A vector file cannot be read: missing, empty, truncated, malformed or of an unknown format."""


class DimensionError(EmbinitError):
    """The width of the vectors differs from the width of the model's table."""


class OptionError(EmbinitError):
    """An option has a value that cannot be used, alone or together with another option."""


class SlotError(OptionError):
    """An option names a slot that the model does not have, or the model has no usable slot."""


class CoverageError(EmbinitError):
    """The vectors cover none of the dictionary."""


class CheckpointError(EmbinitError):
    """A checkpoint cannot be read safely or does not hold what was expected."""


class DataError(EmbinitError):
    """A text, dictionary or result file is malformed or does not fit its neighbours."""


def counted(number: int, noun: str) -> str:
    """A number with its noun, for messages: `1 row`, `2,000 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
