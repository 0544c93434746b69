"""Print a script with which a shell completes sub-commands, options, choices and files of `embinit` on the Tab key.

    embinit completion bash > ~/.local/share/bash-completion/completions/embinit
    embinit completion zsh > ~/.zfunc/_embinit        # a folder of $fpath

This command needs shtab (pip install shtab); the Tab key needs nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from embinit_fairseq.errors import OptionError


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell that will read the script")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from embinit_fairseq.cli.main import build_parser

    try:
        import shtab
    except ImportError as error:
        raise OptionError("embinit completion needs shtab, which is not installed: pip install shtab") from error
    parser = build_parser(complete=True)
    for action in _actions(parser):
        if action.choices is None and action.type is None and action.nargs != 0:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab reads this attribute
    print(shtab.complete(parser, args.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield all options and arguments, also of sub-commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
