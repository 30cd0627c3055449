"""Makes calls of the kernel that Python lacks: timers, a process's end with its parent, the clock.

Owns: the only foreign functions of the product, which ``kernel_build`` declares.
"""

from __future__ import annotations

import math
import os
from typing import Final

from segstore.runtime._kernel import ffi, lib

_NANOSECONDS: Final = 1_000_000_000
_UNKNOWN: Final = (1 << 63) - 1


def create_timer() -> int:
    """Return the descriptor of a timer that does not run. Raises ``OSError``."""
    return _checked(lib.create_timer())


def set_timer(descriptor: int, seconds: float) -> None:
    """Make a timer's descriptor readable ``seconds`` from now; never if ``seconds`` is infinite.

    Raises ``OSError``.
    """
    nanoseconds = 0 if seconds == math.inf else max(1, math.ceil(seconds * _NANOSECONDS))
    _checked(lib.set_timer(descriptor, nanoseconds))


def kill_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends. Raises
    ``OSError``."""
    _checked(lib.kill_with_parent())


def read_clock_error() -> float:
    """Return by how many seconds the wall clock may be wrong; infinite if nothing synchronizes it.

    Raises ``OSError``.
    """
    error_us = _checked(lib.clock_error_us())
    return math.inf if error_us == _UNKNOWN else error_us / 1e6


def return_free_memory() -> None:
    """Return the whole pages that ``free`` has left to the kernel: the C library does it by itself
    only at the end of the heap. Takes some milliseconds, in which ``malloc`` waits."""
    lib.return_free_memory()


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ffi.errno, os.strerror(ffi.errno))
    return result
