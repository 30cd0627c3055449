from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
import trio
import trio.testing

from segstore.runtime.turns import Turns, current_turns


@pytest.fixture
async def turns() -> AsyncIterator[Turns]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(current_turns().run)
        await trio.testing.wait_all_tasks_blocked()
        yield current_turns()
        nursery.cancel_scope.cancel()


async def test_an_event_loop_has_one() -> None:
    assert current_turns() is current_turns()


def test_each_event_loop_has_its_own() -> None:
    async def find() -> Turns:
        await trio.lowlevel.checkpoint()
        return current_turns()

    assert trio.run(find) is not trio.run(find)


async def test_what_is_asked_for_in_a_step_is_done_when_it_ends(turns: Turns) -> None:
    done: list[str] = []
    turns.begin()
    turns.soon(lambda: done.append("a"))
    turns.soon(lambda: done.append("b"))
    assert done == []
    turns.end()
    assert done == ["a", "b"]


async def test_what_that_asks_for_is_done_with_it(turns: Turns) -> None:
    done: list[str] = []

    def first() -> None:
        done.append("first")
        turns.soon(lambda: done.append("asked for by the first"))

    turns.begin()
    turns.soon(first)
    turns.soon(lambda: done.append("second"))
    turns.end()
    assert done == ["first", "second", "asked for by the first"]


async def test_what_is_asked_for_elsewhere_is_done_in_the_next_turn(turns: Turns) -> None:
    done: list[str] = []
    for text in ("a", "b"):
        turns.soon(partial(done.append, text))
        assert done == []
        await trio.testing.wait_all_tasks_blocked()
        assert done.pop() == text


async def test_a_defect_in_one_call_costs_the_others_a_turn(turns: Turns) -> None:
    done: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError

    turns.begin()
    turns.soon(fail)
    turns.soon(lambda: done.append("after it"))
    with pytest.raises(ZeroDivisionError):
        turns.end()
    await trio.testing.wait_all_tasks_blocked()
    assert done == ["after it"]
    turns.soon(lambda: done.append("later"))
    await trio.testing.wait_all_tasks_blocked()
    assert done == ["after it", "later"]


async def test_it_knows_whether_anybody_runs_it() -> None:
    turns = current_turns()
    assert not turns.is_run
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        await trio.testing.wait_all_tasks_blocked()
        assert turns.is_run
        nursery.cancel_scope.cancel()
    assert not turns.is_run


async def test_what_is_asked_for_while_the_turns_end_is_done() -> None:
    turns = Turns()
    done: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        assert turns.is_run
        turns.soon(lambda: done.append("late"))
    assert done == ["late"]
    assert not turns.is_run


async def test_turns_are_run_as_long_as_one_server_of_the_loop_runs_them() -> None:
    turns = current_turns()
    scopes = [trio.CancelScope(), trio.CancelScope()]
    done: list[str] = []

    async def run(scope: trio.CancelScope) -> None:
        with scope:
            await turns.run()

    async with trio.open_nursery() as nursery:
        for scope in scopes:
            nursery.start_soon(run, scope)
        await trio.testing.wait_all_tasks_blocked()
        for name, scope in zip("ab", scopes, strict=True):
            turns.soon(lambda name=name: done.append(name))
            await trio.testing.wait_all_tasks_blocked()
            assert done[-1] == name
            assert turns.is_run
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
    assert not turns.is_run
