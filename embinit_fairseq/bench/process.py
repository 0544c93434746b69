"""Runs a measurement in a process of its own: its memory is not that of the one before, and a process that the system
kills for want of memory is an error with a remedy. Imports neither torch nor fairseq; the child does."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypedDict

from embinit_fairseq.errors import EmbinitError, OptionError, exhausted
from embinit_fairseq.files import temporary_folder

# ---- What `embinit bench` is asked to measure of one architecture ---------------------------------------------------


@dataclass(frozen=True)
class BenchRequest:
    """What is to be measured. name: as the user wrote it; options: fairseq's, for the model; None: a default."""

    name: str
    arch: str
    options: tuple[str, ...]
    task: str | None
    batch: int | None
    length: int | None
    vocabulary: int
    padding: float
    precision: str | None
    device: str | None
    steps: int
    warmup: int
    decode: bool
    beam: int
    user_dir: str | None


class Attention(TypedDict):
    """How attention was computed: kernels in words, the operations that say so, the log's words on the choice."""

    kernels: list[str]
    operations: list[str]
    choice: list[str]


class Measurement(TypedDict):
    """What was measured of one architecture, as `--json` prints it.

    batch: `bench.steps.Sizes`. tokens: those that a step is counted as. seconds, cpu_seconds: of every step. flops: of
    a step, None if they could not be counted; flops_repeated: a layer is computed again in the backward pass.
    matrix_peak: FLOP/s of a large matrix product. memory: MB, by what they are.
    """

    task: str
    criterion: str | None
    batch: dict[str, Any]
    device: str
    device_name: str | None
    threads: int
    precision: str
    parameters: int
    sentences: int
    tokens: int
    seconds: list[float]
    cpu_seconds: list[float]
    flops: int | None
    flops_repeated: bool
    matrix_peak: float
    attention: Attention
    memory: dict[str, Any]


# ----------------------------------------------------------------------------------------------------------------------

_PATIENCE = 10  # seconds for a process that has nothing left to do
_LAST_LINES = 3  # of what a process said before it died


def measured(request: BenchRequest, on_step: Callable[[], None]) -> Measurement:
    """What `bench.train.measure` returns; on_step is called after each step. Raises EmbinitError for whatever fails."""
    context = multiprocessing.get_context("spawn")
    with temporary_folder() as folder:
        output = folder / "output"
        ours, theirs = context.Pipe()
        process = context.Process(target=_child, args=(request, theirs, str(output)), daemon=True)
        process.start()
        theirs.close()
        try:
            while (answer := ours.recv()) is None:  # a step
                on_step()
            process.join(_PATIENCE)  # it cleans up after itself
        except EOFError:
            process.join()
            raise EmbinitError(_death(request, process.exitcode, output)) from None
        finally:
            process.terminate()
            process.join()
    if isinstance(answer, EmbinitError):
        raise answer
    return answer


def _death(request: BenchRequest, code: int | None, output: Path) -> str:
    sizes = "a smaller --batch or --length"
    if code == -signal.SIGKILL:
        return f"{request.name}: the process was killed, as systems do when memory runs out: take {sizes}"
    last = output.read_text(errors="replace").splitlines()[-_LAST_LINES:] if output.exists() else []
    log = f" after: {' | '.join(last)}" if last else ""
    return f"{request.name}: the process ended with code {code}{log}. Try {sizes}, or another --precision"


def _child(request: BenchRequest, connection: Connection, output: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a Ctrl-C the parent takes care
    with open(output, "wb") as file:  # libraries print what nobody asked for, and why they crash
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    warnings.simplefilter("ignore")
    with contextlib.suppress(BrokenPipeError):  # the parent is gone
        connection.send(_answer(request, connection))


def _answer(request: BenchRequest, connection: Connection) -> Measurement | EmbinitError:
    try:
        from embinit_fairseq.bench.train import measure

        return measure(request, lambda: connection.send(None))
    except EmbinitError as error:
        return error
    except BrokenPipeError:
        raise
    except ImportError as error:
        return EmbinitError(f"{error}: run `embinit doctor`, it says what is missing")
    except (Exception, SystemExit) as error:
        return _refusal(request, error)


def _refusal(request: BenchRequest, error: BaseException) -> EmbinitError:
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    if exhausted(error) and not isinstance(error, RecursionError):
        return OptionError(
            f"{request.name}: does not fit into the memory ({what.splitlines()[0][:200]}): take a smaller --batch "
            f"or --length{', or --precision bf16' if request.precision in (None, 'fp32') else ''}"
        )
    return OptionError(
        f"{request.name}: fairseq refuses it ({what[:400]}): check the options of the model, --task, --length and "
        "--vocabulary"
    )
