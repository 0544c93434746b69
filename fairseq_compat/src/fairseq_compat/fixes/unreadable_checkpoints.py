"""Checkpoints that cannot be loaded are named.

Symptom: a checkpoint that was cut short, is empty, or is another kind of file ends training, generation and evaluation
    with ``OSError: [Errno 22] Invalid argument``, ``EOFError``, ``IndexError: pop from empty list``, ``KeyError:
    'best_loss'`` and the like, without its name.
Versions: all; the errors are those of torch 2.13.
Where: fairseq/checkpoint_utils.py:315 and :878, the only ``torch.load`` of that module.
Remedy: an ``UnpicklingError`` that names the file, says what is wrong with it and what to do: one thing for a damaged
    file, another for a type that torch's allow-list refuses, as before.
Upstream: not reported.
Can go: with a fairseq that does this.
"""

from __future__ import annotations

import os
import pickle
from contextlib import contextmanager

from fairseq_compat.shadow import shadow

REASON = "errors about broken checkpoints do not name the file"
BROKEN = r"torch\.load\("

ZIP = b"PK\x03\x04"  # what torch.save writes since 1.6
PICKLE = b"\x80\x02"  # what it wrote before


def needed() -> bool:
    return True


def fault(path: str, error: Exception) -> str:
    """What is wrong with a file that torch did not load."""
    from fairseq_compat.plain_data import is_whole_zip, refused_in  # numpy may be missing where no torch is

    refused = refused_in(error)
    if refused:
        return f"it holds {refused}, which is not plain data and could execute code (or the file is damaged)"
    with open(path, "rb") as file:
        start = file.read(4)
    if not start:
        return "the file is empty"
    if (start == ZIP and not is_whole_zip(path)) or start[:2] == PICKLE:
        return "the file was cut short or damaged (a copy or download that did not end?)"
    if start == ZIP:
        return f"the file is damaged ({str(error).strip().splitlines()[0]})"
    return "this is another kind of file"


ANEW = "Give another file, such as an earlier checkpoint of the same folder, or write this one anew"
#: what is refused is refused in all checkpoints of a training
WITHOUT_IT = (
    "Other checkpoints of this training hold it, too. Take it out where it is made: state_dict() of the task or model "
    "should return tensors, numbers, words, lists and dictionaries; whoever trusts the file can save it again without"
)


def named(path: str, problem: Exception | str) -> pickle.UnpicklingError:
    """The error, with its remedy; problem: of torch, or in words."""
    from fairseq_compat.plain_data import refused_in

    words, remedy = str(problem), ANEW
    if isinstance(problem, Exception):
        words, remedy = fault(path, problem), WITHOUT_IT if refused_in(problem) else ANEW
    return pickle.UnpicklingError(f"checkpoint {path} cannot be loaded: {words}. {remedy}")


def lacking(state) -> str | None:
    """What is wrong with the content of a file; None if it holds a model."""
    if not isinstance(state, dict):
        return f"it holds a {type(state).__name__}, no model of fairseq"
    if "model" not in state:
        return f"it has no 'model', but {', '.join(map(repr, list(state)[:5])) or 'nothing'}"
    return None


@contextmanager
def patching(module):
    yield
    torch = module.torch

    def load(file, *args, **kwargs):
        path = os.fspath(getattr(file, "name", file))
        try:
            state = torch.load(file, *args, **kwargs)
        except MemoryError:
            raise
        except Exception as error:  # a damaged pickle can raise anything
            raise named(path, error) from error
        problem = lacking(state)
        if problem:
            raise named(path, problem)
        return state

    module.torch = shadow(torch, load=load)
