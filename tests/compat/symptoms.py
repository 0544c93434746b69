"""One function per fix of fairseq_compat: it raises if the symptom that the fix cures is there.

Run as a program in an interpreter of its own (the fixes act when fairseq is imported): ``python symptoms.py NAME ...``
prints a JSON object, name to null or to the error.
"""

from __future__ import annotations

import json
import sys

import checkpoint_symptoms
import configuration_symptoms
import model_symptoms
import training_symptoms

MODULES = (configuration_symptoms, checkpoint_symptoms, model_symptoms, training_symptoms)


def look_for(name: str) -> str | None:
    """The error in which the symptom shows, if it does."""
    (function,) = {getattr(module, name) for module in MODULES if hasattr(module, name)}
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    print(json.dumps({name: look_for(name) for name in sys.argv[1:]}))
