"""The metrics that a controller tells: its own, and those of segment stores."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families

from pravega_controller.controller import Controller
from pravega_controller.http.metrics import gather_metrics
from pravega_controller.rpc.rpc import RPCS
from pravega_controller.store_client.placement import Address, StaticPlacement
from pravega_controller.store_client.segment_client import METRICS_SECONDS_MAX
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_metrics import controller_metrics, store_metrics
from pravega_metrics.exposition import CONTENT_TYPE, Source
from pravega_metrics.metrics import Labels, Metric, Reading
from pravega_metrics.readings import encode_readings
from support.http_controllers import HttpClient, basic

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]
READINGS = encode_readings([store_metrics.CONNECTIONS.family({(): 3})])
STORES = (("a", 1), ("b", 2), ("c", 3))


class Stores:
    """Segment stores, as far as their metrics show; ``answers`` are by address."""

    def __init__(self, answers: dict[Address, bytes | None]) -> None:
        self.answers = answers

    async def read_metrics(self, address: Address) -> bytes | None:
        await trio.lowlevel.checkpoint()
        return self.answers[address]


async def gather(answers: dict[Address, bytes | None], *, owns: bool = True) -> list[Source]:
    controller: Any = SimpleNamespace(
        members=SimpleNamespace(owns=lambda key: owns),
        placement=StaticPlacement(STORES, container_count=4),
        segments=Stores(answers),
    )
    return await gather_metrics(controller, is_ready=True, name="me:9090")


def told_by(source: Source, metric: Metric[Any]) -> dict[Labels, Reading]:
    [readings] = [each.readings for each in source.families if each.metric is metric]
    return readings


def names_of(text: str) -> set[str]:
    return {family.name for family in text_string_to_metric_families(text)}


def value_of(text: str, name: str, **labels: str) -> float:
    [value] = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return value


# ---- Which stores are told -----------------------------------------------------------------------


async def test_a_store_that_does_not_answer_is_told_as_down() -> None:
    own, *stores = await gather({("a", 1): READINGS, ("b", 2): None, ("c", 3): READINGS})
    assert [each.name for each in stores] == ["a:1", "c:3"]
    assert told_by(own, controller_metrics.STORE_UP) == {("a:1",): 1, ("b:2",): 0, ("c:3",): 1}
    containers = {("a:1",): 2, ("b:2",): 1, ("c:3",): 1}
    assert told_by(own, controller_metrics.STORE_CONTAINERS) == containers


async def test_readings_that_are_none_leave_the_others() -> None:
    _, *stores = await gather({("a", 1): b"{", ("b", 2): READINGS, ("c", 3): b"[1]"})
    assert [each.name for each in stores] == ["b:2"]


async def test_another_controller_tells_only_of_itself() -> None:
    [own] = await gather({}, owns=False)
    assert (own.component, own.name) == ("controller", "me:9090")
    assert controller_metrics.STORE_UP not in [each.metric for each in own.families]


async def test_one_of_the_controllers_tells_of_the_stores(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    memory_store.readings = READINGS

    async def tellers(*controllers: Controller) -> int:
        told = [
            await gather_metrics(controller, is_ready=True, name="x") for controller in controllers
        ]
        return sum(len(sources) > 1 for sources in told)

    async with open_on_memory() as one:
        assert await tellers(one) == 1
        async with open_on_memory() as other, open_on_memory() as third:
            await trio.sleep(5)
            assert await tellers(one, other, third) == 1
        await trio.sleep(30)
        assert await tellers(one) == 1


# ---- The route -----------------------------------------------------------------------------------


async def test_both_paths_tell_the_controller_and_its_store(
    client: HttpClient, memory_store: MemorySegmentStore
) -> None:
    memory_store.readings = READINGS
    assert (await client.ask("POST", "/v1/scopes", {"scopeName": "s"})).status == 201
    for path in ("/metrics", "/prometheus"):
        answer = await client.ask("GET", path)
        assert answer.status == 200
        assert answer.headers["content-type"] == CONTENT_TYPE
        text = answer.document
        assert value_of(text, "segstore_connections", component="segmentstore") == 3
        assert value_of(text, "segstore_store_up") == 1
        assert value_of(text, "segstore_controller_ready") == 1
        assert value_of(text, "segstore_process_resident_bytes", component="controller") > 0


@pytest.mark.parametrize("silent", [False, True])
async def test_a_store_that_knows_no_such_question_is_down_and_stays_used(
    client: HttpClient, memory_store: MemorySegmentStore, silent: bool
) -> None:
    """The original's store closes the connection at a command that it does not know."""
    if silent:
        memory_store.readings = b""
    answer = await client.ask("GET", "/metrics")
    assert answer.status == 200
    assert value_of(answer.document, "segstore_store_up") == int(silent)
    assert "segstore_connections" not in names_of(answer.document)
    assert (await client.ask("POST", "/v1/scopes", {"scopeName": "s"})).status == 201


async def test_a_store_that_hangs_ends_the_wait(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as controller:

        async def hang(host: str, port: int) -> trio.abc.Stream:
            return trio.testing.memory_stream_pair()[0]

        monkeypatch.setattr(controller.segments, "_open_stream", hang)
        began = trio.current_time()
        [own] = await gather_metrics(controller, is_ready=True, name="x")
        assert trio.current_time() - began <= METRICS_SECONDS_MAX + 0.1
        assert [*told_by(own, controller_metrics.STORE_UP).values()] == [0]


async def test_metrics_need_the_right_to_read_the_root(
    secure_client: HttpClient, memory_store: MemorySegmentStore
) -> None:
    memory_store.readings = READINGS
    memory_store.accepts_token = bool  # the controller asks with a token of its own
    for headers, status in (
        ({}, 401),
        (basic("reader", "wrong"), 401),
        (basic("stranger"), 401),
        (basic("writer"), 403),
        (basic("reader"), 200),
        (basic("admin"), 200),
    ):
        answer = await secure_client.ask("GET", "/metrics", None, headers)
        assert answer.status == status, headers
    assert value_of(answer.document, "segstore_connections") == 3


async def test_rpcs_are_told_by_name_and_status(client: HttpClient) -> None:
    method = next(iter(RPCS))
    controller_metrics.RPC_SECONDS.of(method, "OK").record(1)
    answer = await client.ask("GET", "/metrics")
    assert value_of(answer.document, "segstore_rpc_seconds_count", method=method, code="OK") >= 1
