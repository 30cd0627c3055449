"""Tests of the page of a stream whose segment stores have something to say."""

from __future__ import annotations

import re

import pytest
import trio

from pravega_controller.console import stream_numbers
from pravega_controller.http.metrics import name_store
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_metrics import store_metrics as metrics
from pravega_metrics.readings import encode_readings
from pravega_wire.commands import GetStreamSegmentInfo
from pravega_wire.names import container_of, segment_name
from support.console_pages import Checked, make_stream
from support.http_controllers import HttpClient, serve_http

STREAM = "/console/streams/s/t"
CONTAINERS = 4
STORE = ("127.0.0.1", 12345)


def containers_of_stream() -> list[str]:
    return sorted({str(container_of(segment_name("s", "t", n), CONTAINERS)) for n in (0, 1)})


def reasons_on(page: str) -> list[str]:
    assert Checked(page).faults == []
    notice = re.search(r'<div class="notice bad">(.*?)</div>', page, re.DOTALL)
    return [] if notice is None else re.findall("<li>(.*?)</li>", notice[1])


@pytest.fixture
async def client(memory_store: MemorySegmentStore, nursery: trio.Nursery) -> HttpClient:
    """A client of a controller with four containers in one store."""
    client = await serve_http(
        memory_store, nursery, container_count=CONTAINERS, segment_stores=(STORE,)
    )
    await make_stream(client)
    return client


async def test_the_page_of_a_stalled_stream_says_why(
    client: HttpClient, memory_store: MemorySegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_numbers, "BOUNDS_SECONDS_MAX", 0.2)
    mine = containers_of_stream()
    [other, *_] = sorted({str(each) for each in range(CONTAINERS)} - set(mine))
    memory_store.readings = encode_readings(
        [
            metrics.CONTAINER_STATES.family({(mine[0], "failed"): 1, (other, "recovering"): 1}),
            metrics.THROTTLE_SECONDS.family({(mine[-1], "tier 2"): 0.5, (other, "log"): 0.5}),
            metrics.DISK_BYTES.family({("/d", "used"): 95, ("/d", "free"): 5}),
        ]
    )
    # As a container does that is offline.
    memory_store.is_elsewhere = lambda request: (
        isinstance(request, GetStreamSegmentInfo) and request.segment.startswith("s/t/")
    )
    with trio.fail_after(60):
        answer = await client.ask("GET", STREAM)
    assert answer.status == 200
    store = name_store(STORE)
    assert reasons_on(answer.document) == [
        f"Container {mine[0]} of {store} is failed.",
        f"Container {mine[-1]} of {store} slows writers down: tier 2.",
    ]
    assert "<dt>In these segments</dt><dd>–</dd>" in answer.document


async def test_the_page_of_a_stream_that_is_well_has_no_warning(
    client: HttpClient, memory_store: MemorySegmentStore
) -> None:
    memory_store.readings = encode_readings([metrics.DELAYS.family({(): 0})])
    assert reasons_on((await client.ask("GET", STREAM)).document) == []


async def test_a_store_that_does_not_answer_is_told_on_the_page(client: HttpClient) -> None:
    # It does not tell its readings.
    reasons = reasons_on((await client.ask("GET", f"{STREAM}/live")).document)
    assert reasons == [f"Segment store {name_store(STORE)} does not answer."]
