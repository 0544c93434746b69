"""Run the `embinit` command: every sub-command is in the file of its name.

Exit codes: 0 done, 1 the doctor found a fault or a measured guarantee does not hold, 2 wrong input, 130 interrupted
(Ctrl-C or SIGTERM), 141 the reader of the output ended.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import re
import signal
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from embinit_fairseq.arguments import ArgumentParser, split_at_dashes
from embinit_fairseq.cli import progress
from embinit_fairseq.errors import EmbinitError, exhausted
from embinit_fairseq.version import VERSION

#: sub-command -> its line in --help; its file is imported when it is called
COMMANDS = {
    "doctor": "check that this installation is complete and works",
    "prepare": "raw text to a folder for fairseq-train, with a record of how it was prepared",
    "stats": "coverage and distribution of vectors for a dictionary",
    "analogy": "the word-analogy task, with Kim's Table 4",
    "neighbors": "the nearest words of a word",
    "save-vectors": "write vectors of any format, or of a checkpoint, as text or .npz",
    "plot": "figures of trained models, trainings and vectors",
    "run": "start or continue a training and record it: embinit run DIR -- fairseq-train DATA ...",
    "grid": "run a list of trainings, several at a time; the same call continues",
    "score": "score translations by sacrebleu, with signatures",
    "average": "average a run's checkpoints into one",
    "compare": "compare runs or translations: seeds, scores, paired tests, curves",
    "convert-tupe": "convert a checkpoint of TUPE's code for fairseq 0.12.2",
    "expand-vocab": "add words to a trained model, with a bound on the change",
    "trim-vocab": "remove words from a trained model, with the exact price",
    "transfer-vocab": "give a trained model another dictionary",
    "export-hf": "export a trained RoBERTa, transformer, BART or TUPE to Hugging Face transformers",
    "completion": "print a shell's completion of `embinit`",
}


class _Parser(ArgumentParser):
    """Report errors in one line."""

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with 2."""
        if re.match(r"unrecognized arguments: .*\bfairseq[-_]", message):
            message += "; the command of a training follows after --: embinit run DIR -- fairseq-train DATA ..."
        message = re.sub(r"^argument (\S+): (\S+: give )", r"\1 \2", message)  # the message of `at_least`
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def build_parser(chosen: str | None = None, complete: bool = False) -> argparse.ArgumentParser:
    """Return the parser with all sub-commands, and the options of the chosen one, or with `complete` of all."""
    parser = _Parser(prog="embinit", description="Trainings, vocabularies, vectors and figures of embinit_fairseq.")
    parser.add_argument("--version", action="version", version=f"embinit {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name, text in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=_module(name).__doc__ if name == chosen else text)
        if name == chosen or complete:
            _module(name).configure(sub)
            progress.add_options(sub)
    if chosen in COMMANDS:
        parser.prog = f"embinit {chosen}"  # it reports options that the command does not have
    return parser


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"embinit_fairseq.cli.{name.replace('-', '_')}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return the exit code; report an error that a user can correct in one line."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        with contextlib.suppress(OSError):  # an output that was exchanged below Python
            sys.stdout.reconfigure(errors="backslashreplace")  # words of any language, whatever the locale
    if not argv:
        build_parser().print_help()
        return 0
    own, training = split_at_dashes(argv) if argv[0] == "run" else (argv, [])
    try:
        args = build_parser(argv[0]).parse_args(own)
    except SystemExit as request:  # --help, or an error that is already printed
        return int(request.code or 0)
    args.training = training
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: temporary files and jobs of a grid are gone
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, signal.default_int_handler)
    try:
        with progress.talking(args):
            code = _module(args.command).run(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(f"embinit {args.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `embinit ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the rest of the buffer
        return 141
    except (EmbinitError, OSError, MemoryError, RuntimeError) as error:
        message = _message(error)
        if message is None:
            raise
        print(f"embinit {args.command}: error: {message}", file=sys.stderr)
        return 2


def _message(error: Exception) -> str | None:
    """Return one line for an error that a user can correct, or None."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}; check the path"
    return " ".join(str(error).split()) if isinstance(error, (EmbinitError, OSError)) else exhausted(error)


if __name__ == "__main__":
    sys.exit(main())
