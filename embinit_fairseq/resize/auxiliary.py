"""Hold the options of a method as flags, the same for `expand-vocab` and `transfer-vocab`."""

from __future__ import annotations

from dataclasses import dataclass

from embinit_fairseq.init.requirements import MethodOptions
from embinit_fairseq.resize.source import Request
from embinit_fairseq.vectors.open import SourceSpec


@dataclass(frozen=True, kw_only=True)
class MethodRequest(MethodOptions, Request):
    """Hold the options of a method, and those of every change of a vocabulary."""

    @staticmethod
    def spelled(option: str) -> str:
        """Return the flag of an option."""
        return f"--{option.replace('_', '-')}"


def files_of(spec: SourceSpec | None) -> dict[str, str]:
    """Return path -> path of the files of --vectors."""
    return {path: path for path in (spec.paths if spec is not None else ())}
