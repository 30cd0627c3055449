"""Work on many things at once, with a bound.

Owns: ``run_parallel``, the way in which reads, writes and deletions of a list are divided among
tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

T = TypeVar("T")


async def run_parallel(
    items: Iterable[T], work: Callable[[T], Awaitable[None]], *, tasks_max: int
) -> None:
    """Do ``work`` on every item, on ``tasks_max`` at a time at most.

    An error ends it when the others that have begun are done; it is raised as it came.
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
