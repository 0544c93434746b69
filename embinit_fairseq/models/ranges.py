"""Which numbers a model can be made of; others are refused by the name of their flag before anything is built."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from embinit_fairseq.errors import OptionError

#: end of an option's name -> smallest and largest value
RANGES: dict[str, tuple[float, float]] = {
    "_layers": (1, float("inf")),
    "_embed_dim": (1, float("inf")),  # of FFNs, too
    "_attention_heads": (1, float("inf")),
    "_positions": (3, float("inf")),  # <s>, a word, </s>
    "dropout": (0, 1),
}


def check_ranges(cfg: Any) -> None:
    """cfg: options of a model. Raises OptionError for numbers out of range and for heads that do not divide a width."""
    options = as_dict(cfg)
    for name, value in options.items():
        for end, (smallest, largest) in RANGES.items():
            if name.endswith(end) and isinstance(value, (int, float)) and not smallest <= value <= largest:
                wanted = f"at least {smallest}" if largest == float("inf") else f"from {smallest} to {largest}"
                raise OptionError(f"{flag(name)} {value}: must be {wanted}")
    for side in ("encoder", "decoder", "generator"):
        heads, width = f"{side}_attention_heads", f"{side}_embed_dim"
        if options.get(heads) is not None:
            inherited = options.get("encoder_embed_dim")  # tupe_transformer's decoder has the encoder's width
            check_heads(flag(heads), options[heads], flag(width), options.get(width) or inherited)


def check_heads(heads_flag: str, heads: int, width_flag: str, width: int) -> None:
    """Raises OptionError for heads that do not divide a width."""
    if width % heads:
        divisors = ", ".join(str(n) for n in range(1, 33) if width % n == 0)
        raise OptionError(f"{heads_flag} {heads} does not divide {width_flag} {width}; heads that do: {divisors}")


def flag(name: str) -> str:
    """`max_positions` -> `--max-positions`."""
    return "--" + name.replace("_", "-")


def as_dict(cfg: Any) -> dict[str, Any]:
    """Options by name: of a node of fairseq's configuration, a dataclass or a namespace."""
    return OmegaConf.to_container(cfg, resolve=True, enum_to_str=True) if OmegaConf.is_config(cfg) else dict(vars(cfg))
