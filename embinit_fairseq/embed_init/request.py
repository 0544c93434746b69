"""Read the options of `--embed-init` as one typed request, from either kind of fairseq's configurations.

Architectures of the old kind have a flat `Namespace` with all options of the command line. Those with a dataclass
(`transformer_lm*`), and all under `fairseq-hydra-train`, have a node of an OmegaConf tree; there the strategy is
`embed_init` at the root, and its options are in the section `embed_init_options`.
"""

from __future__ import annotations

import math
import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from embinit_fairseq.embed_init.options import EMBED_INIT_REGISTRY, SECTION, EmbedInit, EmbedInitOptions, flag_of
from embinit_fairseq.errors import OptionError
from embinit_fairseq.init.draws import check_seed, parse_std

_OPTIONS = [option for option in fields(EmbedInitOptions) if not option.name.startswith("_")]
#: options of fairseq that fill an embedding matrix -> its slot
_STOCK_PATHS = {
    "encoder_embed_path": "encoder",
    "decoder_embed_path": "decoder",
    "pretrained_xlm_checkpoint": "encoder",
    "pretrained_mlm_checkpoint": "encoder",
    "load_pretrained_decoder_from": "decoder",
}


def number_in(text: Any) -> float:
    """Return the number in a text; nan for other texts."""
    try:
        return float(text)
    except ValueError:
        return math.nan


@dataclass(frozen=True)
class Freeze:
    """Hold a value of `--embed-init-freeze`: SLOT[:known][:UPDATES]."""

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
        """Parse a value of the flag; raise OptionError for another form."""
        parts = re.fullmatch("([^:]+)(:known)?(?::([0-9]+))?", text)
        if parts is None:
            raise OptionError(
                f"--embed-init-freeze {text}: expected SLOT, SLOT:known, SLOT:UPDATES or SLOT:known:UPDATES, "
                "for example encoder:known or encoder:1000"
            )
        slot, known, until = parts.groups()
        return cls(slot, known is not None, None if until is None else int(until))


def _of(section: str | None, default: Any = None) -> Any:
    """Return a field of the request for an option of fairseq, in this section of its configuration or at its root."""
    return field(default=default, metadata={"section": section})


@dataclass
class InitRequest:
    """Hold one `--embed-init` (strategy None: not given), and the options of fairseq that matter for it."""

    strategy: str | None
    options: EmbedInitOptions = field(default_factory=EmbedInitOptions)
    seed: int = _of("common", 1)
    save_dir: str | None = _of("checkpoint")
    restore_file: str | None = _of("checkpoint")
    finetune_from_model: str | None = _of("checkpoint")
    continue_once: str | None = _of("checkpoint")
    checkpoint_suffix: str = _of("checkpoint", "")
    no_save: bool = _of("checkpoint", False)
    reset_optimizer: bool = _of("checkpoint", False)
    ddp_backend: str | None = _of("distributed_training")
    optimizer: Any = _of(None)
    fp16: bool = _of("common", False)
    bf16: bool = _of("common", False)

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
    further = [option for option in fields(InitRequest) if "section" in option.metadata]
    rest = {option.name: look_up(option.name, option.metadata["section"], option.default) for option in further}
    return InitRequest(strategy, EmbedInitOptions(**options), **rest)


def _root(cfg: Any) -> Any:
    """Return the configuration that a model's node belongs to; None for a node alone, which carries no options."""
    return cfg._get_parent() if isinstance(cfg, DictConfig) else None


def check_request(cfg: Any, request: InitRequest) -> None:
    """Raise OptionError for options that contradict each other or that hydra would ignore."""
    _check_spelling(cfg, request)
    if request.strategy is None:
        return
    for option in _OPTIONS:  # hydra has not compared them with the choices
        value, choices = getattr(request.options, option.name), option.metadata.get("argparse", {}).get("choices")
        for chosen in value if isinstance(value, list) else [value]:
            if choices and chosen is not None and chosen not in choices:
                raise OptionError(f"{flag_of(option.name)} {chosen}: choose from {', '.join(choices)}")
    std, seed = request.options.embed_init_std, request.options.embed_init_seed
    if std is not None and not request.embed_init.scaled:
        scaled = ", ".join(name for name, other in EMBED_INIT_REGISTRY.items() if other.scaled)
        raise OptionError(
            f"--embed-init-std {std}: {request.strategy} keeps the sigma it has; drop the flag, or use --embed-init "
            f"with one of {scaled}"
        )
    parse_std(std, "--embed-init-std")
    if seed is not None:
        check_seed(seed, "--embed-init-seed")
    _check_lr_scale(request)
    if request.ddp_backend == "fully_sharded":
        raise OptionError("--embed-init: --ddp-backend fully_sharded splits embedding matrices; use another backend")
    for name, slot in _STOCK_PATHS.items():
        path = cfg.get(name) if isinstance(cfg, DictConfig) else getattr(cfg, name, None)
        if path:
            raise OptionError(
                f"{flag_of(name)} {path} and --embed-init {request.strategy} fill the same embedding matrix; keep one "
                f"of them (--embed-init pretrained --embed-init-path {slot}={path} takes the vectors as they are)"
            )


def _check_lr_scale(request: InitRequest) -> None:
    """Raise OptionError if the multiple of the learning rate is malformed, or the optimizer would ignore it."""
    text = request.options.embed_init_lr_scale
    if text is None:
        return
    if text != "sigma" and not 0 < number_in(text) < math.inf:
        raise OptionError(f"--embed-init-lr-scale {text}: expected a positive number (10), or the word sigma")
    optimizer = request.optimizer.get("_name") if isinstance(request.optimizer, Mapping) else request.optimizer
    if optimizer != "fused_adam":
        raise OptionError(
            f"--embed-init-lr-scale {text}: --optimizer {optimizer} has one learning rate for all parameters; give "
            "--optimizer fused_adam"
        )
    if request.fp16 or request.bf16:  # fairseq updates one long copy of all parameters
        raise OptionError(
            f"--embed-init-lr-scale {text}: --{'fp16' if request.fp16 else 'bf16'} has one learning rate for all "
            "parameters; train in single precision, or with --amp"
        )


def _check_spelling(cfg: Any, request: InitRequest) -> None:
    """Raise OptionError for an option of `--embed-init` that hydra loses: `model.embed_init`, or one given twice."""
    root = _root(cfg)
    if root is None:
        return
    names = [option.name for option in _OPTIONS if option.name != "embed_init_record"]
    expected = {"embed_init", SECTION, *(f"{SECTION}.{name}" for name in ("_name", "embed_init_record", *names))}
    nodes = {"": root, **{f"{section}.": root.get(section) for section in root}, "model.": cfg}
    for place, node in nodes.items():
        for key in map(str, node) if isinstance(node, DictConfig) else ():
            if "embed_init" in place + key and place + key not in expected:
                raise OptionError(
                    f"{place}{key}: fairseq-hydra-train takes embed_init=STRATEGY and {SECTION}.NAME=VALUE, with NAME "
                    f"one of {', '.join(names)}"
                )
    words = HydraConfig.get().overrides.task if HydraConfig.initialized() else ()
    values: dict[str, str] = {}
    for key, _, value in (word.lstrip("+").partition("=") for word in words):
        if "embed_init" in key and values.setdefault(key, value) is not value:
            raise OptionError(f"{key}={values[key]} and {key}={value}: give it once; several values are a list: [A,B]")
    unused = [o.name for o in _OPTIONS if o.name in names and getattr(request.options, o.name) != o.default]
    if request.strategy is None and unused:
        raise OptionError(f"{', '.join(unused)}: needs a strategy, such as embed_init=xavier")


def store_record(cfg: Any, record: str, option: str = "embed_init_record") -> None:
    """Put a record where fairseq saves it: into the configuration of every checkpoint."""
    if isinstance(cfg, Namespace):
        setattr(cfg, option, record)
        return
    root = _root(cfg)
    with open_dict(root):
        if root.get(SECTION) is None:
            root[SECTION] = {}
        root[SECTION][option] = record
