"""Tests of the page of a reader group, and of what a stream's page has of its groups.

Clients have written the groups' states into a real segment store.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from pravega_controller.config import ControllerConfig
from pravega_controller.console.application import make_console
from pravega_controller.controller import Controller, Environment, open_controller
from pravega_controller.http.calls import Calls
from pravega_controller.http.health import Health
from pravega_controller.rules.streams import fixed_configuration
from pravega_wire import controller_pb2 as pb
from pravega_wire.names import mark_stream
from pravega_wire.watermarks import SegmentWithRange, Watermark, encode_watermark
from support.console_pages import Checked
from support.group_revisions import ID, acquires, begins, comes, name_segment, tells
from support.http_controllers import HttpClient, basic, send_to_application

QUIET: dict[str, Any] = {
    "request_poll_seconds": 0.0,
    "retention_period_seconds": 0.0,
    "watermark_period_seconds": 0.0,
}
EVENT = b"x" * 92
"""With its header an event has 100 bytes."""


class Scene:
    """A controller with the streams ``s/t`` and ``s/u``, each of two segments of 1,000 bytes."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.calls = Calls(controller, None)

    async def append(self, segment: str, *events: bytes) -> None:
        for each in events:
            info = await self.controller.segments.segment_info(segment)
            assert info is not None
            assert await self.controller.segments.append_if_at(
                segment, each, expected_offset=info.length, writer_id=bytes(16)
            )

    async def prepare(self) -> None:
        await self.controller.scopes.create("s")
        for stream in ("t", "u"):
            await self.controller.streams.create("s", stream, fixed_configuration(2))
            for segment in range(2):
                await self.append(name_segment(f"s/{stream}", segment), *[EVENT] * 10)

    async def make_group(self, group: str, *streams: str, retention: int = 0) -> None:
        cuts = [
            pb.StreamCut(streamInfo=pb.StreamInfo(scope="s", stream=stream)) for stream in streams
        ]
        configuration = pb.ReaderGroupConfiguration(
            scope="s",
            readerGroupName=group,
            groupRefreshTimeMillis=3000,
            maxOutstandingCheckpointRequest=3,
            retentionType=retention,
            readerGroupId=str(ID),
            startingStreamCuts=cuts,
            endingStreamCuts=cuts,
        )
        await self.calls.of([], "").call("createReaderGroup", configuration)

    async def begin(self, group: str, *streams: str) -> None:
        """Let an official client begin the group, with a reader of the first segment."""
        first = name_segment(f"s/{streams[0]}", 0)
        names = [f"s/{stream}" for stream in streams]
        await self.append(
            name_segment(f"s/_RG{group}", 0),
            begins(*names, segments=range(2)),
            comes("one"),
            acquires("one", first),
            tells("one", first, 300),
        )

    async def read(self, path: str, expected: int = 200) -> str:
        """Return a page of a console that has not looked before."""
        console = make_console(self.calls, Health(self.controller, ControllerConfig()), ())
        status, body = await send_to_application(console, "GET", path, b"")
        assert status == expected, body
        page = body.decode()
        assert Checked(page).faults == [] or "<html" not in page
        return page


@pytest.fixture
async def scene(segment_store: tuple[str, int]) -> AsyncIterator[Scene]:
    config = ControllerConfig(segment_stores=(segment_store,), container_count=4, **QUIET)
    async with open_controller(config, Environment(random=Random(7))) as controller:
        scene = Scene(controller)
        await scene.prepare()
        yield scene


def rows_of(page: str, table: str) -> list[list[str]]:
    """Return the texts of the cells of a table."""
    [body] = re.findall(rf'<table id="{table}">.*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    return [
        [
            re.sub(r"<[^>]+>", "", cell).strip()
            for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        ]
        for row in re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    ]


async def test_a_group_shows_its_lag_by_segment(scene: Scene) -> None:
    await scene.make_group("g", "t")
    assert "/console/groups/s/g" in await scene.read("/scopes/s")
    assert "No client has begun" in await scene.read("/groups/s/g")
    await scene.begin("g", "t")
    page = await scene.read("/groups/s/g")
    assert rows_of(page, "lags") == [
        ["1.#epoch.0", "1.00 kB", "–", "–", "nobody", "0", "1000"],
        ["0.#epoch.0", "700 B", "–", "–", "one", "300", "1000"],
    ]
    assert "/console/streams/s/t" in page
    assert "1.70 kB" in page
    by_segment = rows_of(await scene.read("/groups/s/g/live?sort=segment"), "lags")
    assert [row[0] for row in by_segment] == ["0.#epoch.0", "1.#epoch.0"]
    points = json.loads(await scene.read("/groups/s/g/points"))
    assert [point[1:] for point in points] == [[1700.0, None]]
    await scene.read("/groups/s/g?sort=x", 400)
    await scene.read("/groups/s/none", 404)


async def test_a_lag_in_time_is_by_the_times_of_writers(scene: Scene) -> None:
    await scene.make_group("g", "t")
    await scene.begin("g", "t")
    for number in range(1, 4):
        cut = {SegmentWithRange(segment, 0.0, 1.0): 250 * number for segment in range(2)}
        mark = Watermark(number * 60_000, number * 60_000 + 7, cut)
        await scene.append(name_segment(f"s/{mark_stream('t')}", 0), encode_watermark(mark))
    rows = rows_of(await scene.read("/groups/s/g?sort=time"), "lags")
    # The second segment is before the first watermark.
    assert [row[3] for row in rows] == ["2 min", "2 min"]
    await scene.append(
        name_segment("s/_RGg", 0), tells("one", name_segment("s/t", 0), 600), comes("two")
    )
    page = await scene.read("/groups/s/g?sort=reader")
    assert [row[3:5] for row in rows_of(page, "lags")] == [["60 s", "one"], ["2 min", "nobody"]]
    assert re.search("<th scope=.row.>two</th><td class=.number.>0<", page)


async def test_a_stream_shows_the_groups_that_read_it(scene: Scene) -> None:
    await scene.controller.scopes.create("other")
    await scene.make_group("both", "t", "u")
    await scene.make_group("idle", "t")
    await scene.make_group("elsewhere", "u")
    await scene.begin("both", "t", "u")
    page = await scene.read("/streams/s/t")
    assert rows_of(page, "readers") == [
        ["both", "1.70 kB", "–", "–", "2 of 2"],
        ["idle", "nobody has begun to read with it"],
    ]
    assert rows_of(await scene.read("/streams/s/u/live"), "readers")[0][:2] == ["both", "2.00 kB"]
    # What is no state is told where it is, and harms no other group.
    await scene.append(name_segment("s/_RGidle", 0), b"text")
    page = await scene.read("/streams/s/t")
    [first, second] = rows_of(page, "readers")
    assert (first[:2], "has no state of a group" in second[1]) == (["both", "1.70 kB"], True)
    assert "has no state of a group" in await scene.read("/groups/s/idle")


async def test_a_lag_is_told_to_those_who_may_read_the_stream(
    scene: Scene, secure_console: HttpClient
) -> None:
    await scene.make_group("g", "t", "u")
    await scene.begin("g", "t", "u")
    seen = {}
    for user in ("reader", "admin", "writer"):
        for path in ("", "/live", "/points"):
            answer = await secure_console.ask(
                "GET", f"/console/groups/s/g{path}", headers=basic(user)
            )
            seen[user, path] = answer.status
            if user == "reader" and path != "/points":
                assert "streams that you may not read" in answer.document
                assert "1.70 kB" in answer.document
                assert {row[0] for row in rows_of(answer.document, "lags")} == {
                    "s/t 0.#epoch.0",
                    "s/t 1.#epoch.0",
                }
            if user == "admin" and path == "":
                assert len(rows_of(answer.document, "lags")) == 4
    assert {key: status for key, status in seen.items() if status != 200} == {
        ("reader", "/points"): 403,
        ("writer", ""): 403,
        ("writer", "/live"): 403,
        ("writer", "/points"): 403,
    }
