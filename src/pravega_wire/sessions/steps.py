"""Runs operations of clients that are generators: each yields requests, gets the reply to each, and
returns its result.

Owns: ``run_steps`` for a client that blocks, and ``run_steps_async`` for an async one, so that both
share the operation.

Invariants:
1. When a request fails, the operation gets the error of the request where it made the request, and
   ends by it unless it goes on. Held by ``test_an_operation_ends_by_the_error_of_a_request`` and
   ``test_an_operation_may_go_on_after_the_error_of_a_request``.
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
            try:
                reply = ask(request)
            except BaseException as error:
                request = steps.throw(error)
            else:
                request = steps.send(reply)
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
            try:
                reply = await ask(request)
            except BaseException as error:
                request = steps.throw(error)
            else:
                request = steps.send(reply)
    except StopIteration as done:
        result: T = done.value
        return result
