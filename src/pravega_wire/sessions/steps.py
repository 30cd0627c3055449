"""Runs operations of clients that are generators: each yields requests, gets the reply to each, and
returns its result.

Owns: ``run_steps`` for a client that blocks, and ``run_steps_async`` for an async one, so that both
share the operation.

Invariants:
1. When a request fails, the operation ends by the error of the request. Held by
   ``test_an_operation_ends_by_the_error_of_a_request``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

Request = TypeVar("Request")
Reply = TypeVar("Reply")
T = TypeVar("T")


def run_steps(steps: Generator[Request, Reply, T], ask: Callable[[Request], Reply]) -> T:
    """Return the result of an operation; ``ask`` returns the reply to a request."""
    try:
        request = next(steps)
        while True:
            request = steps.send(ask(request))
    except StopIteration as done:
        result: T = done.value
        return result


async def run_steps_async(
    steps: Generator[Request, Reply, T], ask: Callable[[Request], Awaitable[Reply]]
) -> T:
    """Return the result of an operation; ``ask`` returns the reply to a request."""
    try:
        request = next(steps)
        while True:
            request = steps.send(await ask(request))
    except StopIteration as done:
        result: T = done.value
        return result
