"""The options of `--embed-init`, and where a model's configuration keeps them.

fairseq has two kinds of configuration. Architectures of the old kind get a flat `Namespace` with every option of the
command line. Those with a dataclass (`transformer_lm*`) get a node of an OmegaConf tree; for them the options travel
in a section of the root, `embed_init_options`, as `ema` does.
"""

# no `from __future__ import annotations`: fairseq reads the types of the fields, not their names
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn, Optional

from fairseq.dataclass import FairseqDataclass
from omegaconf import DictConfig, OmegaConf, open_dict

from embinit_fairseq.checkpoints.reading import initialisation_record
from embinit_fairseq.errors import OptionError
from embinit_fairseq.init.alignment import RULES
from embinit_fairseq.init.draws import OOV_CHOICES
from embinit_fairseq.init.strategies import SCALED
from embinit_fairseq.vectors.open import SOURCES_HELP
from embinit_fairseq.vectors.table import MARKERS

SECTION = "embed_init_options"
_SECTIONS = (SECTION, "embed_init")  # where hydra may have our options


def slot_path(text: str) -> str:
    """A value of --embed-init-path; refuses what fairseq's configuration would change on its way to the model."""
    for mark, name in (("${", "${"), ("\\", "a backslash"), ("\n", "a line break")):
        if mark in text:
            raise ArgumentTypeError(
                f"{text!r}: paths with {name} do not survive fairseq's configuration; rename the file, or make a link"
            )
    return text


def _option(help: str, default: Any = None, **argparse_keywords: Any) -> Any:
    return field(default=default, metadata={"help": help, "argparse": argparse_keywords})


@dataclass
class EmbedInitOptions(FairseqDataclass):
    """Everything that `--embed-init STRATEGY` can be told."""

    embed_init_path: Optional[list[str]] = _option(
        f"where the vectors come from, per slot (encoder, decoder): {SOURCES_HELP}; several for one embedding matrix: "
        "concat:A,B (side by side) or avg:A,B (their mean), concat-l2: or avg-l2: of vectors of length 1. Slots "
        "without a path get xavier. Needed at step 0 only",
        type=slot_path,
        nargs="+",
        metavar="SLOT=PATH",
    )
    embed_init_format: Optional[list[str]] = _option(
        "format of the vectors, for all slots or one (default: recognised from the content)",
        nargs="+",
        metavar="[SLOT=]FORMAT",
    )
    embed_init_oov: str = _option(
        "rows that the vectors do not have: a Xavier draw, the mean of the found rows, a Gaussian with their mean and "
        "covariance, zeros, or the mean of the source's sub-word rows of that token, else a Xavier draw "
        "(default: %(default)s)",
        "xavier",
        choices=OOV_CHOICES,
    )
    embed_init_match: Optional[list[str]] = _option(
        "what may differ between a word of the dictionary and the word of its vector (default: all); the closest one "
        "is taken: exact, nothing; entities, what Moses' tokenizer writes (&apos;s and 's, @-@ and -); casefold, the "
        "case; marker, how segmenters spell the same piece of text (▁go and go, ing and ##ing)",
        nargs="+",
        choices=RULES,
    )
    embed_init_markers: str = _option(
        "how the dictionary spells sub-words (default: %(default)s, recognised from its symbols)",
        "auto",
        choices=MARKERS,
    )
    # a number as text; inside older checkpoints a float
    embed_init_std: Optional[str] = _option(
        "standard deviation to aim at: a number, a multiple of that of the Xavier matrix (0.25x), or the word xavier "
        f"(default: xavier; shuffled: that of the vectors). For {', '.join(SCALED)}",
        metavar="S",
    )
    embed_init_shuffle: str = _option(
        "what `shuffled` permutes: rows and columns of the found vectors, or all their elements (default: %(default)s)",
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
    embed_init_strict: bool = _option(
        "refuse vector files with broken lines instead of counting them", False, action="store_true"
    )
    #: written by us: the report, so that it is inside every checkpoint
    embed_init_record: Optional[str] = field(default=None, metadata={"help": None})

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the flags to a parser, or to a group of one.

        argparse's defaults are given: these are options of a registry, not of a legacy model.
        """
        for option in fields(cls):
            keywords = option.metadata.get("argparse")
            if keywords is not None:
                flag = "--" + option.name.replace("_", "-")
                parser.add_argument(flag, default=option.default, help=option.metadata["help"], **keywords)


#: what may be written for hydra: the strategy and its options, without what is written by us
NAMES = ("embed_init", *(option.name for option in fields(EmbedInitOptions) if "argparse" in option.metadata))


@dataclass
class InitRequest:
    """One `--embed-init` on a command line (strategy None: unset), with what else of the configuration matters."""

    strategy: Optional[str]
    options: EmbedInitOptions
    seed: int
    save_dir: Optional[str] = None
    restore_file: Optional[str] = None
    finetune_from_model: Optional[str] = None
    continue_once: Optional[str] = None
    checkpoint_suffix: str = ""
    no_save: bool = False
    reset_optimizer: bool = False
    ddp_backend: Optional[str] = None

    @property
    def record(self) -> Optional[dict[str, Any]]:
        """The report that the configuration of a checkpoint brings; None on a command line."""
        return initialisation_record({"args": Namespace(embed_init_record=self.options.embed_init_record)})

    @property
    def draw_seed(self) -> int:
        """The seed of the draws."""
        chosen = self.options.embed_init_seed
        return self.seed if chosen is None else chosen


def request_from(cfg: Any) -> InitRequest:
    """What a model's configuration asks for."""
    lookup = _lookup(cfg)
    strategy = lookup("embed_init", None)
    if strategy is not None and not isinstance(strategy, str):
        raise OptionError(f"--embed-init: expected the name of a strategy, found {strategy!r}")
    values: dict[str, Any] = {}
    for option in fields(EmbedInitOptions):
        if not option.name.startswith("_"):
            value = lookup(option.name, option.default, section=SECTION)
            values[option.name] = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    rest = {
        "save_dir": "checkpoint",
        "restore_file": "checkpoint",
        "finetune_from_model": "checkpoint",
        "continue_once": "checkpoint",
        "checkpoint_suffix": "checkpoint",
        "no_save": "checkpoint",
        "reset_optimizer": "checkpoint",
        "ddp_backend": "distributed_training",
    }
    defaults = {option.name: option.default for option in fields(InitRequest)}
    return InitRequest(
        strategy=strategy,
        options=EmbedInitOptions(**values),
        seed=int(lookup("seed", 1, section="common")),
        **{name: lookup(name, defaults[name], section=section) for name, section in rest.items()},
    )


def _lookup(cfg: Any):
    """A function (name, default, section) -> value for either kind of configuration."""
    if isinstance(cfg, Namespace):
        return lambda name, default, section=None: getattr(cfg, name, default)
    # the model's node hangs in fairseq's configuration; a node that hangs nowhere carries no options
    root: Any = cfg._get_parent() if isinstance(cfg, DictConfig) else None
    if root is None:
        return lambda name, default, section=None: default

    def look_up(name: str, default: Any, section: Optional[str] = None) -> Any:
        node = root if section is None else root.get(section)
        value = default if node is None else node.get(name, default)
        return default if value is None else value

    return look_up


# ---- fairseq-hydra-train --------------------------------------------------------------------------------------------
# On fairseq's command line argparse checks the options. hydra passes on whatever is written, wherever it is written.


def settle_spelling(cfg: Any) -> None:
    """Move what `fairseq-hydra-train` was told to where everything else reads it; cfg: the model's configuration.

    The options may stand at the root or in a section of fairseq's (`model`, `common`), there in our section, below
    `embed_init` or alone; a word may stand for a list of one, and {encoder: PATH} for [encoder=PATH]. Raises
    OptionError for a name that is no option, an option with two values or one that `fairseq-train` would refuse, and
    options without a strategy: nothing is ignored.
    """
    root: Any = cfg._get_parent() if isinstance(cfg, DictConfig) else None
    written = [] if root is None else list(_written(root, cfg))
    told: dict[str, Any] = {}
    for place, node, name in written:
        value = _plain(node[name])
        option = "embed_init" if name == "_name" else name
        if option not in NAMES:
            raise OptionError(f"{place}{name}: no such option of --embed-init; there are: {', '.join(NAMES)}")
        if told.setdefault(option, value) != value:
            raise OptionError(f"{place}{name}={value}: {option} is {told[option]} elsewhere; give it once")
    strategy = told.pop("embed_init", None)
    if told and strategy is None:
        raise OptionError(f"{', '.join(told)}: needs a strategy, such as embed_init=xavier")
    if strategy is not None:
        options = _Checks.read(told)
        with open_dict(root):
            for _, node, name in written:
                del node[name]
                parent = node._get_parent()  # models refuse what they do not know, even if it is empty
                if not node and parent is not root and parent is not None:
                    del parent[node._key()]
            root["embed_init"], root[SECTION] = strategy, options


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _written(root: Any, model: Any) -> Iterator[tuple[str, Any, str]]:
    """(place, node, key) of everything of ours that was written, in whatever section of fairseq's."""
    parts = {f"{name}.": root.get(name) for name in root if name not in _SECTIONS}
    for place, part in {"": root, **parts, "model.": model}.items():
        for name in list(part) if isinstance(part, DictConfig) else ():
            section = part.get(name) if name in _SECTIONS else None
            if isinstance(section, DictConfig):
                yield from _said(f"{place}{name}.", section, list(section))
            elif str(name).startswith("embed_init"):
                yield from _said(place, part, [name])


def _said(place: str, node: Any, names: list[str]) -> Iterator[tuple[str, Any, str]]:
    # our section has all defaults in it; elsewhere one that stands there was written
    defaults = {option.name: option.default for option in fields(EmbedInitOptions) if place == f"{SECTION}."}
    for name in names:
        if name != "embed_init_record" and _plain(node.get(name)) not in (None, [], defaults.get(name)):
            yield place, node, name


class _Checks(ArgumentParser):
    """argparse's checks, for values that hydra has read."""

    @classmethod
    def read(cls, told: dict[str, Any]) -> dict[str, Any]:
        """All options, as `fairseq-train` would have read them."""
        parser, words = cls(add_help=False), []
        EmbedInitOptions.add_args(parser)
        for name, value in told.items():
            flag, mark = "--" + name.replace("_", "-"), ":" if name == "embed_init_freeze" else "="
            if isinstance(value, dict):
                value = [f"{slot}{mark}{what}" for slot, what in value.items()]
            if isinstance(value, bool):
                words += [flag] * value
            else:
                words += [flag, *map(str, value)] if isinstance(value, list) else [f"{flag}={value}"]
        return vars(parser.parse_args(words))

    def error(self, message: str) -> NoReturn:
        raise OptionError(message)


def store_record(cfg: Any, record: str) -> None:
    """Put the report where fairseq saves it: into the configuration of every checkpoint."""
    if isinstance(cfg, Namespace):
        cfg.embed_init_record = record
        return
    root = cfg._get_parent()
    with open_dict(root):
        if root.get(SECTION) is None:
            root[SECTION] = {}
        root[SECTION]["embed_init_record"] = record
