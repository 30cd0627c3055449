"""A dictionary of bounded size.

Owns: ``Remembered``. One task at a time uses it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """A bounded dictionary that forgets the least recently used items."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._items: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None when it is not remembered."""
        if key in self._items:
            self._items.move_to_end(key)
        return self._items.get(key)

    def set(self, key: K, value: V) -> None:
        """Remember a value. If there are too many, forget the least recently used one."""
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._count_max:
            self._items.popitem(last=False)

    def drop(self, key: K) -> None:
        """Forget a key, if it is remembered."""
        self._items.pop(key, None)
