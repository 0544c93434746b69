"""`--embed-init`: a fairseq registry, open to strategies of others.

from embinit_fairseq.hooks.registry import EmbedInit, register_embed_init

@register_embed_init("ones")
class Ones(EmbedInit):
    def table(self, source, draws, options):
        return np.ones((draws.rows, draws.dim), dtype=np.float32)
"""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import field, make_dataclass
from typing import Any

import fairseq.dataclass.utils
import numpy as np
from fairseq.dataclass.configs import FairseqConfig
from fairseq.registry import REGISTRIES, setup_registry
from hydra.core.config_store import ConfigStore

from embinit_fairseq.hooks.options import SECTION, EmbedInitOptions
from embinit_fairseq.init import strategies
from embinit_fairseq.init.draws import Draws
from embinit_fairseq.init.strategies import Source


class EmbedInit:
    """A strategy.

    needs_source: does it want vectors? fills: are there rows without a vector to fill (`--embed-init-oov`)?
    scaled: does `--embed-init-std` apply?
    """

    needs_source = False
    fills = False
    scaled = False

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        """Every strategy takes the same options."""
        EmbedInitOptions.add_args(parser)

    def table(self, source: Source | None, draws: Draws, options: EmbedInitOptions) -> np.ndarray:
        """The (N, D) float32 table. source is None exactly if `needs_source` is false."""
        raise NotImplementedError


build_embed_init, register_embed_init, EMBED_INIT_REGISTRY, _ = setup_registry("--embed-init", base_class=EmbedInit)


@register_embed_init("xavier")
class Xavier(EmbedInit):
    """Kim 3.1."""

    scaled = True

    def table(self, source, draws, options):
        return strategies.xavier(source, draws)


@register_embed_init("pretrained")
class Pretrained(EmbedInit):
    """Kim 3.2, 3.3."""

    needs_source = True
    fills = True

    def table(self, source, draws, options):
        return strategies.pretrained(source, draws)


@register_embed_init("pretrained_xavier")
class PretrainedXavier(EmbedInit):
    """Kim eq. 1."""

    needs_source = True
    fills = True
    scaled = True

    def table(self, source, draws, options):
        return strategies.pretrained_xavier(source, draws)


@register_embed_init("shuffled")
class Shuffled(EmbedInit):
    """Kim 3.4."""

    needs_source = True
    fills = True

    def table(self, source, draws, options):
        if options.embed_init_shuffle == "elements":
            return strategies.shuffled_elements(source, draws)
        return strategies.shuffled(source, draws)


@register_embed_init("xavier_pretrained")
class XavierPretrained(EmbedInit):
    """Kim eq. 4."""

    needs_source = True

    def table(self, source, draws, options):
        return strategies.xavier_pretrained(source, draws)


@register_embed_init("normal")
class Normal(EmbedInit):
    """fairseq's own law."""

    def table(self, source, draws, options):
        return strategies.normal(source, draws)


def extend_config() -> None:
    """Tell fairseq's root configuration about our keys.

    hydra 1.3 refuses overrides of keys that the stored `FairseqConfig` does not have, and `FairseqConfig` is fixed;
    so a subclass with the missing fields takes its place, for hydra and for the function that turns command-line
    arguments into overrides. Calling it again is harmless.
    """
    known = fairseq.dataclass.utils.FairseqConfig
    have = known.__dataclass_fields__
    extra: list[Any] = [(name, Any, None) for name in REGISTRIES if name not in have]
    if SECTION not in have:
        extra.append((SECTION, EmbedInitOptions, field(default_factory=EmbedInitOptions)))
    if extra:
        known = make_dataclass("FairseqConfig", extra, bases=(known,), namespace={"__doc__": FairseqConfig.__doc__})
        known.__hash__ = object.__hash__
        fairseq.dataclass.utils.FairseqConfig = known
    ConfigStore.instance().store(name="config", node=known)
