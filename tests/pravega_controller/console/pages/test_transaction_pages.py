"""Tests of the page of a stream's transactions."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any
from urllib.parse import urlencode

import pytest
import trio

from pravega_controller.config import ControllerConfig
from pravega_controller.console.application import make_console
from pravega_controller.controller import Controller, Environment, open_controller
from pravega_controller.http.calls import Calls
from pravega_controller.http.health import Health
from pravega_controller.rules.streams import fixed_configuration
from support.console_pages import Checked, make_stream
from support.http_controllers import HttpClient, basic, send_to_application

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]
PAGE = "/console/streams/s/t/transactions"
OWN = {"Sec-Fetch-Site": "same-origin"}


async def test_open_transactions_are_shown_by_age(open_on_memory: OpenController) -> None:
    async with open_on_memory() as controller:
        console: Any = make_console(
            Calls(controller, None), Health(controller, ControllerConfig()), ()
        )
        await controller.scopes.create("s")
        await controller.streams.create("s", "t", fixed_configuration(1))
        begun = [
            (await controller.transactions.begin("s", "t", lease_ms=20_000)).identifier.hex()
            for _ in range(2)
        ]
        path = PAGE.removeprefix("/console")
        status, body = await send_to_application(console, "GET", path, b"")
        assert status == 200
        assert Checked(body.decode()).faults == []
        assert re.findall(r"<code>(\w+)</code>", body.decode()) == begun


async def test_an_open_transaction_is_aborted(
    console: HttpClient, segment_store: tuple[str, int]
) -> None:
    await make_stream(console)
    config = ControllerConfig(segment_stores=(segment_store,), container_count=4)
    async with open_controller(config, Environment(random=Random(8))) as controller:
        begun = await controller.transactions.begin("s", "t", lease_ms=20_000)
        kept = await controller.transactions.begin("s", "t", lease_ms=20_000)
        names = [each.identifier.hex() for each in (begun, kept)]

        async def offered() -> list[str]:
            page = (await console.ask("GET", PAGE)).document
            return re.findall(r'aria-label="Abort (\w+)"', page)

        assert await offered() == names
        body = urlencode({"transaction": names[0]}).encode()
        answer = await console.ask("POST", PAGE, body, OWN)
        assert answer.status == 303
        assert answer.headers["location"] == f"{PAGE}?done=aborted"
        assert await offered() == names[1:]


async def test_what_is_no_open_transaction_is_refused(console: HttpClient) -> None:
    await make_stream(console)
    for wrong in ("", "xy", "00", "0" * 34):
        body = urlencode({"transaction": wrong}).encode()
        assert (await console.ask("POST", PAGE, body, OWN)).status == 400, wrong
    body = urlencode({"transaction": "0" * 32}).encode()
    assert (await console.ask("POST", PAGE, body, OWN)).status >= 400
    assert "None." in (await console.ask("GET", PAGE)).document


@pytest.mark.parametrize(("user", "may"), [("reader", False), ("admin", True)])
async def test_aborts_need_the_right(secure_client: HttpClient, user: str, may: bool) -> None:
    await make_stream(secure_client, headers=basic("admin"))
    body = urlencode({"transaction": "0" * 32}).encode()
    answer = await secure_client.ask("POST", PAGE, body, {**OWN, **basic(user)})
    assert (answer.status == 403) is not may
    await trio.lowlevel.checkpoint()
