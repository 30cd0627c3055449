"""States of groups, read from a real segment store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
import trio

from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Controller, Environment, open_controller
from pravega_controller.errors import (
    IllegalStateError,
    NotFoundError,
    StoreAnswerError,
    StoreUnavailableError,
)
from pravega_controller.groups import group_states
from pravega_controller.groups.group_states import StateReader
from pravega_controller.rules.streams import fixed_configuration
from pravega_wire.commands import NULL_ATTRIBUTE_VALUE
from pravega_wire.event_framing import frame_event
from pravega_wire.hashing import REVISION_MARK
from pravega_wire.versioned import write_text, write_versioned

SEGMENT = "s/_RGg/0.#epoch.0"
QUIET: dict[str, Any] = {
    "request_poll_seconds": 0.0,
    "retention_period_seconds": 0.0,
    "watermark_period_seconds": 0.0,
}


def change(kind: int, name: str = "") -> bytes:
    record = write_versioned([write_text(name) + bytes(1)])
    return bytes([0, kind]) + record[1:]


SETTINGS = write_versioned([bytes(18)])
"""A configuration of a client before 0.10, without streams."""
RECORD = write_versioned([bytes([len(SETTINGS)]) + SETTINGS + bytes(2)])
EMPTY = (1).to_bytes(4, "big") + bytes(2) + RECORD[1:]
"""A state without segments."""


def comes(name: str) -> bytes:
    data = change(2, name)
    return (2).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data


class Scene:
    """A controller, and the segment of a group's state."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.segments = controller.segments

    async def write(self, *revisions: bytes) -> int:
        """Append revisions; return the length of the segment."""
        for each in revisions:
            info = await self.segments.segment_info(SEGMENT)
            assert info is not None
            assert await self.segments.append_if_at(
                SEGMENT, each, expected_offset=info.length, writer_id=bytes(16)
            )
        info = await self.segments.segment_info(SEGMENT)
        assert info is not None
        return info.length

    async def find(self) -> list[str]:
        """Return the readers that are online, by the whole state."""
        state = await self.controller.groups.open_state("s", "g")
        return (await state.read()).readers


@pytest.fixture
async def scene(segment_store: tuple[str, int]) -> AsyncIterator[Scene]:
    config = ControllerConfig(segment_stores=(segment_store,), **QUIET)
    async with open_controller(config, Environment(random=Random(7))) as controller:
        await controller.scopes.create("s")
        await controller.streams.create("s", "_RGg", fixed_configuration(1))
        yield Scene(controller)


async def test_readers_are_found_from_the_mark_on(scene: Scene) -> None:
    assert await scene.find() == []
    await scene.write(EMPTY, comes("b"), comes("a"))
    assert await scene.find() == ["a", "b"]
    end = await scene.write()
    await scene.write(EMPTY, comes("c"))
    assert await scene.segments.replace_attribute(
        SEGMENT, REVISION_MARK, end, expected=NULL_ATTRIBUTE_VALUE
    )
    assert await scene.find() == ["c"]
    await scene.segments.truncate_segment(SEGMENT, offset=end)
    assert await scene.find() == ["c"]


async def test_a_state_of_many_pieces_is_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_states, "READ_BYTES", 7)
    names = [f"reader {number}" for number in range(10)]
    await scene.write(EMPTY, *map(comes, names))
    assert await scene.find() == names


async def test_a_state_is_read_on_from_where_it_was_read_to(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, asked = scene.segments.read_segment, []

    async def note_and_read(segment: str, *, offset: int, length: int) -> bytes:
        asked.append((offset, length))
        return await read(segment, offset=offset, length=length)

    monkeypatch.setattr(scene.segments, "read_segment", note_and_read)
    first = await scene.write(EMPTY, comes("a"))
    state = await scene.controller.groups.open_state("s", "g")
    assert (await state.read()).readers == ["a"]
    second = await scene.write(comes("b"))
    assert (await state.read()).readers == ["a", "b"]
    assert (await state.read()).readers == ["a", "b"]
    assert asked == [(0, first), (first, second - first)]
    # Behind a compaction, and behind much that has come, it begins anew.
    end = await scene.write(comes("c"))
    await scene.write(EMPTY, comes("d"))
    await scene.segments.truncate_segment(SEGMENT, offset=end)
    assert (await state.read()).readers == ["d"]
    monkeypatch.setattr(group_states, "READ_BYTES", 1)
    await scene.write(comes("e"))
    assert (await state.read()).readers == ["d", "e"]
    # What was refused is not half taken.
    await scene.write(b"text")
    for _ in range(2):
        with pytest.raises(IllegalStateError, match="has no state of a group"):
            await state.read()


@pytest.mark.parametrize("revision", [b"", b"text", EMPTY[:-1]])
async def test_a_state_that_cannot_be_read_is_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, revision: bytes
) -> None:
    await scene.write(revision)
    with pytest.raises(IllegalStateError, match="has no state of a group"):
        await scene.find()
    monkeypatch.setattr(group_states, "STATE_BYTES_MAX", len(frame_event(revision)) - 1)
    with pytest.raises(IllegalStateError, match="at most"):
        await scene.find()


async def test_a_state_that_is_truncated_meanwhile_is_read_anew(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = await scene.write(EMPTY, comes("a"))
    await scene.write(EMPTY, comes("b"))
    read = scene.segments.read_segment

    async def truncate_and_read(segment: str, *, offset: int, length: int) -> bytes:
        await scene.segments.truncate_segment(SEGMENT, offset=end)
        return await read(segment, offset=offset, length=length)

    monkeypatch.setattr(scene.segments, "read_segment", truncate_and_read)
    assert await scene.find() == ["b"]

    async def refuse(segment: str, *, offset: int, length: int) -> bytes:
        await trio.lowlevel.checkpoint()
        raise StoreAnswerError("no such offset")

    monkeypatch.setattr(scene.segments, "read_segment", refuse)
    with pytest.raises(StoreAnswerError):
        await scene.find()


async def test_a_store_that_takes_too_long_is_given_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait(segment: str) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(group_states, "READ_SECONDS_MAX", 0.01)
    monkeypatch.setattr(scene.segments, "segment_info", wait)
    with pytest.raises(StoreUnavailableError, match="was not read in"):
        await scene.find()


async def test_a_missing_segment_is_told(scene: Scene) -> None:
    with pytest.raises(NotFoundError):
        await StateReader(scene.segments, "s/_RGnone/0.#epoch.0").read()
