"""Print the updates of a pre-trained checkpoint, and the options that build its model again, one word per line.

A checkpoint has the configuration of its model. Printed is every option of that architecture with its value: sizes,
dropout, and flags such as --embedding-normalize. The words are read back by the architecture's own parser: an option
that no command line can express is an error, not a slightly different model.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import fairseq.options  # noqa: F401  all architectures
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY

import embinit_fairseq  # noqa: F401  ours, too
from embinit_fairseq.checkpoints.reading import load_checkpoint, options_of, updates_of
from embinit_fairseq.errors import CheckpointError, EmbinitError

#: options of the training or the task that some architectures have, too
LEFT_OUT = ("help", "tokens_per_sample", "max_source_positions", "max_target_positions", "load_checkpoint_heads")


def model_configuration(state: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the saved options of the model with its `arch`; CheckpointError for a file without."""
    values = options_of(state, "model")
    arch = values.get("arch") or values.get("_name")
    if arch is None:
        raise CheckpointError(f"{path}: does not say what its model is; give --arch and its options yourself")
    return {**values, "arch": arch}


def words_of(action: argparse.Action, value: Any) -> list[str]:
    """Return an option with its value as words of a command line; none if the value needs no words."""
    flag = max(action.option_strings, key=len)
    if action.nargs == 0:  # a switch
        return [flag] if value == action.const else []
    if value is None:
        return []
    several = isinstance(value, (list, tuple)) and action.nargs is not None
    return [flag, *map(str, value)] if several else [f"{flag}={value}"]


def architecture_options(arch: str, values: dict[str, Any]) -> list[str]:
    """Return all options of the architecture that have a value; CheckpointError if parsing them gives other values."""
    if arch not in ARCH_MODEL_REGISTRY:
        raise CheckpointError(f"the architecture {arch} is not registered; import what registers it, or give --arch")
    parser = argparse.ArgumentParser(allow_abbrev=False, argument_default=argparse.SUPPRESS)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    actions = [a for a in parser._actions if a.option_strings and a.dest in values and a.dest not in LEFT_OUT]
    words = [word for action in actions for word in words_of(action, values[action.dest])]
    try:
        back = vars(parser.parse_args(words))
    except SystemExit:
        raise CheckpointError(f"{arch}: no command line gives these options: {' '.join(words)}") from None
    for action in actions:
        value = values[action.dest]
        if value is not None and action.nargs != 0 and back[action.dest] != value:
            raise CheckpointError(
                f"{arch}: no command line gives {action.dest} = {value!r} (but {back[action.dest]!r})"
            )
    return words


def check_architecture(arch: str, path: Path | None) -> None:
    """Raise CheckpointError for a model that cannot classify sentences. path: its checkpoint; None: it is --arch."""
    model = ARCH_MODEL_REGISTRY.get(arch)
    if model is None or hasattr(model, "register_classification_head"):  # what the task calls
        return
    which = f"{path}: a model of --arch {arch}" if path is not None else f"--arch {arch}: a model"
    raise CheckpointError(
        f"{which}, which is not one for sentence_prediction; give a checkpoint of one that is (tupe_*, bert_*, "
        "electra_*, embinit_classifier, roberta_*, bart_*, ...)"
    )


def check_dictionary(state: dict[str, Any], path: Path, dictionary: Path) -> None:
    """Raise CheckpointError unless the embedding matrix has a row for each symbol and for <mask>."""
    tables = [value for key, value in state.get("model", {}).items() if key.endswith("embed_tokens.weight")]
    symbols = Dictionary.load(str(dictionary))
    symbols.add_symbol("<mask>")
    if tables and len(tables[0]) != len(symbols):
        raise CheckpointError(
            f"{dictionary} has {len(symbols)} symbols (with <mask>), the model in {path} {len(tables[0])}: "
            "prepare the data with the dict.txt and codes of its pre-training (prepare.sh with DICT=FILE CODES=FILE)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--arch", help="another architecture (default: that of the checkpoint)")
    parser.add_argument("--dict", type=Path, help="dict.txt of the data, which must be that of the checkpoint")
    args = parser.parse_args()
    try:
        state = load_checkpoint(args.checkpoint)
        values = model_configuration(state, args.checkpoint)
        arch = args.arch or values["arch"]
        check_architecture(arch, args.checkpoint if args.arch is None else None)
        words = architecture_options(arch, values)
        if args.dict is not None:
            check_dictionary(state, args.checkpoint, args.dict)
    except EmbinitError as error:
        sys.exit(f"error: {error}")
    print("\n".join([str(updates_of(state) or 0), "--arch", arch, *words]))


if __name__ == "__main__":
    main()
