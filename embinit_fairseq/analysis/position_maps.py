"""The positional correlation of every head of a trained model (Ke et al. 2021, Figure 6), by the model's own modules.

H: heads, T: positions. TUPE's and BERT-R's positional scores depend neither on the words nor on the layer: one map per
head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embinit_fairseq.analysis.trained_model import TrainedModel
from embinit_fairseq.errors import CheckpointError, OptionError
from embinit_fairseq.modules.position_encoding import (
    POSITION_ENCODINGS,
    PositionEncoding,
    PositionSizes,
    published_name,
)

#: longest map that is drawn without being asked for
LONGEST = 512
RESETS = ("official", "paper")
_ABSOLUTE, _RELATIVE = "absolute.embed_positions.weight", "relative.embed_buckets.weight"
_ADDED = "embed_positions.weight"
#: in the names of parameters
_POSITIONS, _TOKENS = ".positions.", ".embed_tokens.weight"
#: enough to build any encoding
_SMALL = PositionSizes(4, 1, 4, num_buckets=4, max_distance=8)


@dataclass(frozen=True)
class PositionMap:
    """scores (H, T, T): query i, key j, minus infinity where j may not be seen (decoder).

    has_cls: row and column 0 are those of `[CLS]`. untied: they hold one constant each (equation (9)).
    """

    encoding: str
    part: str
    scores: np.ndarray
    has_cls: bool
    untied: bool

    @property
    def ordinary(self) -> np.ndarray:
        """scores without the row and the column of `[CLS]`."""
        first = int(self.has_cls)
        return self.scores[:, first:, first:]


def position_map(model: TrainedModel, part: str | None = None, length: int | None = None) -> PositionMap:
    """The map of `length` positions (default: all the model has, 512 at most) of one of its parts.

    part: encoder, decoder or ELECTRA's generator; default the encoder if it has positions of this kind. Raises
    CheckpointError for a model without such positions, OptionError for a part or a length that it does not have.
    """
    kind = str(model.options.get("position_encoding", "untied"))  # tupe_transformer has no such option
    prefix, part = _find(model, part, kind)
    state = model.parameters(prefix)
    for name in {_ABSOLUTE, _ADDED, _RELATIVE} & set(state):  # their shapes say how the positions are built
        model.table(prefix + name)
    sizes = _sizes(model, part, state)
    module = _built(model, kind, sizes, state)
    longest = module.max_positions or sizes.max_positions
    length = min(longest, LONGEST) if length is None else length
    has_cls = module.untie_cls or ".sentence_encoder." in prefix
    shortest = 2 + has_cls  # so that there is something to choose from besides [CLS]
    if not shortest <= length <= longest:
        raise OptionError(f"--length {length}: the {part} of {model.path} has {shortest} to {longest} positions")
    scores = _bias(model, module, length)
    if part == "decoder":
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    encoding = published_name(kind, sizes.num_buckets > 0, bool(model.options.get("tupe_tie_cls")))
    return PositionMap(encoding, part, scores, has_cls, module.untie_cls)


def _find(model: TrainedModel, part: str | None, kind: str) -> tuple[str, str]:
    """(what the names of the positions' parameters begin with, part)."""
    prefixes = {key[: key.index(_POSITIONS) + len(_POSITIONS)] for key in model.state if _POSITIONS in key}
    if model.options.get("position_encoding"):  # an encoding may have no parameters
        prefixes |= {
            key[: -len(_TOKENS)] + _POSITIONS for key in model.state if key.endswith(f"sentence_encoder{_TOKENS}")
        }
    prefix_of_part = {prefix.partition(".")[0]: prefix for prefix in sorted(prefixes, reverse=True)}
    if not prefix_of_part or kind not in POSITION_ENCODINGS:
        raise CheckpointError(
            f"{model.path} is a checkpoint of {model.arch}, which has no positional correlation of this plugin; "
            f"{_with_maps()} and tupe_transformer have"
        )
    part = part or ("encoder" if "encoder" in prefix_of_part else next(iter(prefix_of_part)))
    _check_has_map(model, kind)
    if part not in prefix_of_part:
        raise OptionError(
            f"--part {part}: {model.path} ({model.arch}) has positions of this kind in its "
            f"{' and '.join(sorted(prefix_of_part))} only"
        )
    return prefix_of_part[part], part


def _has_map(kind: str) -> bool:
    """Does an encoding add scores that do not depend on the words?"""
    return type(POSITION_ENCODINGS[kind].build(_SMALL)).bias is not PositionEncoding.bias


def _with_maps() -> str:
    """For messages."""
    return ", ".join(f"{known.family}_*" for kind, known in POSITION_ENCODINGS.items() if _has_map(kind))


def _check_has_map(model: TrainedModel, kind: str) -> None:
    known = POSITION_ENCODINGS[kind]
    if not _has_map(kind):
        hint = ": use embinit plot correlations" if kind == "added" else ""
        raise CheckpointError(
            f"{model.path} is a checkpoint of {model.arch} ({known.name}: {known.help}), which has no map without "
            f"words{hint}"
        )


def _sizes(model: TrainedModel, part: str, state: dict[str, Tensor]) -> PositionSizes:
    """From the shapes of the parameters where there are some, else from the options."""
    reset = _reset(model)
    num_buckets, num_heads = state[_RELATIVE].shape if _RELATIVE in state else (0, 0)
    table = state.get(_ABSOLUTE, state.get(_ADDED))
    max_positions, embed_dim = (None, 0) if table is None else table.shape
    untied = _ABSOLUTE in state and reset is not None  # then the table has a row for [CLS] more
    return PositionSizes(
        embed_dim,
        num_heads or model.whole_number(f"{part}_attention_heads"),
        _longest(model, part) if max_positions is None else max_positions - int(untied),
        num_buckets=num_buckets - int(untied and num_buckets > 0 and reset == "official"),
        max_distance=model.whole_number("max_rel_pos") if num_buckets else 0,
        reset=reset,
        bidirectional=part != "decoder",
    )


def _longest(model: TrainedModel, part: str) -> int:
    names = ("max_positions", "max_target_positions" if part == "decoder" else "max_source_positions")
    given = next((name for name in names if model.options.get(name)), None)
    return LONGEST if given is None else model.whole_number(given, 2)


def _reset(model: TrainedModel) -> str | None:
    """How `[CLS]` is untied; None where it is not, as in translation, which has no `[CLS]` and no such option."""
    if model.options.get("tupe_tie_cls", True):
        return None
    reset = str(model.option("tupe_reset"))
    if reset not in RESETS:
        raise CheckpointError(f"{model.path}: its option tupe_reset is {reset!r}, none of {', '.join(RESETS)}")
    return reset


def _built(model: TrainedModel, kind: str, sizes: PositionSizes, state: dict[str, Tensor]) -> PositionEncoding:
    """The module with the trained parameters, in double precision."""
    try:
        module = POSITION_ENCODINGS[kind].build(sizes).double()
        module.load_state_dict(state)
    except OptionError as error:
        raise CheckpointError(f"{model.path}: the options in it cannot be ({error})") from error
    except RuntimeError as error:
        raise CheckpointError(_do_not_fit(model, error)) from error
    return module


def _bias(model: TrainedModel, module: PositionEncoding, length: int) -> np.ndarray:
    """The positional bias of the model for `length` positions, (H, T, T)."""
    try:
        with torch.no_grad():
            bias = module.bias(length)
        assert bias is not None  # checked by `_check_has_map`
        return bias.numpy()
    except RuntimeError as error:
        raise CheckpointError(_do_not_fit(model, error)) from error


def _do_not_fit(model: TrainedModel, error: RuntimeError) -> str:
    return f"{model.path}: its positions do not fit its options ({' '.join(str(error).split())})"
