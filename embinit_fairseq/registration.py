"""Registers now if fairseq is there, else as soon as it is imported.

The rooms that need no fairseq (vectors, vocab, init, analysis, the `embinit` command) must not wait seconds for it and
its hundreds of megabytes; and a notebook may import us first and fairseq later.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence


def register_with_fairseq(modules: Sequence[str]) -> None:
    """Import the registering modules, now or right after `import fairseq`."""
    if getattr(sys.modules.get("fairseq"), "__version__", None) is not None:
        _import_all(modules)
    elif not any(isinstance(finder, _AfterFairseq) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterFairseq(modules))


def _import_all(modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)


class _AfterFairseq(importlib.abc.MetaPathFinder):
    """Finds nothing itself; adds our registration to the end of fairseq's own import."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = modules

    def find_spec(self, name, path=None, target=None):
        """Called by every import that is not done yet; acts once, on that of fairseq."""
        if name != "fairseq" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.modules)  # type: ignore[assignment]  # stands in for one
        return spec


class _Loader:
    """fairseq's own loader (which others may share), followed by our registration."""

    def __init__(self, loader, modules: Sequence[str]) -> None:
        self._loader, self._modules = loader, modules

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module) -> None:
        self._loader.exec_module(module)
        _import_all(self._modules)
