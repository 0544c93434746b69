"""What a sub-command says beside its result, all of it on standard error: progress, less with -q, more with -v.

On a terminal progress is a bar; elsewhere (a file, `nohup`, a scheduler's log) a line every ten seconds. A command that
has no bar says every ten seconds that it is working.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tqdm import tqdm

T = TypeVar("T")
EVERY = 10.0  # seconds between two lines
_LONG = 5.0  # what ends before shows no line
#: these show what the programs say that they start
_TALK_THEMSELVES = ("run", "grid")


class _Volume:
    """Of the sub-command that runs now. said: when the last line was written."""

    quiet = False
    said = 0.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """-q and -v, for every sub-command; one that has a --verbose of its own keeps it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):  # embinit plot
            for below in action.choices.values():
                add_options(below)
            return
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="no progress and no warnings: the result and errors only"
    )
    if "--verbose" not in parser._option_string_actions:
        parser.add_argument("-v", "--verbose", action="store_true", help="also what is logged on the way")


@contextlib.contextmanager
def talking(args: argparse.Namespace) -> Iterator[None]:
    """Progress and logging as -q and -v say, while the sub-command runs."""
    root, disabled = logging.getLogger(), logging.root.manager.disable
    before, handlers, done = root.level, root.handlers[:], threading.Event()
    _Volume.quiet, _Volume.said = args.quiet, time.monotonic()
    if args.quiet:
        logging.disable(logging.WARNING)
    elif args.verbose and args.command != "run":  # it shows the log of its training
        screen = logging.StreamHandler(sys.stderr)
        screen.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
        root.handlers = [*handlers, screen]
        root.setLevel(min(root.level, logging.INFO))
    if not args.quiet and args.command not in _TALK_THEMSELVES:
        threading.Thread(target=_beat, args=(args.command, done), daemon=True).start()
    try:
        yield
    finally:
        done.set()
        logging.disable(disabled)
        root.setLevel(before)
        root.handlers = handlers
        _Volume.quiet = False


def _beat(command: str, done: threading.Event) -> None:
    """A line every ten seconds in which nothing else was shown."""
    began = time.monotonic()
    while not done.wait(EVERY):
        now = time.monotonic()
        silent = math.inf if _has_bar() and sys.stderr.isatty() else 2 * EVERY if _has_bar() else EVERY / 2
        if now - _Volume.said > silent:
            _say(f"embinit {command}: still working, {now - began:.0f} s")


def _has_bar() -> bool:
    return bool(getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", ()))


def _say(line: str) -> None:
    _Volume.said = time.monotonic()
    with contextlib.suppress(OSError, ValueError):  # a screen that is gone ends no work
        print(line, file=sys.stderr, flush=True)


class _Lines:
    """Where tqdm draws if there is no terminal: each drawing is a line."""

    def write(self, text: str) -> None:
        if text.strip():
            _say(text.strip())

    def flush(self) -> None:
        """Every line is."""


def progress(
    items: Iterable[T] | None, description: str, unit: str, total: int | None = None, hidden: bool = False
) -> tqdm[T]:
    """tqdm's bar over the items, or of `total` updates; on a terminal a bar, else lines. hidden: none, as with -q."""
    from tqdm import tqdm

    where: dict[str, Any] = {"delay": 1.0}
    if not sys.stderr.isatty():
        where = {"delay": _LONG, "file": _Lines(), "mininterval": EVERY, "maxinterval": EVERY, "ncols": 80}
    hidden = hidden or _Volume.quiet
    return tqdm(items, total=total, desc=description, unit=unit, leave=False, disable=hidden, **where)
