"""The health service, asked in bytes as by a client that has never seen our code."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
import trio

CHECK = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"


def request_for(service: str) -> bytes:
    """Return the bytes of a request: field 1, a text."""
    return b"\n" + bytes([len(service)]) + service.encode() if service else b""


async def ask(client: Any, service: str) -> bytes:
    def call() -> bytes:
        with grpc.insecure_channel(client.target) as channel:
            answer: bytes = channel.unary_unary(CHECK)(request_for(service), timeout=60)
            return answer

    return await trio.to_thread.run_sync(call)


@pytest.mark.parametrize(
    "service", ["", "io.pravega.controller.stream.api.grpc.v1.ControllerService"]
)
async def test_a_controller_that_serves_says_so(grpc_on_memory: Any, service: str) -> None:
    assert await ask(grpc_on_memory, service) == SERVING


async def test_a_service_that_is_not_there_is_not_found(grpc_on_memory: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        await ask(grpc_on_memory, "another.Service")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
