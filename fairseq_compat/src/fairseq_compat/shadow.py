"""A module under its old name with a few names changed, for one importing module only."""

from __future__ import annotations

from types import ModuleType


def shadow(real: ModuleType, **changes) -> ModuleType:
    """A stand-in for ``real`` in which ``changes`` replace or add names; ``real`` itself stays as it is."""
    stand_in = ModuleType(real.__name__)
    vars(stand_in).update(vars(real))
    vars(stand_in).update(changes)
    # names that the real module makes when they are first asked for
    vars(stand_in)["__getattr__"] = lambda name: getattr(real, name)
    return stand_in
