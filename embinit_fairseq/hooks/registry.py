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

import fairseq.dataclass.initialize
import fairseq.dataclass.utils
import numpy as np
from fairseq.registry import REGISTRIES, setup_registry
from hydra.core.config_store import ConfigStore

from embinit_fairseq.hooks.options import NAMES, SECTION, EmbedInitOptions
from embinit_fairseq.init.draws import Draws
from embinit_fairseq.init.strategies import STRATEGIES, Source, Strategy


class EmbedInit:
    """A strategy.

    needs_source: does it want vectors? fills: are there rows without a vector to fill (`--embed-init-oov`)?
    scaled: does `--embed-init-std` apply? always_scaled: without it, too, the values are moved to a sigma.
    """

    needs_source = False
    fills = False
    scaled = False
    always_scaled = True

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        """Every strategy takes the same options."""
        EmbedInitOptions.add_args(parser)

    def table(self, source: Source | None, draws: Draws, options: EmbedInitOptions) -> np.ndarray:
        """The (N, D) float32 embedding matrix. source is None exactly if `needs_source` is false."""
        raise NotImplementedError


build_embed_init, register_embed_init, EMBED_INIT_REGISTRY, _ = setup_registry("--embed-init", base_class=EmbedInit)


def _register(name: str, strategy: Strategy) -> None:
    """One of our own strategies as a class, which is what fairseq's registries hold; each needs a name of its own."""

    def table(self: EmbedInit, source: Source | None, draws: Draws, options: EmbedInitOptions) -> np.ndarray:
        return strategy.rule_for(options.embed_init_std is not None, options.embed_init_shuffle)(source, draws)

    told = {key: getattr(strategy, key) for key in ("needs_source", "fills", "scaled", "always_scaled")}
    register_embed_init(name)(type(f"EmbedInit_{name}", (EmbedInit,), {**told, "table": table}))


for _name, _strategy in STRATEGIES.items():
    _register(_name, _strategy)


def extend_config() -> None:
    """Tell fairseq's root configuration about our keys.

    hydra 1.3 refuses overrides of keys that the stored `FairseqConfig` does not have, and `FairseqConfig` is fixed;
    so a subclass with the missing fields takes its place: for the function that turns command-line arguments into
    overrides, and for `fairseq-hydra-train`, which stores the class once more and reads what people write. Calling it
    again is harmless.
    """
    utils, initialize = fairseq.dataclass.utils, fairseq.dataclass.initialize
    utils.FairseqConfig = _extended(utils.FairseqConfig, EmbedInitOptions, field(default_factory=EmbedInitOptions))
    initialize.FairseqConfig = _extended(initialize.FairseqConfig, _AsWritten, field(default=_AsWritten()))
    ConfigStore.instance().store(name="config", node=utils.FairseqConfig)


#: our section as people write it for hydra, of any types and with the strategy in it: see `settle_spelling`
_AsWritten: Any = make_dataclass("EmbedInitSection", [(name, Any, None) for name in NAMES], eq=False)


def _extended(known: Any, section: Any, default: Any) -> Any:
    """The class with a field for every registry and one for our section; itself where it has them."""
    have = known.__dataclass_fields__
    extra: list[Any] = [(name, Any, None) for name in REGISTRIES if name not in have]
    if SECTION not in have:
        extra.append((SECTION, section, default))
    if not extra:
        return known
    extended: Any = make_dataclass("FairseqConfig", extra, bases=(known,), namespace={"__doc__": known.__doc__})
    extended.__hash__ = object.__hash__
    return extended
