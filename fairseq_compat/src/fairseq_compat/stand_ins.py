"""Define stand-ins for the data objects of checkpoints, which torch builds instead of the real classes.

    argparse.Namespace             a dictionary with names as keys
    fairseq.meters.AverageMeter    a Namespace (fairseq up to 0.9 stored its meters; TUPE's authors used 0.9)
    fairseq's Dictionary           attributes (speech models store theirs)
    omegaconf's containers, nodes  dictionaries, lists and values (the configuration of October 2020 to March 2021)
    fairseq's choices              words (the values of an enum)
    paths, defaultdict             paths of this system, dictionaries

A configuration also names its types. Such a name is only a name: a pickle that calls it is refused, and so is a file
that holds it in another place (`fairseq_compat.plain_data.plain`).
"""

from __future__ import annotations

import argparse
import pathlib
import re
from pickle import UnpicklingError
from typing import Any


def named(thing: Any, module: str, name: str) -> Any:
    """Give a class or function the name by which torch's allow-list finds it."""
    thing.__module__, thing.__name__, thing.__qualname__ = module, name, name
    return thing


def refused(name: str) -> UnpicklingError:
    """Return the error about an object that is not plain data; `refused_in` finds its name in torch's error."""
    return UnpicklingError(f"REFUSED {name};")


def refused_in(error: BaseException) -> str | None:
    """Return the name of an object that is not plain data from torch's error; None if the file is damaged.

    torch wraps the stand-ins' errors in advice to load without the allow-list, which must never be quoted.
    """
    match = re.search(r"GLOBAL ([\w.]+)|REFUSED ([^;]+);", str(error))
    return match and (match[1] or match[2])


class Attributes(argparse.Namespace):
    """Hold attributes only, made without arguments."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        if arguments or options:
            raise refused(f"{cls.__module__}.{cls.__qualname__} called with arguments")
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        if type(state) is not dict or not all(type(name) is str for name in state):
            raise refused(f"{type(self).__qualname__} with a state that is no dictionary of names")
        self.__dict__.update(state)


class Namespace(Attributes):
    """Become a plain ``argparse.Namespace`` when the state is set."""

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self.__class__ = argparse.Namespace  # type: ignore[assignment]

    def __reduce__(self) -> tuple:
        """Write an empty one, which has no state, as a plain ``argparse.Namespace``."""
        return argparse.Namespace, ()


class Dictionary(Attributes):
    """Become a ``fairseq.data.dictionary.Dictionary`` when the state is set."""

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        from fairseq.data.dictionary import Dictionary as Real

        self.__class__ = Real


class Node(Attributes):
    """Hold a value or container of omegaconf with its metadata; only `content` remains of it."""

    @property
    def content(self) -> Any:
        """Return the value of a node: a value, or the dictionary or list of a container, or None or text instead."""
        for name in ("_content", "_val"):
            if name in vars(self):
                return vars(self)[name]
        raise refused(f"{type(self).__module__}.{type(self).__qualname__} outside a configuration")


class Mention:
    """A type that a configuration names; nothing can be made of it."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        raise refused(f"{cls.__module__}.{cls.__qualname__} called")


class Choice:
    """A value of an enum of words, which is the word."""

    def __new__(cls, *words: Any) -> Any:
        if len(words) != 1 or type(words[0]) is not str:
            raise refused(f"{cls.__module__}.{cls.__qualname__} of something that is no word")
        return words[0]


class Path:
    """A path of any system, which is a path of this one."""

    def __new__(cls, *parts: Any) -> Any:
        if not all(type(part) is str for part in parts):
            raise refused("pathlib.Path of something that is no word")
        return pathlib.Path(*parts)


class DefaultDict:
    """A ``defaultdict``, which is a dictionary: torch fills no other kind."""

    def __new__(cls, factory: Any = None) -> Any:
        return {}


#: names of built-in types -> their stand-ins
BUILT_IN = {
    f"builtins.{name}": named(type(name, (Mention,), {}), "builtins", name)
    for name in ("dict", "list", "tuple", "str", "int", "float", "bool")
}
#: names of classes -> the class whose subclass is their stand-in
KINDS = (
    (r"argparse\.Namespace|fairseq(\.logging)?\.meters\.\w+", Namespace),
    (r"fairseq\.data\.dictionary\.Dictionary", Dictionary),
    (r"omegaconf\.(dictconfig|listconfig|nodes|base)\.\w+", Node),
    (r"fairseq\.dataclass\.(constants|utils)\.\w+", Choice),
    (r"pathlib(\._local)?\.(Pure)?(Posix|Windows)?Path", Path),
    (r"collections\.defaultdict", DefaultDict),
    (r"typing\.\w+|[\w.]+\.\w*(Config|Dataclass)", Mention),
)


def stand_in(name: str) -> Any:
    """Return the stand-in of the object that pickles call ``module.name``, None if it is not plain data."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    module, _, own_name = name.rpartition(".")
    base = next((kind for pattern, kind in KINDS if re.fullmatch(pattern, name)), None)
    return base and named(type(own_name, (base,), {}), module, own_name)
