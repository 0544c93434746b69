"""The `embinit` command: doctor, stats, analogy, plot, compare, convert-tupe, expand-vocab, export-hf, bench.

One file per sub-command; each says what it needs.

Exit codes: 0 done, 1 the doctor found something broken or a measured guarantee does not hold, 2 wrong input, 130
interrupted, 141 the reader of our output went away.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from embinit_fairseq.cli import analogy, bench, compare, convert_tupe, doctor, expand_vocab, export_hf, plot, stats
from embinit_fairseq.errors import EmbinitError
from embinit_fairseq.version import VERSION

COMMANDS = {
    "doctor": doctor,
    "stats": stats,
    "analogy": analogy,
    "plot": plot,
    "compare": compare,
    "convert-tupe": convert_tupe,
    "expand-vocab": expand_vocab,
    "export-hf": export_hf,
    "bench": bench,
}


class _Parser(argparse.ArgumentParser):
    """argparse, with errors of one line; what a sub-command does not know is its own error, with its own --help."""

    takes_further = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:
        found, further = super().parse_known_args(args, namespace)
        if further and not self.takes_further:
            self.error(f"unrecognized arguments: {' '.join(further)}")
        return found, further

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser with all sub-commands."""
    parser = _Parser(prog="embinit", description="Inspect vectors, embeddings and the installation of embinit_fairseq.")
    parser.add_argument("--version", action="version", version=f"embinit {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.HELP, description=command.__doc__)
        sub.takes_further = getattr(command, "TAKES_FURTHER_OPTIONS", False)
        command.configure(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return the exit code; what a user can repair is one line on standard error."""
    if hasattr(sys.stdout, "reconfigure"):  # words of any language may be printed where the locale knows few letters
        with contextlib.suppress(OSError):  # an output that was exchanged below Python
            sys.stdout.reconfigure(errors="backslashreplace")
    try:
        args = _parse(argv)
    except SystemExit as request:  # --help, or an error that is already printed
        return int(request.code or 0)
    try:
        code = COMMANDS[args.command].run(args)
        if sys.stdout is not None:  # closed by the caller
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        # what is left in the buffer would fail again when the interpreter closes standard output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print(f"embinit {args.command}: interrupted", file=sys.stderr)
        return 130
    except EmbinitError as error:
        return _fail(args.command, str(error))
    except OSError as error:
        return _fail(
            args.command,
            f"{error.filename}: {error.strerror}; check the path"
            if error.filename
            else f"{error.strerror or error}: the output could not be written; free space or choose another place",
        )


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """As `parse_args`; a command that says so gets the options that are not its own, in `further`."""
    parser = build_parser()
    parser.takes_further = True  # those that the sub-command has let pass
    args, further = parser.parse_known_args(argv)
    if getattr(COMMANDS[args.command], "TAKES_FURTHER_OPTIONS", False):
        args.further = further
    elif further:  # in front of the sub-command
        parser.error(f"unrecognized arguments: {' '.join(further)}")
    return args


def _fail(command: str, message: str) -> int:
    print(f"embinit {command}: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
