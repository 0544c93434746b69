"""Show progress and log of a sub-command on standard error, less with -q, more with -v.

On a terminal progress is a bar; in a file (`nohup`, a scheduler's log) it is a line every ten seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tqdm import tqdm

T = TypeVar("T")
#: seconds between two lines without a terminal
EVERY = 10.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add -q and -v to a sub-command, or to its own sub-commands (embinit plot)."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                add_options(below)
            return
    parser.add_argument("-q", "--quiet", action="store_true", help="print the result and errors only")
    if "--verbose" not in parser._option_string_actions:
        parser.add_argument("-v", "--verbose", action="store_true", help="also print the log")


@contextlib.contextmanager
def talking(args: argparse.Namespace) -> Iterator[None]:
    """Set progress and logging by -q and -v while the sub-command runs."""
    root, disabled, level, handlers = logging.getLogger(), logging.root.manager.disable, logging.root.level, None
    _State.quiet = args.quiet
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)  # asks for tensorboardX when imported
    if args.quiet:
        logging.disable(logging.WARNING)
    elif args.verbose and args.command != "run":  # `run` shows the log of its training
        handlers = root.handlers[:]
        logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.INFO, force=True)
    try:
        yield
    finally:
        logging.disable(disabled)
        _State.quiet = False
        if handlers is not None:
            root.handlers = handlers
            root.setLevel(level)


class _State:
    quiet = False


class _Lines:
    """Write each state of a tqdm bar as a line."""

    def write(self, text: str) -> None:
        if text.strip():
            print(text.strip(), file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Do nothing: each line is flushed."""


def progress(
    items: Iterable[T] | None, description: str, unit: str, total: int | None = None, hidden: bool = False
) -> tqdm[T]:
    """Return tqdm's bar over the items, or over `total` updates."""
    from tqdm import tqdm

    where: dict[str, Any] = {"delay": 1.0, "unit": f" {unit}"}
    if not sys.stderr.isatty():
        where |= {"delay": EVERY / 2, "file": _Lines(), "mininterval": EVERY, "maxinterval": EVERY, "ncols": 80}
    return tqdm(items, total=total, desc=description, leave=False, disable=hidden or _State.quiet, **where)
