"""One function per fix of fairseq_compat: it raises if the symptom that the fix cures is there.

Run as a program in an interpreter of its own (the fixes act when fairseq is imported): ``python symptoms.py NAME ...``
prints a JSON object, name to null or to the error.
"""

from __future__ import annotations

import importlib
import json
import sys

FILES = ("configuration_symptoms", "checkpoint_symptoms", "model_symptoms", "training_symptoms", "process_symptoms")
FILES += ("data_symptoms", "scoring_symptoms", "text_symptoms", "option_symptoms")


def look_for(name: str) -> str | None:
    """The error in which the symptom shows, if it does; it may be one of ``import fairseq``."""
    try:
        modules = [importlib.import_module(file) for file in FILES]
        next(getattr(module, name) for module in modules if hasattr(module, name))()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    print(json.dumps({name: look_for(name) for name in sys.argv[1:]}))
