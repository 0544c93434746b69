"""legacy_masked_lm and plugins: unexpected keyword argument 'add_special_symbols'.

Symptom: loading one, as ``--task legacy_masked_lm`` and plugins do, ends with ``TypeError: ... __init__() got an
    unexpected keyword argument 'add_special_symbols'``.
Versions: fairseq's main branch, for classes written for a release.
Where: fairseq/data/dictionary.py:227 (``Dictionary.load``).
Remedy: a class that does not take the argument is made without it, as in all releases.
"""

from __future__ import annotations

import inspect

from fairseq_compat.patches import wrap

BROKEN = r"cls\(add_special_symbols="
FIXED = r"\bcls\(\)"


def patch(module):
    @wrap(module.Dictionary)
    def load(original, cls, f, add_special_symbols=True):
        parameters = inspect.signature(cls.__init__).parameters.values()
        if any(one.name == "add_special_symbols" or one.kind is one.VAR_KEYWORD for one in parameters):
            return original(cls, f, add_special_symbols)
        dictionary = cls()
        dictionary.add_from_file(f)
        return dictionary
