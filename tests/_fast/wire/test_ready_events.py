"""Events that are ready, awaited without a coroutine, beside a reader that is asked for others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from itertools import count

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _fast.wire.events import ReadEvent
from _fast.wire.ready_events import ReadyEvents, ReadyLoop
from support.event_loops import BACKENDS


class Reader:
    """Has one event more whenever it is asked, and counts that."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked = 0
        self.ready = ReadyEvents(self.ask, lambda: self.now)

    def ask(self) -> Awaitable[ReadEvent]:
        return self._ask()

    async def _ask(self) -> ReadEvent:
        self.asked += 1
        if not self.ready:
            self.ready.replace([make_event(-self.asked)])
        return self.ready.take()


def make_event(number: int) -> ReadEvent:
    return ReadEvent(b"%d" % number, 0, number, "s/t/0.#epoch.0")


@given(st.lists(st.sampled_from(["one", "all", "replace", "dropped"]), max_size=30))
def test_events_come_in_order_however_they_are_taken(steps: list[str]) -> None:
    async def take() -> None:
        reader, numbers, taken = Reader(), count(), list[int]()
        for step in steps:
            left = len(reader.ready)
            if step == "replace" and not left:
                reader.ready.replace([make_event(next(numbers)) for _ in range(3)])
            elif step == "one" and left:
                event = await anext(reader.ready)
                assert reader.ready.first is reader.ready.last is event
                taken.append(event.offset)
            elif step == "all" and left:
                events = reader.ready.take_all()
                assert len(events) == left
                assert (reader.ready.first, reader.ready.last) == (events[0], events[-1])
                taken += [event.offset for event in events]
            elif step == "dropped" and left:
                # What nobody awaits takes nothing.
                reader.ready.__anext__()
                assert len(reader.ready) == left
        rest = reader.ready.take_all() if reader.ready else []
        assert taken + [event.offset for event in rest] == list(range(next(numbers)))
        assert reader.asked == 0

    asyncio.run(take())


async def ask_when_due() -> None:
    reader = Reader()
    ready = reader.ready
    assert (await anext(ready)).offset == -1
    ready.replace([make_event(number) for number in range(5)])
    assert (await anext(ready)).offset == 0
    assert reader.asked == 1
    ready.due = 10.0
    assert (await anext(ready)).offset == 1
    reader.now = 10.0
    assert (await anext(ready)).offset == 2
    assert reader.asked == 2
    ready.due = 11.0
    found = []
    async for event in ready:
        found.append(event.offset)
        if event.offset < 0:
            break
    assert (found, reader.asked) == ([3, 4, -3], 3)


async def await_while_handling() -> None:
    ready = ReadyEvents(Reader().ask)
    ready.replace([make_event(0), make_event(1)])
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        assert (await anext(ready)).offset == 0
        assert (await asyncio.wait_for(anext(ready), 60)).offset == 1
    ready.release()
    assert (ready.first, ready.last, len(ready)) == (None, None, 0)
    for empty in (ready.take, ready.take_all):
        with pytest.raises(IndexError):
            empty()


def test_an_event_is_awaited_while_an_error_is_handled_or_with_a_limit_of_time() -> None:
    asyncio.run(await_while_handling())


async def wait_for_time() -> None:
    """Take what is ready, by the system's clock, until it is time."""
    reader = Reader()
    ready = ReadyEvents(reader.ask)
    ready.replace([make_event(number) for number in range(10)])
    ready.due = time.monotonic() + 3600.0
    assert (await anext(ready)).offset == 0
    ready.due = time.monotonic() - 1.0
    await anext(ready)
    assert reader.asked == 1


def test_without_a_clock_the_time_is_that_of_the_system() -> None:
    asyncio.run(wait_for_time())


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_reader_is_asked_when_nothing_is_ready_or_it_is_time(backend: str) -> None:
    anyio.run(ask_when_due, backend=backend)


def test_what_is_next_is_there_until_it_is_deleted() -> None:
    ready = ReadyEvents(Reader().ask)
    ready.replace([make_event(number) for number in range(4)])
    assert ready.next is ready.next
    assert (ready.first, len(ready)) == (None, 4)
    first = ready.next
    del ready.next
    assert (ready.first, ready.last, first.offset, len(ready)) == (first, first, 0, 3)
    rest = ready.rest
    assert [event.offset for event in rest] == [1, 2, 3]
    assert len(ready) == 3
    del ready.rest
    assert (ready.first, ready.last, len(ready)) == (rest[0], rest[-1], 0)
    assert ready.rest == []
    with pytest.raises(IndexError):
        _ = ready.next


def test_a_loop_asks_for_what_is_not_ready_and_ends_with_none() -> None:
    ready, asked = ReadyEvents(), list[int]()

    def ask() -> ReadEvent | None:
        asked.append(len(ready))
        ready.is_unsure = False
        if len(asked) == 4:
            return None
        event = ready.take() if ready else make_event(-len(asked))
        ready.replace([make_event(number) for number in range(3)])
        return event

    loop = ReadyLoop(ready, ask)
    assert iter(loop) is loop
    assert [next(loop).offset, next(loop).offset] == [-1, 0]
    assert (asked, ready.has_next) == ([0], True)
    # What is ready may not be what comes next.
    ready.is_unsure = True
    assert not ready.has_next
    assert next(loop).offset == 1
    assert asked == [0, 2]
    ready.due = time.monotonic() - 1.0
    assert not ready.has_next
    assert next(loop).offset == 0
    assert asked == [0, 2, 3]
    ready.due = time.monotonic() + 3600.0
    assert [event.offset for event in loop] == [0, 1, 2]
    assert asked == [0, 2, 3, 0]


def test_an_error_of_the_reader_comes_out_of_the_loop() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        next(ReadyLoop(ReadyEvents(), fail))
