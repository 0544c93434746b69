"""Register the plugin with fairseq now if fairseq is imported, else at the end of its import.

The packages that need no fairseq (vectors, vocab, init, analysis, the `embinit` command) must not wait seconds for it
and its hundreds of megabytes; and a notebook may import this plugin first and fairseq later.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence


def register_with_fairseq(modules: Sequence[str]) -> None:
    """Import the modules that register something, now or right after `import fairseq`."""
    if getattr(sys.modules.get("fairseq"), "__version__", None) is not None:
        for module in modules:
            importlib.import_module(module)
    elif not any(isinstance(finder, _AfterFairseq) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterFairseq(modules))


class _AfterFairseq(importlib.abc.MetaPathFinder):
    """Find fairseq with its own loader, and let the registration follow."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = modules

    def find_spec(self, name, path=None, target=None):
        """Act once, on the import of fairseq; Python calls this for every import."""
        if name != "fairseq" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.modules)  # type: ignore[assignment]  # has a loader's methods
        return spec


class _Loader:
    """Run fairseq's own loader (which others may share), then the registration."""

    def __init__(self, loader, modules: Sequence[str]) -> None:
        self._loader, self._modules = loader, modules

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module) -> None:
        self._loader.exec_module(module)
        for name in self._modules:
            importlib.import_module(name)
