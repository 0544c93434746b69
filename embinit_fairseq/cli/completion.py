"""What a shell needs to complete sub-commands, options, choices and files of `embinit` on the Tab key.

    embinit completion bash > ~/.local/share/bash-completion/completions/embinit
    embinit completion zsh > ~/.zfunc/_embinit        # a folder of $fpath

Needs shtab (pip install shtab) when it is called, and nothing when Tab is pressed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from embinit_fairseq.errors import OptionError

SHELLS = ("bash", "zsh", "tcsh")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("shell", choices=SHELLS, help="the shell that is to read it")


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
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # where shtab looks; what it cannot be is typed
    print(shtab.complete(parser, args.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All options and arguments, of the sub-commands, too."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)
