"""A controller's process starts and stops in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio

from pravega_controller import server
from pravega_controller.clocks import wall_clock_ms
from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Environment
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_security.delegation_tokens import TokenVerifier
from pravega_security.signing_keys import SigningKeys, SigningKeysError, create_key_file


async def test_a_start_that_is_cancelled_when_the_controller_is_just_open_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with trio.CancelScope() as scope:

        @asynccontextmanager
        async def opening(*_: object) -> AsyncIterator[None]:
            scope.cancel()
            yield

        monkeypatch.setattr(server, "open_controller", opening)
        config = ControllerConfig(
            host="127.0.0.1", port=0, segment_stores=(("127.0.0.1", 1),), container_count=1
        )
        await server.serve(config)
    assert scope.cancelled_caught


async def test_a_controller_with_keys_proves_itself_to_segment_stores(
    memory_store: MemorySegmentStore, nursery: trio.Nursery, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    create_key_file(keys, now=0)
    verifier = TokenVerifier(SigningKeys(keys), wall_seconds)
    memory_store.accepts_token = lambda token: verifier.verify(token).is_master
    config = ControllerConfig(host="127.0.0.1", port=0, container_count=4, token_keys=keys)
    environment = Environment(random=Random(7), open_stream=memory_store.open_stream)
    with trio.fail_after(60):
        await nursery.start(partial(server.serve, config, environment=environment))
    assert memory_store.tables
    nursery.cancel_scope.cancel()


def wall_seconds() -> int:
    """Return the wall clock's time in seconds."""
    return wall_clock_ms() // 1000


async def test_a_controller_without_its_keys_does_not_start(tmp_path: Path) -> None:
    config = ControllerConfig(host="127.0.0.1", port=0, token_keys=tmp_path / "keys")
    with pytest.raises(SigningKeysError, match="keys cannot be read: No such file"):
        await server.serve(config)
