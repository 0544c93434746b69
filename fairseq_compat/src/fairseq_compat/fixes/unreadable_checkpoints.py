"""A damaged checkpoint: EOFError, pop from empty list; now an error names the file.

Symptom: a checkpoint that was cut short, is empty, or is another kind of file ends training, generation and evaluation
    with ``OSError: [Errno 22] Invalid argument``, ``EOFError``, ``IndexError: pop from empty list``, ``KeyError:
    'best_loss'`` and the like, without its name.
Versions: all; the errors are torch 2.13's.
Where: fairseq/checkpoint_utils.py:315 and :878, the only ``torch.load`` of that module.
Remedy: an ``UnpicklingError`` that names the file, the fault and the remedy: one for a damaged
    file, another for a type that torch's allow-list refuses.
"""

from __future__ import annotations

import os
import pickle

from fairseq_compat.patches import shadow

BROKEN = r"torch\.load\("

ANOTHER = "Give another file, such as an earlier checkpoint of the same folder, or write this one again"
#: other checkpoints of a training are refused for the same reason
WITHOUT_IT = (
    "Other checkpoints of this training hold it, too. state_dict() of its task or model should return tensors, "
    "numbers, words, lists and dictionaries"
)


def fault(path: str, error: Exception) -> tuple[str, str]:
    """Return why torch could not load a file, and the remedy."""
    from fairseq_compat.plain_data import TAKE_OUT, refused_in  # numpy may be missing where no torch is

    if name := refused_in(error):
        return (
            f"it holds {name}, which is not plain data and could execute code (or the file is damaged)",
            f"{WITHOUT_IT}; {TAKE_OUT}",
        )
    if not os.path.getsize(path):
        return "the file is empty", ANOTHER
    # torch's own text may recommend to load without the allow-list
    return f"it was cut short or damaged, or is another kind of file ({type(error).__name__})", ANOTHER


def patch(module):
    torch = module.torch

    def load(file, *args, **kwargs):
        path = os.fspath(getattr(file, "name", file))
        try:
            state = torch.load(file, *args, **kwargs)
        except MemoryError:
            raise
        except Exception as error:  # a damaged pickle can raise anything
            problem, remedy = fault(path, error)
            raise pickle.UnpicklingError(f"checkpoint {path} cannot be loaded: {problem}. {remedy}") from error
        if not isinstance(state, dict) or "model" not in state:
            content = ", ".join(map(repr, list(state)[:5])) if isinstance(state, dict) else type(state).__name__
            raise pickle.UnpicklingError(
                f"checkpoint {path} cannot be loaded: it has no 'model', but {content or 'nothing'}. {ANOTHER}"
            )
        return state

    shadow(module, "torch.load", load)
