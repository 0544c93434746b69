"""Change a module of fairseq: wrap a function, or put another object under a name that the module uses."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any


def wrap(owner: Any, name: str = "") -> Callable[[Callable], Callable]:
    """Return a decorator that replaces a function or method of `owner` by the function under the decorator.

    The new function receives the original one as its first argument, and keeps its signature, which fairseq reads.

    Args:
        owner: a module, a class or an object.
        name: name of the function to replace; default: that of the new function.
    """

    def decorate(function: Callable) -> Callable:
        target = name or function.__name__
        original = vars(owner).get(target) or getattr(owner, target)
        kind = type(original) if isinstance(original, (classmethod, staticmethod)) else None
        if kind:
            original = original.__func__

        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        replacement.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        setattr(owner, target, kind(replacement) if kind else replacement)
        return replacement

    return decorate


def explain_failures(owner: Any, name: str, reason: Callable[..., str | None]) -> None:
    """Let a failing function or method name the remedy.

    Args:
        owner: as for `wrap`.
        name: name of the function.
        reason: called with the error and the arguments of the call; None keeps the error.
    """

    @wrap(owner, name)
    def explained(original: Callable, *args: Any, **options: Any) -> Any:
        try:
            return original(*args, **options)
        except Exception as error:
            text = reason(error, *args, **options)
            if text is None:
                raise
            raise ValueError(text) from error


def shadow(module: ModuleType, path: str, value: Any) -> None:
    """Let one module see `value` under a dotted name that it uses, such as ``torch.load``; others see the real one."""
    name, _, rest = path.partition(".")
    if rest:
        real = getattr(module, name)
        stand_in = ModuleType(real.__name__)
        vars(stand_in).update(vars(real))
        # names that the real module makes when they are first asked for
        vars(stand_in)["__getattr__"] = lambda attribute: getattr(real, attribute)
        shadow(stand_in, rest, value)
        value = stand_in
    setattr(module, name, value)
