"""Wakes and errors of those who wait for an event."""

from __future__ import annotations

import anyio
import pytest

from segstore_client.writing.acknowledgement import Acknowledgement


async def test_it_wakes_all_who_wait_and_holds_up_nobody_who_comes_later() -> None:
    acknowledgement, woken = Acknowledgement(), []

    async def wait(number: int) -> None:
        await acknowledgement
        woken.append(number)

    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(wait, number)
        await anyio.wait_all_tasks_blocked()
        assert not woken
        assert not acknowledgement.is_done
        acknowledgement.complete()
    assert sorted(woken) == [0, 1, 2]
    assert acknowledgement.is_done
    await acknowledgement


def test_it_is_done_when_the_last_of_its_events_is_stored() -> None:
    acknowledgement = Acknowledgement()
    acknowledgement.unstored = 3
    acknowledgement.note_stored(2)
    assert not acknowledgement.is_done
    acknowledgement.note_stored(1)
    assert acknowledgement.is_done


async def test_each_who_waits_gets_an_error_of_its_own() -> None:
    acknowledgement = Acknowledgement()
    error = ValueError("lost")
    acknowledgement.complete(error)
    caught = []
    for _ in range(2):
        with pytest.raises(ValueError, match="lost") as found:
            await acknowledgement
        caught.append(found.value)
    assert caught[0] is not caught[1]
    assert caught[0].__cause__ is caught[1].__cause__ is error
