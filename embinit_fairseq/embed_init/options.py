"""Define the options of `--embed-init`, the registry of its strategies, and their place in fairseq's configuration.

A strategy of your own:

    from embinit_fairseq.embed_init.options import EmbedInit, register_embed_init

    @register_embed_init("ones")
    class Ones(EmbedInit):
        def table(self, source, draws, options):
            return np.ones((draws.rows, draws.dim), dtype=np.float32)
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
from argparse import ArgumentParser
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, Optional

import fairseq.dataclass.initialize
import fairseq.dataclass.utils
import numpy as np
from fairseq.dataclass import FairseqDataclass
from fairseq.registry import REGISTRIES, setup_registry
from hydra.core.config_store import ConfigStore

from embinit_fairseq.init.alignment import RULES
from embinit_fairseq.init.draws import Draws
from embinit_fairseq.init.strategies import OOV_CHOICES, SCALED, STRATEGIES, Source, Strategy
from embinit_fairseq.vectors.open import SOURCES_HELP
from embinit_fairseq.vectors.table import MARKERS

#: section of fairseq's configuration with the options
SECTION = "embed_init_options"


def flag_of(name: str) -> str:
    """Return the flag of an option: `embed_init_seed` -> `--embed-init-seed`."""
    return "--" + name.replace("_", "-")


def _option(help: str, default: Any = None, **argparse_keywords: Any) -> Any:
    return field(default=default, metadata={"help": help, "argparse": argparse_keywords})


@dataclass
class EmbedInitOptions(FairseqDataclass):
    """Options of `--embed-init STRATEGY`."""

    embed_init_path: Optional[list[str]] = _option(
        f"vectors for each slot (encoder, decoder): {SOURCES_HELP}; several for one embedding matrix: concat:A,B (side "
        "by side) or avg:A,B (their mean), concat-l2: or avg-l2: of vectors of length 1. Slots without a path get "
        "xavier. Read at the start of a training only",
        nargs="+",
        metavar="SLOT=PATH",
    )
    embed_init_format: Optional[list[str]] = _option(
        "format of the vectors, for all slots or one (default: recognised from the content)",
        nargs="+",
        metavar="[SLOT=]FORMAT",
    )
    embed_init_oov: str = _option(
        "rows without a vector: a Xavier draw, the mean of the matched rows, a Gaussian with their mean and "
        "covariance, zeros, or the mean of the vectors of the token's subwords, else a Xavier draw "
        "(default: %(default)s)",
        "xavier",
        choices=OOV_CHOICES,
    )
    embed_init_match: Optional[list[str]] = _option(
        "allowed differences between a word of the dictionary and the word of its vector (default: all); the closest "
        "word is taken: exact, none; entities, the spelling of Moses' tokenizer (&apos;s and 's, @-@ and -); casefold, "
        "the case; marker, the spelling of a segmenter (▁go and go, ing and ##ing); normalised, what the tokenizer of "
        "a Hugging Face folder changes (accents, NFKC); label, language or part of speech (/c/de/go, de:go, go_VERB); "
        "digits, masks of digits (#### for 1999)",
        nargs="+",
        choices=RULES,
    )
    embed_init_markers: str = _option(
        "how the dictionary spells subwords (default: %(default)s, recognised from its symbols)",
        "auto",
        choices=MARKERS,
    )
    # a number as text; in older checkpoints a float
    embed_init_std: Optional[str] = _option(
        "standard deviation of the result: a number, a multiple of that of the Xavier matrix (0.25x), or the word "
        f"xavier (default: xavier; shuffled: that of the vectors). For {', '.join(SCALED)}",
        metavar="S",
    )
    embed_init_shuffle: str = _option(
        "permute the rows and columns of the matched vectors, or all their elements; for shuffled "
        "(default: %(default)s)",
        "rows",
        choices=("rows", "elements"),
    )
    embed_init_freeze: Optional[list[str]] = _option(
        "embedding matrices that are not trained: all of a slot, only the matched rows (SLOT:known), or until an "
        "update (SLOT:1000); both: SLOT:known:1000",
        nargs="+",
        metavar="SLOT[:known][:UPDATES]",
    )
    embed_init_seed: Optional[int] = _option("seed of the draws (default: --seed)", type=int, metavar="N")
    embed_init_lr_scale: Optional[str] = _option(
        "learning rate of the embedding matrices, as a multiple of --lr: a number, or `sigma` for the ratio of their "
        "standard deviation to that of Xavier's; needs --optimizer fused_adam",
        metavar="F",
    )
    embed_init_strict: bool = _option(
        "refuse vector files with broken lines instead of counting them", False, action="store_true"
    )
    #: the report as JSON, written by the plugin, so that it is inside every checkpoint
    embed_init_record: Optional[str] = field(default=None, metadata={"help": None})
    #: `preparation.json` of the data, also written by the plugin
    preparation_record: Optional[str] = field(default=None, metadata={"help": None})

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the flags, with argparse's defaults, to a parser or to a group of one."""
        for option in fields(cls):
            if "argparse" in option.metadata:
                keywords = option.metadata["argparse"]
                parser.add_argument(
                    flag_of(option.name), default=option.default, help=option.metadata["help"], **keywords
                )


class EmbedInit:
    """A strategy in fairseq's registry; it has the attributes of `init.strategies.Strategy`."""

    needs_source = False
    fills = False
    scaled = False
    always_scaled = True
    shuffles = False

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        """Add the options, which are the same for all strategies."""
        EmbedInitOptions.add_args(parser)

    def table(self, source: Optional[Source], draws: Draws, options: EmbedInitOptions) -> np.ndarray:
        """Return the (N, D) float32 embedding matrix; `source` is None exactly if `needs_source` is false."""
        raise NotImplementedError


build_embed_init, register_embed_init, EMBED_INIT_REGISTRY, _ = setup_registry("--embed-init", base_class=EmbedInit)


def _register(name: str, strategy: Strategy) -> None:
    """Register a strategy of `init.strategies` as a class, as fairseq's registries need it."""

    def table(self: EmbedInit, source: Optional[Source], draws: Draws, options: EmbedInitOptions) -> np.ndarray:
        return strategy.rule_for(options.embed_init_std is not None, options.embed_init_shuffle)(source, draws)

    attributes = {**vars(strategy), "shuffles": strategy.shuffles, "table": table}
    register_embed_init(name)(type(f"EmbedInit_{name}", (EmbedInit,), attributes))


for _name, _strategy in STRATEGIES.items():
    _register(_name, _strategy)


def extend_config() -> None:
    """Add `embed_init` and the section of its options to fairseq's root configuration.

    hydra 1.3 refuses keys that the stored `FairseqConfig` does not have. A subclass with the further fields replaces
    it for the function that turns command-line arguments into overrides, and for `fairseq-hydra-train`.
    """
    config = fairseq.dataclass.utils.FairseqConfig
    extra: list[Any] = [(name, Any, None) for name in REGISTRIES if name not in config.__dataclass_fields__]
    if SECTION not in config.__dataclass_fields__:
        # fairseq stores a field's `default` for hydra, and dataclasses refuse one that cannot be hashed
        section: Any = make_dataclass(
            "EmbedInitSection", [], bases=(EmbedInitOptions,), eq=False, namespace={"__hash__": object.__hash__}
        )
        extra.append((SECTION, section, field(default=section())))
    if not extra:
        return
    extended: Any = make_dataclass("FairseqConfig", extra, bases=(config,), namespace={"__doc__": config.__doc__})
    extended.__hash__ = object.__hash__
    fairseq.dataclass.utils.FairseqConfig = fairseq.dataclass.initialize.FairseqConfig = extended
    ConfigStore.instance().store(name="config", node=extended)
