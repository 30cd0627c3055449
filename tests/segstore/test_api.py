from __future__ import annotations

import pytest
import trio
import trio.testing

from segstore.api import OnRead, ReadResult, Waiter, read_and_wait
from segstore.errors import ContainerOfflineError, NoSuchSegmentError

RESULT = ReadResult(0, b"data", at_tail=False, end_of_segment=False)


class Handle:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


async def test_a_waiter_gives_the_number_or_raises_the_error() -> None:
    durable, refused = Waiter(), Waiter()
    durable.complete(None, 7)
    refused.complete(ContainerOfflineError("offline"), -1)
    assert await durable.wait() == 7
    with pytest.raises(ContainerOfflineError):
        await refused.wait()


async def test_a_read_that_completes_at_once_is_not_awaited() -> None:
    def start(complete: OnRead) -> None:
        complete(None, RESULT)

    assert await read_and_wait(start) is RESULT


async def test_a_refused_read_raises() -> None:
    def start(complete: OnRead) -> None:
        complete(NoSuchSegmentError("s"), None)

    with pytest.raises(NoSuchSegmentError):
        await read_and_wait(start)


async def test_a_cancelled_read_is_forgotten() -> None:
    handle = Handle()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_and_wait, lambda _: handle)
        await trio.testing.wait_all_tasks_blocked()
        assert not handle.cancelled
        nursery.cancel_scope.cancel()
    assert handle.cancelled
