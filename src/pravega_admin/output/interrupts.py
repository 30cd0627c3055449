"""Ctrl-C that ends a command's input first, and the command when it comes again.

Owns: the handler of SIGINT while a command has work under way that it should finish.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self


class PoliteInterrupt:
    """Turns the first Ctrl-C into a ``KeyboardInterrupt`` in the next wait for input, and each
    further one into one at once. Use it within a ``with`` block, in the main thread."""

    def __init__(self) -> None:
        self.count = 0
        self._is_waiting = False
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let Ctrl-C end the block, also one that came before it."""
        self._is_waiting = True
        try:
            self._raise_if_asked()
            yield
            # The same Ctrl-C may have ended the source in the middle of a line.
            self._raise_if_asked()
        finally:
            self._is_waiting = False

    def _raise_if_asked(self) -> None:
        if self.count:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1 or self._is_waiting:
            raise KeyboardInterrupt
