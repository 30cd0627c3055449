"""Imports modules only when they are used.

Owns: ``import_lazily``, for modules that libraries import and a server process never uses. They
would cost memory for as long as it runs, and time before it is ready.

Invariants:
1. At its first use a lazy module is imported completely, for all modules that refer to it. Held by
   ``test_a_module_is_there_when_it_is_used``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, cast

_loading = threading.RLock()


class _LazyModule(ModuleType):
    """A module whose body has not been run."""

    def __getattr__(self, name: str) -> Any:
        with _loading:
            if type(self) is _LazyModule:
                _load(self)
        return getattr(self, name)


class _LazyLoader:
    """Makes a module without running it; ``spec`` is what would be run."""

    def __init__(self, spec: ModuleSpec) -> None:
        self.spec = spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None: Python makes the usual module."""

    def exec_module(self, module: ModuleType) -> None:
        # Without ``__path__``, an import of a submodule runs the body of this module first.
        module.__dict__.pop("__path__", None)
        module.__class__ = _LazyModule


class _LazyFinder:
    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._names:
            return None
        found = PathFinder.find_spec(name, path, target)
        if found is None:
            return None
        return ModuleSpec(
            name,
            cast("Any", _LazyLoader(found)),
            is_package=found.submodule_search_locations is not None,
        )


def import_lazily(names: Iterable[str]) -> None:
    """Import the modules ``names`` at their first use, from now on."""
    sys.meta_path.insert(0, _LazyFinder(names))


def _load(module: ModuleType) -> None:
    """Run the module's body."""
    loader = module.__loader__
    assert isinstance(loader, _LazyLoader)
    spec = loader.spec
    assert spec.loader is not None
    module.__class__ = ModuleType
    module.__spec__ = spec
    module.__loader__ = spec.loader
    module.__file__ = spec.origin
    module.__dict__["__cached__"] = spec.cached
    if spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    spec.loader.exec_module(module)
