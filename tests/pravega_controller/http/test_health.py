"""The health of a controller, with and without a segment store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from pravega_controller.config import ControllerConfig
from pravega_controller.errors import StoreUnavailableError
from pravega_controller.http import health
from pravega_controller.http.calls import Calls
from pravega_controller.http.health import LOOK_SECONDS, Health, HealthOf
from pravega_controller.http.health_routes import tell_details
from pravega_controller.http.metrics_routes import tell_metrics
from pravega_controller.metadata.store import FIXED_TABLES
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from support.http_controllers import HttpClient
from support.rare_parameters import mark_rare

NO_STORE = "no segment store answers"


class Store:
    """The metadata of a controller whose segment store may be away; ``looks`` counts the reads."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.delay = 0.0
        self.looks = 0

    async def check(self, *, retry_seconds_max: float) -> None:
        self.looks += 1
        await trio.sleep(self.delay)
        if self.error is not None:
            raise self.error


class Controller:
    """A controller, as far as its health shows."""

    def __init__(self) -> None:
        self.store = Store()


class ControllerWithoutStores:
    """A controller beside another one, which tells of the stores; every call of it fails."""

    members = SimpleNamespace(owns=lambda key: False)


def make_health() -> tuple[Store, Health]:
    controller: Any = Controller()
    return controller.store, Health(controller, ControllerConfig(retention_period_seconds=0))


async def test_without_a_segment_store_it_is_not_ready(autojump_clock: Any) -> None:
    store, looked = make_health()
    assert (await looked.look()).is_ready
    for error, delay in ((StoreUnavailableError(NO_STORE), 0.0), (None, 60.0)):
        store.error, store.delay = error, delay
        await trio.sleep(LOOK_SECONDS)
        found = await looked.look()
        assert not found.is_ready
        [reason] = found.reasons()
        assert reason.startswith("segmentContainerMonitor: ")
        monitor = found.document()["children"]["segmentContainerMonitor"]
        assert (monitor["status"], found.document()["status"]) == ("DOWN", "DOWN")
        assert monitor["details"]["reason"] in reason
    store.error, store.delay = None, 0.0
    await trio.sleep(LOOK_SECONDS)
    assert (await looked.look()).is_ready


@pytest.mark.parametrize("table", mark_rare(FIXED_TABLES, 1))
async def test_each_table_of_the_metadata_has_to_be_readable(
    client: HttpClient,
    memory_store: MemorySegmentStore,
    monkeypatch: pytest.MonkeyPatch,
    table: str,
) -> None:
    monkeypatch.setattr(health, "LOOK_SECONDS", 0.0)

    def is_about_the_table(request: Any) -> bool:
        return getattr(request, "segment", None) == table

    assert (await client.ask("GET", "/ready")).status == 200
    memory_store.is_elsewhere = is_about_the_table
    answer = await client.ask("GET", "/ready")
    assert answer.status == 503
    assert f"the segment store does not serve {table}" in answer.document["error"]
    memory_store.is_elsewhere = lambda request: False
    assert (await client.ask("GET", "/ready")).status == 200
    # A container that answers nothing, such as one whose store hangs.
    memory_store.pause, memory_store.pauses = trio.Event(), is_about_the_table
    answer = await client.ask("GET", "/ready")
    assert answer.status == 503
    assert "do not answer within 2 s" in answer.document["error"]
    memory_store.pause.set()
    memory_store.pause = None
    assert (await client.ask("GET", "/ready")).status == 200


async def test_nothing_is_read_while_nobody_asks(autojump_clock: Any) -> None:
    store, looked = make_health()
    await looked.look()
    await trio.sleep(3600)
    assert store.looks == 1


async def test_many_questions_are_one_look(autojump_clock: Any) -> None:
    store, looked = make_health()
    store.delay = 0.5
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(looked.look)
    assert store.looks == 1


async def test_details_and_metrics_wait_for_no_segment_store(autojump_clock: Any) -> None:
    store, looked = make_health()
    store.error = StoreUnavailableError(NO_STORE)
    controller: Any = ControllerWithoutStores()
    request: Any = SimpleNamespace(
        path={}, calls=Calls(controller, None).of([], "peer"), health=looked
    )
    assert await tell_details(request) == {}
    assert b"segstore_controller_ready{" in (await tell_metrics(request)).body


async def test_rounds_that_do_not_run_are_not_told(autojump_clock: Any) -> None:
    _, looked = make_health()
    names = [child.name for child in (await looked.look()).children]
    assert "watermarkingService" in names
    assert "retentionService" not in names


def test_a_part_is_found_by_the_names_on_the_way() -> None:
    inner = HealthOf("b", "broken")
    tree = HealthOf("", children=(HealthOf("a", children=(inner,)), HealthOf("c")))
    assert tree.find("a/b") is inner
    assert tree.find("") is tree
    assert tree.find("c/b") is None
    assert not tree.is_ready
    assert list(tree.reasons()) == ["b: broken"]


async def test_probes_tell_by_their_status(client: HttpClient) -> None:
    assert (await client.ask("GET", "/ready")).status == 200
    assert (await client.ask("GET", "/live")).status == 200
    for path, document in (("", None), ("/GRPCServer", None), ("/status", "UP")):
        answer = await client.ask("GET", f"/v1/health{path}")
        assert answer.status == 200
        assert document in (None, answer.document)
    assert (await client.ask("GET", "/v1/health/status/none")).status == 404
