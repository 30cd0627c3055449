"""Segment stores to run a controller against, one in memory and the real one over TCP, and clients
of controllers.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
import trio
from google.protobuf import message_factory
from google.protobuf.message import Message

import segstore.network.server
from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Controller, Environment, open_controller
from pravega_controller.rpc.service import SERVICE
from pravega_controller.server import serve
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_security.access_rules import parse_access_rules
from pravega_security.accounts_file import Account, change_accounts_file
from pravega_security.passwords import hash_password
from pravega_security.signing_keys import create_key_file
from segstore.process.assembly import open_containers
from segstore.process.config import SegmentStoreConfig
from support.http_controllers import HttpClient, serve_http

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]


@pytest.fixture
async def memory_store(nursery: trio.Nursery) -> MemorySegmentStore:
    """A segment store in memory that outlives controllers."""
    store = MemorySegmentStore()
    await nursery.start(store.run)
    return store


@pytest.fixture
def open_on_memory(memory_store: MemorySegmentStore) -> OpenController:
    """Opens controllers, one after the other, on the same segment store in memory."""
    clock = iter(range(1_000_000, 2_000_000))
    seeds = itertools.count(7)

    @asynccontextmanager
    async def open_it(
        now_ms: Callable[[], int] = lambda: next(clock), **settings: Any
    ) -> AsyncIterator[Controller]:
        config = ControllerConfig(
            **{
                "reply_seconds_max": 5.0,
                "request_poll_seconds": 0.0,
                "retention_period_seconds": 0.0,
                "watermark_period_seconds": 0.0,
                "history_period_seconds": 0.0,
                **settings,
            }
        )
        environment = Environment(
            now_ms=now_ms,
            random=Random(next(seeds)),
            open_stream=memory_store.open_stream,
        )
        async with open_controller(config, environment) as controller:
            yield controller

    return open_it


async def serve_segments(config: SegmentStoreConfig, *, task_status: trio.TaskStatus[int]) -> None:
    async with open_containers(config) as open_container:
        await segstore.network.server.serve(config, open_container, task_status=task_status)


@pytest.fixture
async def segment_store(tmp_path: Path, nursery: trio.Nursery) -> tuple[str, int]:
    """The address of a real segment store that is served over TCP, with four containers."""
    config = SegmentStoreConfig(
        host="127.0.0.1", port=0, data_dir=tmp_path, container_count=4, drain_seconds=0.1
    )
    port: int = await nursery.start(serve_segments, config)
    return "127.0.0.1", port


class GrpcClient:
    """Calls a controller's methods by their names, in threads."""

    def __init__(self, target: str, *options: tuple[str, Any]) -> None:
        self.target = target
        self._channel = grpc.insecure_channel(target, options=options)

    def subscribe(self, note: Callable[[str], None]) -> None:
        """Report the connection's states by their names."""
        self._channel.subscribe(lambda state: note(state.name))

    async def call(self, name: str, request: Message) -> Any:
        """Call a method and return the answer. Raises ``grpc.RpcError``."""
        method = SERVICE.methods_by_name[name]
        invoke = self._channel.unary_unary(
            f"/{SERVICE.full_name}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
        )
        return await trio.to_thread.run_sync(lambda: invoke(request, timeout=30))

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
async def grpc_on_memory(
    memory_store: MemorySegmentStore, nursery: trio.Nursery
) -> AsyncIterator[GrpcClient]:
    """A client of a served controller whose segment store is in memory."""
    environment = Environment(random=Random(7), open_stream=memory_store.open_stream)
    config = ControllerConfig(
        port=0, drain_seconds=0.5, request_poll_seconds=0.0, retention_period_seconds=0.0
    )
    host, port = await nursery.start(partial(serve, config, environment=environment))
    client = GrpcClient(f"{host}:{port}")
    yield client
    client.close()


@pytest.fixture
async def client(memory_store: MemorySegmentStore, nursery: trio.Nursery) -> HttpClient:
    """A client of a controller whose segment store is in memory."""
    return await serve_http(memory_store, nursery)


@pytest.fixture
def users(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The settings of a controller with users: ``admin`` may do everything, ``reader`` reads the
    root, ``s`` and ``s/t``, ``writer`` writes ``s/t`` and has no right to the root, ``guest`` reads
    ``s`` and all that is in it."""
    folder = tmp_path_factory.mktemp("users")
    accounts, keys = folder / "passwd", folder / "keys"
    create_key_file(keys, now=0)
    rules = {
        "admin": "prn::*,READ_UPDATE",
        "writer": "prn::/scope:s/stream:t,READ_UPDATE",
        "guest": "prn::/scope:s,READ;prn::/scope:s/*,READ",
        "reader": "prn::/,READ;prn::/scope:s,READ;prn::/scope:s/stream:t,READ",
    }
    for user, text in rules.items():
        account = Account(user, hash_password(user, rounds=10), parse_access_rules(text))
        change_accounts_file(accounts, lambda file, account=account: file.put(account))
    return {"accounts": accounts, "token_keys": keys, "audit_log": folder / "audit.log"}


@pytest.fixture
async def secure_client(
    memory_store: MemorySegmentStore, nursery: trio.Nursery, users: dict[str, Any]
) -> AsyncIterator[HttpClient]:
    """The client of a controller with users, whose segment store is in memory."""
    yield await serve_http(memory_store, nursery, **users)
    nursery.cancel_scope.cancel()
