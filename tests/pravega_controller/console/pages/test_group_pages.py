"""Tests of the page of a reader group."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from pravega_controller.config import ControllerConfig
from pravega_controller.console.application import make_console
from pravega_controller.controller import Controller
from pravega_controller.http.calls import Calls
from pravega_controller.http.health import Health
from pravega_controller.rules.streams import fixed_configuration
from pravega_wire import controller_pb2 as pb
from support.console_pages import Checked
from support.http_controllers import send_to_application

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]


async def test_a_group_shows_its_streams(open_on_memory: OpenController) -> None:
    async with open_on_memory() as controller:
        calls = Calls(controller, None)
        console = make_console(calls, Health(controller, ControllerConfig()), ())
        await controller.scopes.create("s")
        await controller.streams.create("s", "t", fixed_configuration(1))
        cut = pb.StreamCut(streamInfo=pb.StreamInfo(scope="s", stream="t"))
        configuration = pb.ReaderGroupConfiguration(
            scope="s",
            readerGroupName="g",
            groupRefreshTimeMillis=3000,
            maxOutstandingCheckpointRequest=3,
            readerGroupId=str(uuid.UUID(int=7)),
            startingStreamCuts=[cut],
            endingStreamCuts=[cut],
        )
        await calls.of([], "").call("createReaderGroup", configuration)

        async def read(path: str, expected: int = 200) -> str:
            status, body = await send_to_application(console, "GET", path, b"")
            assert status == expected, body
            assert Checked(body.decode()).faults == []
            return body.decode()

        assert "/console/groups/s/g" in await read("/scopes/s")
        assert "/console/streams/s/t" in await read("/groups/s/g")
        await read("/groups/s/none", 404)
