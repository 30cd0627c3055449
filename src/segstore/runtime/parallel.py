"""Runs work on many items at once, in a bounded number of tasks.

Owns: ``run_parallel``, which divides the reads, writes and deletions of a list among tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

T = TypeVar("T")


async def run_parallel(
    items: Iterable[T], work: Callable[[T], Awaitable[None]], *, tasks_max: int
) -> None:
    """Do ``work`` on every item, on at most ``tasks_max`` at a time.

    After an error, no further item is begun. When the items under way are done, the first error is
    raised.
    """
    remaining = list(items)
    remaining.reverse()
    errors: list[Exception] = []

    async def run() -> None:
        while remaining and not errors:
            try:
                await work(remaining.pop())
            except Exception as error:
                errors.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(min(tasks_max, len(remaining))):
            nursery.start_soon(run)
    if errors:
        raise errors[0]
