"""Print the updates of a pre-trained checkpoint, and the options that build its model again, one word per line.

A checkpoint has the configuration of its model. Printed is every option of that architecture with its value: sizes,
dropout, and flags such as --embedding-normalize. The words are read back by the architecture's own parser: an option
that no command line can express is an error, not a slightly different model.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import fairseq.options  # noqa: F401  all architectures
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY

import embinit_fairseq  # noqa: F401  this plugin's, too
from embinit_fairseq.arguments import ArgumentParser
from embinit_fairseq.checkpoint_file import options_of, updates_of
from embinit_fairseq.checkpoints.loading import load_checkpoint
from embinit_fairseq.errors import CheckpointError, one_line

#: options of the training, the task or the machine that some architectures have, too
LEFT_OUT = (
    "help attention_kernel tokens_per_sample max_source_positions max_target_positions load_checkpoint_heads".split()
)


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
            raise CheckpointError(f"{arch}: no command line gives {action.dest} = {value!r}")
    return words


def main() -> None:
    """Check that a checkpoint can be fine-tuned, and print its options."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--arch", help="another architecture (default: the checkpoint's)")
    parser.add_argument("--dict", type=Path, required=True, help="dict.txt of the data and of the checkpoint")
    args = parser.parse_args()
    state = load_checkpoint(args.checkpoint)
    values = options_of(state, "model")
    arch = args.arch or values.get("arch") or values.get("_name")
    if not hasattr(ARCH_MODEL_REGISTRY.get(arch), "register_classification_head"):  # the task calls it
        raise CheckpointError(
            f"{args.checkpoint}: --arch {arch} is not for sentence_prediction; give a checkpoint of one that is "
            "(tupe_*, bert_*, electra_*, embinit_classifier, roberta_*, bart_*, ...)"
        )
    words = architecture_options(arch, values)
    symbols = Dictionary.load(str(args.dict))
    symbols.add_symbol("<mask>")
    for rows in {len(value) for key, value in state["model"].items() if key.endswith("embed_tokens.weight")}:
        if rows != len(symbols):
            raise CheckpointError(
                f"{args.dict} has {len(symbols)} symbols (with <mask>), the model in {args.checkpoint} {rows}: prepare "
                "the data with the dict.txt and codes of its pre-training (prepare.sh with DICT=FILE CODES=FILE)"
            )
    print("\n".join([str(updates_of(state) or 0), "--arch", arch, *words]))


if __name__ == "__main__":
    with one_line():
        main()
