"""Operations that are generators give the same in both ways to run them."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from pravega_wire.sessions.steps import run_steps, run_steps_async


def add_replies(count: int) -> Generator[int, int, int]:
    """Request numbers, and return the sum of the replies."""
    total = 0
    for number in range(count):
        total += yield number
    return total


async def run_both(count: int, ask: Callable[[int], int]) -> list[int]:
    async def ask_async(request: int) -> int:
        return ask(request)

    one = run_steps(add_replies(count), ask)
    return [one, await run_steps_async(add_replies(count), ask_async)]


@pytest.mark.parametrize(("count", "total"), [(0, 0), (1, 0), (4, 60)])
async def test_an_operation_returns_its_result(count: int, total: int) -> None:
    assert await run_both(count, lambda request: 10 * request) == [total, total]


async def test_an_operation_ends_by_the_error_of_a_request() -> None:
    def fail(request: int) -> int:
        raise ZeroDivisionError(f"request {request}")

    async def fail_async(request: int) -> int:
        return fail(request)

    with pytest.raises(ZeroDivisionError, match="request 0"):
        run_steps(add_replies(2), fail)
    with pytest.raises(ZeroDivisionError, match="request 0"):
        await run_steps_async(add_replies(2), fail_async)


def count_refusals(count: int) -> Generator[int, int, int]:
    """Make requests, and return how many of them were refused."""
    refusals = 0
    for number in range(count):
        try:
            yield number
        except ZeroDivisionError:
            refusals += 1
    return refusals


async def test_an_operation_may_go_on_after_the_error_of_a_request() -> None:
    def divide(request: int) -> int:
        return 1 // (request % 2)

    async def divide_async(request: int) -> int:
        return divide(request)

    assert run_steps(count_refusals(5), divide) == 3
    assert await run_steps_async(count_refusals(5), divide_async) == 3
