"""Tests of an event that is written in the browser, when its segment store refuses it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from pravega_controller.console.events.publishing import publish
from pravega_controller.controller import Controller
from pravega_controller.errors import StoreUnavailableError
from pravega_controller.http.calls import Calls
from pravega_controller.rpc import service
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.rules.transactions import TransactionState

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]
assert service.SERVICE


async def test_an_event_that_cannot_be_written_leaves_no_transaction(
    open_on_memory: OpenController, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        await controller.streams.create("s", "t", fixed_configuration(2))
        calls = Calls(controller, None).of([], "")
        names: list[str] = []

        async def fail(self: Any, name: str, *arguments: Any, **options: Any) -> bool:
            names.append(name)
            raise StoreUnavailableError("away")

        monkeypatch.setattr(type(controller.segments), "append_if_at", fail)
        with pytest.raises(StoreUnavailableError):
            await publish(calls, "s", "t", b"x", "key")
        [name] = names
        assert "#transaction." in name
        identifier = bytes.fromhex(name.rpartition(".")[2])
        ended = {None, TransactionState.ABORTING, TransactionState.ABORTED}
        assert await controller.transactions.state("s", "t", identifier) in ended
