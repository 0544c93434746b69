"""The `embinit` command, with a sub-command for each job (`COMMANDS`).

One file per sub-command; each says what it needs.

Exit codes: 0 done, 1 the doctor found something broken or a measured guarantee does not hold, 2 wrong input, 130
interrupted (Ctrl-C), 143 ended by `kill`, 129 by a terminal that was closed, 141 the reader of our output went away.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NoReturn

from embinit_fairseq.cli import progress
from embinit_fairseq.errors import EmbinitError, exhausted
from embinit_fairseq.files import says_full
from embinit_fairseq.version import VERSION

#: name -> what --help says of it; the file of that name is imported only when the command is the one that was asked for
COMMANDS = {
    "doctor": "is this installation complete and working?",
    "stats": "coverage and distribution of vectors for a dictionary",
    "analogy": "the word-analogy task, with Kim's Table 4",
    "neighbors": "the words nearest to a word",
    "save-vectors": "vectors of any format, or a checkpoint's, as text or .npz",
    "plot": "pictures of trained models, trainings and vectors",
    "run": "start or continue a training, with a record of it: embinit run DIR -- fairseq-train DATA ...",
    "grid": "run a list of trainings, several at a time, and go on where a call was stopped",
    "score": "scores of translations by sacrebleu, with their signatures",
    "average": "mean of a run's checkpoints, as one checkpoint",
    "compare": "runs side by side: seeds, scores, paired bootstrap, curves",
    "convert-tupe": "a checkpoint of the TUPE authors' code, for fairseq 0.12.2",
    "expand-vocab": "new words for a trained model, with a bound on what they change",
    "trim-vocab": "fewer words for a trained model, with the exact price",
    "transfer-vocab": "a trained model for another dictionary",
    "export-hf": "a trained RoBERTa, transformer, BART or TUPE, for Hugging Face transformers",
    "bench": "tokens/s, FLOP/s, memory of a training step, and hours of a training",
    "completion": "what completes `embinit` on the Tab key of a shell",
}


#: argparse's message about a word that is none of those that can stand there
_NO_CHOICE = re.compile(r".*invalid choice: '(.*?)' \(choose from (.*)\)")


class _Parser(argparse.ArgumentParser):
    """argparse, with errors of one line; what a sub-command does not know is its own error, with its own --help."""

    takes_further = False
    given: Sequence[str] = ()
    hint = ""  # behind the error of an unknown argument

    # without typeshed's overloads for namespaces of other types, which nobody gives
    def parse_known_args(  # type: ignore[override]
        self, args: Any = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """An unknown argument is an error of the sub-command that was given it."""
        self.given = list(args or ())
        known, further = super().parse_known_args(args, namespace)
        if further and not self.takes_further:
            self.error(f"unrecognized arguments: {' '.join(further)}{self.hint}")
        return known, further

    def error(self, message: str) -> NoReturn:
        """One line, with what was meant perhaps."""
        near = self._meant(message)
        message += f"; did you mean {near}?" if near else ""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def _meant(self, message: str) -> str | None:
        """The choice or the option that is most like one that is not known; None if none is like it."""
        if match := _NO_CHOICE.match(message):
            unknown, known = [match[1]], re.split("[', ]+", match[2])
        elif "required" in message or "unrecognized" in message:
            known = [] if self.takes_further else [name for name in self._option_string_actions if name[:2] == "--"]
            given = [word.partition("=")[0] for word in self.given if word[:2] == "--"]
            unknown = [word for word in given if not any(name.startswith(word) for name in known)]
        else:
            return None
        meant = (difflib.get_close_matches(word, known, n=1, cutoff=0.7) for word in unknown)
        return next((near[0] for near in meant if near), None)


def build_parser(chosen: str | None = None, complete: bool = False) -> _Parser:
    """The parser with all sub-commands; the options are those of the chosen one. complete: of all."""
    parser = _Parser(
        prog="embinit",
        description="Trainings, vocabularies, vectors and pictures of embinit_fairseq.",
    )
    parser.add_argument("--version", action="version", version=f"embinit {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name, text in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=_module(name).__doc__ if name == chosen else text)
        if name == chosen or complete:
            command = _module(name)
            sub.takes_further = getattr(command, "TAKES_FURTHER_OPTIONS", False)
            sub.hint = getattr(command, "HINT", "")
            command.configure(sub)
            progress.add_options(sub)
    return parser


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"embinit_fairseq.cli.{name.replace('-', '_')}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return the exit code; what a user can repair is one line on standard error."""
    if hasattr(sys.stdout, "reconfigure"):  # words of any language may be printed where the locale knows few letters
        with contextlib.suppress(OSError):  # an output that was exchanged below Python
            sys.stdout.reconfigure(errors="backslashreplace")
    try:
        args = _parse(argv)
    except SystemExit as request:  # --help, or an error that is already printed
        return int(request.code or 0)
    with _signals_as_interrupts() as received:
        try:
            with progress.talking(args):
                code = _module(args.command).run(args)
            if sys.stdout is not None:  # closed by the caller
                sys.stdout.flush()
            return code
        except (Exception, KeyboardInterrupt) as error:
            if received or isinstance(error, KeyboardInterrupt):  # also where a library has made another error of it
                print(f"embinit {args.command}: interrupted", file=sys.stderr)
                return 128 + (received or [signal.SIGINT])[0]
            return _failed(args.command, error)


@contextlib.contextmanager
def _signals_as_interrupts() -> Iterator[list[int]]:
    """`kill` (SIGTERM) and a closed terminal (SIGHUP) end the block as Ctrl-C does, by KeyboardInterrupt: unfinished
    files and folders are removed, child processes are ended. Yields a list that gets the numbers of the signals.

    Signals that somebody has taken care of are left alone (nohup ignores SIGHUP, a shell Ctrl-C for what runs behind).
    """
    received: list[int] = []

    def interrupt(number: int, _: Any) -> None:
        received.append(number)
        raise KeyboardInterrupt

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            with contextlib.suppress(ValueError):  # not in the main thread, where signals do not arrive
                before[number] = signal.signal(number, interrupt)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """As `parse_args`; a command that says so gets the options that are not its own, in `further`."""
    argv = sys.argv[1:] if argv is None else list(argv)
    chosen = next((word for word in argv if word in COMMANDS), None)
    parser = build_parser(chosen)
    if not argv:
        parser.print_help()
        parser.exit()
    parser.takes_further = True  # those that the sub-command has let pass
    argv, words = _split(argv)
    args, further = parser.parse_known_args(argv)
    args.training = words
    if getattr(_module(args.command), "TAKES_FURTHER_OPTIONS", False):
        args.further = further
    elif further:  # in front of the sub-command
        parser.error(f"unrecognized arguments: {' '.join(further)}")
    return args


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """(our arguments, the command behind --) where the sub-command takes one."""
    takes = bool(argv) and argv[0] in COMMANDS and getattr(_module(argv[0]), "TAKES_COMMAND", False)
    at = argv.index("--") if takes and "--" in argv else len(argv)
    return argv[:at], argv[at + 1 :]


def _failed(command: str, error: BaseException) -> int:
    """The exit code of an error that the user can do something about; others are raised again."""
    if isinstance(error, BrokenPipeError):
        # what is left in the buffer would fail again when the interpreter closes standard output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    if isinstance(error, EmbinitError):
        return _fail(command, str(error))
    if isinstance(error, OSError) and error.filename:
        return _fail(command, f"{error.filename}: {error.strerror}; check the path")
    if isinstance(error, OSError) and says_full(str(error)):
        return _fail(command, f"{error.strerror}: what is printed could not be written; free some space there")
    if isinstance(error, OSError):
        return _fail(command, str(error))
    reason = exhausted(error) if isinstance(error, (MemoryError, RuntimeError)) else None  # RecursionError is one, too
    if reason is None:
        raise error
    return _fail(command, reason)


def _fail(command: str, message: str) -> int:
    print(f"embinit {command}: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
