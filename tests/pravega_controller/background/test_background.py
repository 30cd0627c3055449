from __future__ import annotations

import itertools
from random import Random

import trio
import trio.testing

from pravega_controller.background.background import Background
from pravega_controller.errors import StoreUnavailableError
from pravega_controller.metadata.records import IntentRecord

INTENT = IntentRecord("stream", "s", "a")


async def test_work_is_tried_again_until_it_succeeds(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    background = Background(nursery, random=Random(1))
    attempts: list[float] = []
    done = trio.Event()

    async def finish(scope: str, name: str) -> None:
        attempts.append(trio.current_time())
        if len(attempts) < 12:
            raise StoreUnavailableError("down")
        done.set()

    background.register("stream", finish)
    background.finish_later(INTENT)
    with trio.fail_after(300):
        await done.wait()
    pauses = [b - a for a, b in itertools.pairwise(attempts)]
    assert pauses[0] < 1
    assert max(pauses) <= 20


async def test_the_same_work_runs_once_at_a_time(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    background = Background(nursery, random=Random(1))
    begun = 0

    async def finish(scope: str, name: str) -> None:
        nonlocal begun
        begun += 1
        await trio.sleep(1)

    background.register("stream", finish)
    for _ in range(5):
        background.finish_later(INTENT)
    await trio.sleep(3)
    assert begun == 1
    background.finish_later(INTENT)
    await trio.sleep(3)
    assert begun == 2


async def test_a_bug_in_one_workflow_does_not_end_the_others(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    background = Background(nursery, random=Random(1))
    finished: list[str] = []

    async def finish(scope: str, name: str) -> None:
        if name == "a":
            raise ZeroDivisionError
        finished.append(name)

    background.register("stream", finish)
    background.finish_later(INTENT)
    background.finish_later(IntentRecord("nobody knows", "s", "c"))
    background.finish_later(IntentRecord("stream", "s", "b"))
    await trio.sleep(60)
    assert finished == ["b"]
