"""Remembers paths that are durable and need no further sync.

Owns: ``KnownPaths``, a bounded set. When it is full it forgets the oldest path, which is then
synced once more than needed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

KNOWN_PATHS_MAX: Final = 65536


class KnownPaths:
    """A set of at most ``KNOWN_PATHS_MAX`` paths. Used from several threads."""

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
