"""The inner width of the feed-forward layers with which `transformer` has as many parameters as `duo_transformer`.

What follows -- is the command that trains a `transformer`, without --embed-init; everything but that width is taken
from it, also which tables are tied. What only the `duo_transformer` is told comes before, behind --duo:

    python scripts/multi30k/equal_ffn.py --duo --encoder-dim-p 50 -- fairseq-train DATA --arch transformer ...

Prints the width. A step of one changes the number of parameters by layers x (2 D + 1), so the two models differ by at
most half of that.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence

from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.utils import import_user_module

from embinit_fairseq.errors import OptionError

WIDTHS = ("--encoder-ffn-embed-dim", "--decoder-ffn-embed-dim")


def parameters(command: list[str]) -> int:
    """Of the model that this command of fairseq-train builds; shared ones count once."""
    words = command[1:]
    if "--user-dir" in words:
        import_user_module(argparse.Namespace(user_dir=words[words.index("--user-dir") + 1]))
    with tempfile.TemporaryDirectory() as empty:  # a checkpoint of the run would be held against the other model
        args = options.parse_args_and_arch(options.get_training_parser(), input_args=[*words, "--save-dir", empty])
        cfg = convert_namespace_to_omegaconf(args)
        model = tasks.setup_task(cfg.task).build_model(cfg.model)
    return sum(parameter.numel() for parameter in model.parameters())


def equal_width(command: list[str], duo_options: Sequence[str] = ()) -> int:
    """Linear in the width: two models say by how much a step of one changes the number of parameters.

    Raises OptionError where no width is small enough.
    """
    last = {name: len(command) - 1 - command[::-1].index(name) for name in WIDTHS}
    width = int(command[last[WIDTHS[0]] + 1])
    wider = list(command)
    for place in last.values():
        wider[place + 1] = str(width + 1)
    duo = [*command, *duo_options]
    duo[duo.index("--arch") + 1] = "duo_transformer"
    stock = parameters(command)
    equal = width + round((parameters(duo) - stock) / (parameters(wider) - stock))
    if equal < 1:
        raise OptionError(f"--duo {' '.join(duo_options)}: a transformer has more parameters with any --ffn")
    return equal


def main() -> None:
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--duo", nargs=argparse.REMAINDER, default=[], help="options of duo_transformer alone")
    args = parser.parse_args(sys.argv[1:split])
    try:
        print(equal_width(sys.argv[split + 1 :], args.duo))
    except OptionError as error:
        sys.exit(f"equal_ffn.py: {error}")


if __name__ == "__main__":
    main()
