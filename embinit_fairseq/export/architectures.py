"""What export-hf knows. An architecture is a module with the names of `Architecture`; to add one, write it and add a
line to `ARCHITECTURES`: reading, tokenizer, comparison, card and errors are fed from there.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from embinit_fairseq.export import bart, roberta, transformer, tupe

if TYPE_CHECKING:
    from torch import Tensor

    from embinit_fairseq.export.trained import Trained


class Architecture(Protocol):
    """One family of fairseq's models that transformers can hold, with code of ours or without.

    ARCHS: as messages name them. TAGS, NOTE: of the card. TASKS: whose inputs are known; (): all that load.
    CODE: modules of this package that opening it needs (trust_remote_code); (): transformers has the model.
    """

    @property
    def ARCHS(self) -> str: ...
    @property
    def TAGS(self) -> tuple[str, ...]: ...
    @property
    def TASKS(self) -> tuple[str, ...]: ...
    @property
    def CODE(self) -> tuple[str, ...]: ...
    @property
    def NOTE(self) -> str: ...

    def models(self) -> tuple[type, ...]:
        """Classes of fairseq or of this plugin; children of them are not meant."""

    def refused(self, trained: Trained) -> str | None:
        """The option that transformers has no counterpart of, and the remedy."""

    def describe(self, trained: Trained) -> str:
        """The kind of model in a few words."""

    def sizes(self, trained: Trained) -> str:
        """Layers, dimensions, heads, positions."""

    def settings(self, trained: Trained) -> dict[str, Any]:
        """config.json, without what all models have."""

    def generation(self, trained: Trained) -> dict[str, Any] | None:
        """generation_config.json; None for what generates nothing."""

    def weights(self, trained: Trained) -> dict[str, Tensor]:
        """The tensors under their exported names; tied ones once."""

    def prepare(self, trained: Trained) -> AbstractContextManager[None]:
        """In it, fairseq's model computes by the plainest of its kernels."""


ARCHITECTURES: tuple[Architecture, ...] = (tupe, roberta, transformer, bart)


def architecture_of(model: type | None) -> Architecture | None:
    """The one that has this class of models."""
    return next((known for known in ARCHITECTURES if model in known.models()), None)


def known_archs() -> str:
    """For messages."""
    return "; ".join(known.ARCHS for known in ARCHITECTURES)
