"""The HTTP port of a controller whose segment stores are away when it starts."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from random import Random

import trio

from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Environment
from pravega_controller.http.starting import SENTENCE, SwitchedApplication
from pravega_controller.server import serve
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from segstore.testing.ports import free_ports
from support.http_controllers import HttpClient, send_to_application


async def test_a_controller_that_starts_is_alive_and_not_ready(
    memory_store: MemorySegmentStore, nursery: trio.Nursery
) -> None:
    is_there = trio.Event()

    async def open_stream(host: str, port: int) -> trio.abc.HalfCloseableStream:
        if not is_there.is_set():
            raise ConnectionRefusedError
        return await memory_store.open_stream(host, port)

    [port] = free_ports(1)
    config = ControllerConfig(port=0, http_port=port, drain_seconds=0.1)
    environment = Environment(random=Random(7), open_stream=open_stream)
    started = trio.Event()

    async def start() -> None:
        await nursery.start(partial(serve, config, environment=environment))
        started.set()

    client = HttpClient(port)
    nursery.start_soon(start)
    with trio.fail_after(60):
        # The port listens as soon as the process runs.
        while True:
            try:
                answer = await client.ask("GET", "/live")
                break
            except ConnectionRefusedError:
                await trio.sleep(0.01)
        assert answer.status == 200
        for method, path in (("GET", "/ready"), ("GET", "/v1/scopes"), ("POST", "/v1/scopes")):
            answer = await client.ask(method, path)
            assert (answer.status, answer.document) == (503, {"error": SENTENCE})
            assert answer.headers["retry-after"] == "1"
        readings = await client.ask("GET", "/metrics")
        assert "segstore_controller_ready" in readings.document
        [line] = [
            each
            for each in readings.document.splitlines()
            if each.startswith("segstore_controller_ready{")
        ]
        assert line.endswith(" 0.0")
        assert not started.is_set()
        is_there.set()
        await started.wait()
        assert (await client.ask("GET", "/ready")).status == 200
        assert (await client.ask("GET", "/v1/scopes")).status == 200
    nursery.cancel_scope.cancel()


async def test_the_readings_of_a_store_with_users_wait_for_its_start() -> None:
    application = SwitchedApplication("here:1", has_users=True)
    status, body = await send_to_application(application, "GET", "/metrics", b"")
    assert status == 503
    assert SENTENCE in body.decode()
    status, _ = await send_to_application(application, "GET", "/live/", b"")
    assert status == 200


async def test_a_switch_while_the_first_application_is_made_is_not_lost() -> None:
    application = SwitchedApplication("here:1", has_users=True)
    answered = []

    async def real(scope: object, receive: object, send: object) -> None:
        answered.append(scope)

    async def ask() -> None:
        # The real application sends nothing.
        with suppress(IndexError):
            await send_to_application(application, "GET", "/live", b"")

    async with trio.open_nursery() as asking:
        asking.start_soon(ask)
        await trio.lowlevel.checkpoint()
        application.switch(lambda: real)
    await ask()
    assert answered
