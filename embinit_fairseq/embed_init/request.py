"""What `--embed-init` was asked to do, as one typed request, from either kind of fairseq's configurations.

Architectures of the old kind have a flat `Namespace` with all options of the command line. Those with a dataclass
(`transformer_lm*`), and all under `fairseq-hydra-train`, have a node of an OmegaConf tree; there the strategy is
`embed_init` at the root, and its options are in the section `embed_init_options`.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from embinit_fairseq.embed_init.options import EMBED_INIT_REGISTRY, SECTION, EmbedInit, EmbedInitOptions, flag_of
from embinit_fairseq.errors import OptionError
from embinit_fairseq.init.strategies import check_seed, parse_std

#: further options of fairseq that decide what to do, and their section
_SECTIONS = {
    "save_dir": "checkpoint",
    "restore_file": "checkpoint",
    "finetune_from_model": "checkpoint",
    "continue_once": "checkpoint",
    "checkpoint_suffix": "checkpoint",
    "no_save": "checkpoint",
    "reset_optimizer": "checkpoint",
    "ddp_backend": "distributed_training",
    "seed": "common",
}

#: options of fairseq that fill an embedding matrix, and whose
_STOCK_PATHS = {
    "encoder_embed_path": "encoder",
    "decoder_embed_path": "decoder",
    "pretrained_xlm_checkpoint": "encoder",
    "pretrained_mlm_checkpoint": "encoder",
    "load_pretrained_decoder_from": "decoder",
}


@dataclass(frozen=True)
class Freeze:
    """A value of `--embed-init-freeze`: SLOT[:known][:UPDATES]."""

    slot: str
    known: bool = False
    until: int | None = None

    @property
    def whole(self) -> bool:
        """Return True if the embedding matrix is never trained."""
        return not self.known and self.until is None

    def __str__(self) -> str:
        return self.slot + (":known" if self.known else "") + (f":{self.until}" if self.until is not None else "")

    @classmethod
    def parse(cls, text: str) -> Freeze:
        """Read a value of the flag; raise OptionError for another form."""
        slot, *rest = text.split(":")
        known = bool(rest) and rest[0] == "known"
        rest = rest[1:] if known else rest
        if not slot or len(rest) > 1 or (rest and not (rest[0].isascii() and rest[0].isdecimal())):
            raise OptionError(
                f"--embed-init-freeze {text}: expected SLOT, SLOT:known, SLOT:UPDATES or SLOT:known:UPDATES, "
                "for example encoder:known or encoder:1000"
            )
        return cls(slot, known, int(rest[0]) if rest else None)


@dataclass
class InitRequest:
    """One `--embed-init` (strategy None: not given) and fairseq's options that matter for it."""

    strategy: str | None
    options: EmbedInitOptions = field(default_factory=EmbedInitOptions)
    seed: int = 1
    save_dir: str | None = None
    restore_file: str | None = None
    finetune_from_model: str | None = None
    continue_once: str | None = None
    checkpoint_suffix: str = ""
    no_save: bool = False
    reset_optimizer: bool = False
    ddp_backend: str | None = None

    @property
    def draw_seed(self) -> int:
        """Return the seed of the draws."""
        chosen = self.options.embed_init_seed
        return self.seed if chosen is None else chosen

    @property
    def freezes(self) -> list[Freeze]:
        """Return the values of `--embed-init-freeze`."""
        return [Freeze.parse(text) for text in self.options.embed_init_freeze or ()]

    @property
    def embed_init(self) -> EmbedInit:
        """Return the strategy."""
        return EMBED_INIT_REGISTRY[self.strategy]()


def request_from(cfg: Any) -> InitRequest:
    """Return the request in a model's configuration, either kind."""
    root = cfg if isinstance(cfg, Namespace) else _root(cfg)
    if root is None:
        return InitRequest(None)

    def look_up(name: str, section: str | None, default: Any) -> Any:
        if isinstance(root, Namespace):
            return getattr(root, name, default)
        node = root if section is None else root.get(section)
        value = None if node is None else node.get(name)
        value = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        return default if value is None else value

    strategy = look_up("embed_init", None, None)
    if strategy is not None and not (isinstance(strategy, str) and strategy in EMBED_INIT_REGISTRY):
        raise OptionError(f"--embed-init {strategy}: no such strategy; there are: {', '.join(EMBED_INIT_REGISTRY)}")
    options = {option.name: look_up(option.name, SECTION, option.default) for option in _OPTIONS}
    defaults = {option.name: option.default for option in fields(InitRequest)}
    rest = {name: look_up(name, section, defaults[name]) for name, section in _SECTIONS.items()}
    return InitRequest(strategy, EmbedInitOptions(**options), **rest)


_OPTIONS = [option for option in fields(EmbedInitOptions) if not option.name.startswith("_")]


def _root(cfg: Any) -> Any:
    """Return the configuration that a model's node belongs to; None for a node alone, which carries no options."""
    return cfg._get_parent() if isinstance(cfg, DictConfig) else None


def check_request(cfg: Any, request: InitRequest) -> None:
    """Raise OptionError for options that contradict each other or that hydra would ignore."""
    _check_spelling(cfg, request)
    if request.strategy is None:
        return
    for option in _OPTIONS:
        value, choices = getattr(request.options, option.name), option.metadata.get("argparse", {}).get("choices")
        for chosen in value if isinstance(value, list) else [value]:
            if choices and chosen is not None and chosen not in choices:
                raise OptionError(f"{flag_of(option.name)} {chosen}: choose from {', '.join(choices)}")
    strategy, std, seed = request.embed_init, request.options.embed_init_std, request.options.embed_init_seed
    if std is not None and not strategy.scaled:
        scaled = ", ".join(name for name, other in EMBED_INIT_REGISTRY.items() if other.scaled)
        raise OptionError(
            f"--embed-init-std {std}: {request.strategy} keeps the sigma it has; drop the flag, or use --embed-init "
            f"with one of {scaled}"
        )
    parse_std(std, "--embed-init-std")
    if seed is not None:
        check_seed(seed, "--embed-init-seed")
    if request.ddp_backend == "fully_sharded":
        raise OptionError("--embed-init: --ddp-backend fully_sharded splits embedding matrices; use another backend")
    _refuse_stock_paths(cfg, request)


def _refuse_stock_paths(cfg: Any, request: InitRequest) -> None:
    for name, slot in _STOCK_PATHS.items():
        path = cfg.get(name) if isinstance(cfg, DictConfig) else getattr(cfg, name, None)
        if path:
            raise OptionError(
                f"{flag_of(name)} {path} and --embed-init {request.strategy} fill the same embedding matrix; keep one "
                f"of them (--embed-init pretrained --embed-init-path {slot}={path} takes the vectors as they are)"
            )


def _check_spelling(cfg: Any, request: InitRequest) -> None:
    """Raise OptionError for an option of `--embed-init` at a place where nothing reads it: `+key`, `model.key`, ..."""
    root = _root(cfg)
    if root is None:
        return
    names = {option.name for option in _OPTIONS}
    nodes = {"": root, **{f"{name}.": root.get(name) for name in root}, "model.": cfg}
    for place, key in _keys(nodes):
        expected = ("embed_init", SECTION) if place == "" else names if place == f"{SECTION}." else ()
        ours = key.startswith("embed_init") or (place == f"{SECTION}." and key != "_name")
        if ours and key not in expected:
            raise OptionError(
                f"{place}{key}: fairseq-hydra-train takes embed_init=STRATEGY and {SECTION}.NAME=VALUE, with NAME one "
                f"of {', '.join(sorted(names - {'embed_init_record'}))}"
            )
    names -= {"embed_init_record"}
    given = [o.name for o in _OPTIONS if o.name in names and getattr(request.options, o.name) != o.default]
    if given and request.strategy is None:
        raise OptionError(f"{', '.join(given)}: needs a strategy, such as embed_init=xavier")


def _keys(nodes: dict[str, Any]) -> Iterable[tuple[str, str]]:
    return ((place, str(key)) for place, node in nodes.items() if isinstance(node, DictConfig) for key in node)


def store_record(cfg: Any, record: str) -> None:
    """Put the report where fairseq saves it: into the configuration of every checkpoint."""
    if isinstance(cfg, Namespace):
        cfg.embed_init_record = record
        return
    root = _root(cfg)
    with open_dict(root):
        if root.get(SECTION) is None:
            root[SECTION] = {}
        root[SECTION]["embed_init_record"] = record
