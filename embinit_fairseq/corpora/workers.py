"""Prepare lines in several processes, in their order: the result does not depend on the number of processes."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, NamedTuple

from embinit_fairseq.errors import DataError, EmbinitError
from embinit_fairseq.vocab.preparation_steps import Preparation

#: number of lines that a process takes at a time
_CHUNK = 2000
#: chunks after which a process begins with new libraries: spaCy and subword-nmt remember every word
_RENEW = 200
#: separator of the sentences of a line in a text of parts; it ends lines (`OTHER_ENDS`), so that no line has it
SEPARATOR = "\x1e"


class Chunk(NamedTuple):
    """Hold prepared lines, each ending in LF, their number, and the counts of their words."""

    text: str
    lines: int
    counts: Counter[str]


class _Process:
    """Hold the state of a process: column -> its preparation."""

    preparations: Mapping[str, Preparation] = {}
    chunks = 0


def symbols_of(prepare: Preparation, lines: list[str]) -> list[list[str]]:
    """Return the symbols of raw lines."""
    return list(map(prepare, lines))


def parts_of(prepare: Preparation, lines: list[str]) -> list[list[str]]:
    """Apply the steps before subwords to each raw line; return one text per line."""
    return [[SEPARATOR.join(prepare.parts(line))] for line in lines]


def segmented(prepare: Preparation, lines: list[str]) -> list[list[str]]:
    """Return the symbols of texts that `parts_of` made."""
    return [[symbol for part in line.split(SEPARATOR) for symbol in prepare.segment(part)] for line in lines]


@contextlib.contextmanager
def workers(preparations: Mapping[str, Preparation], jobs: int) -> Iterator[Callable[..., Iterator[Chunk]]]:
    """Yield a function (how, column, lines) -> chunks of prepared lines. how: `symbols_of`, `parts_of`, `segmented`."""
    if jobs == 1:
        _begin(preparations)
        yield lambda how, column, lines: (_prepare(how, column, chunk) for chunk in _chunks(lines))
        return
    with ProcessPoolExecutor(jobs, initializer=_begin_process, initargs=(preparations,)) as pool:

        def mapped(how: Callable[..., Any], column: str, lines: Iterable[str]) -> Iterator[Chunk]:
            """Yield the chunks in the order of the lines; at most two per process wait."""
            waiting: deque[Future[Chunk]] = deque()
            for chunk in _chunks(lines):
                waiting.append(pool.submit(_prepare, how, column, chunk))
                if len(waiting) > 2 * jobs:  # the text stays in its file
                    yield waiting.popleft().result()
            yield from (future.result() for future in waiting)

        try:
            yield mapped
        except BrokenProcessPool as error:
            raise DataError("a process was killed, as when memory runs out; give fewer --jobs") from error
        finally:
            pool.shutdown(cancel_futures=True)


def _chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(lines)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk


def _begin(preparations: Mapping[str, Preparation]) -> None:
    _Process.preparations, _Process.chunks = preparations, 0


def _begin_process(preparations: Mapping[str, Preparation]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the waiting process, which ends this one
    threading.Thread(target=_end_with, args=[multiprocessing.parent_process()], daemon=True).start()
    _begin(preparations)


def _end_with(parent: Any) -> None:
    """End this process when its parent has ended, also by SIGKILL, which the pool would not notice."""
    parent.join()
    os._exit(1)


def _prepare(how: Callable[..., list[list[str]]], column: str, lines: list[str]) -> Chunk:
    _Process.chunks += 1
    if _Process.chunks % _RENEW == 0:
        _Process.preparations = {name: copy.copy(one) for name, one in _Process.preparations.items()}
    texts = how(_Process.preparations[column], lines)
    if how is parts_of:
        counts = Counter(word for (text,) in texts for word in text.split())  # a symbol has one character: no merges
    else:
        counts = Counter(symbol for symbols in texts for symbol in symbols)
        if wrong := next((symbol for symbol in counts if symbol.split() != [symbol]), None):
            remedy = "write one space where the text has several: tr -s ' ' < FILE > NEW"
            if wrong.strip():
                remedy = "take another tokenizer, or no token with a space in it"
            raise EmbinitError(
                f"--steps make the symbol {wrong!r} of {len(wrong)} characters, but symbols of a dictionary have no "
                f"spaces; {remedy}"
            )
    return Chunk("".join(f"{' '.join(symbols)}\n" for symbols in texts), len(lines), counts)
