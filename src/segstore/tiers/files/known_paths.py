"""Paths that need no sync any more.

Owns: ``KnownPaths``, which forgets the oldest: then one sync too many is made, and no harm done.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

KNOWN_PATHS_MAX: Final = 65536


class KnownPaths:
    """The paths that are known to exist. Used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, path: str) -> bool:
        return path in self._paths

    def add(self, path: str) -> None:
        """Remember a path."""
        with self._lock:
            self._paths[path] = None
            if len(self._paths) > KNOWN_PATHS_MAX:
                self._paths.popitem(last=False)

    def discard(self, path: str) -> None:
        """Forget a path, if it is known."""
        with self._lock:
            self._paths.pop(path, None)
