"""Tests of the page of the servers, and of its rows."""

from __future__ import annotations

from pravega_controller.console.pages.cluster_pages import call_rows, container_rows, disk_rows
from pravega_controller.console.store_numbers import StoresSeen
from pravega_metrics import store_metrics as metrics
from pravega_metrics.metrics import Distribution, Family
from support.console_pages import Checked
from support.http_controllers import HttpClient, basic

MS = 1_000_000


def seen(*families: Family) -> StoresSeen:
    return StoresSeen({"a:1": {each.metric.name: each for each in families}, "b:2": None})


async def test_the_page_shows_the_containers_of_a_store(console: HttpClient) -> None:
    for path in ("/console/cluster", "/console/cluster/live"):
        answer = await console.ask("GET", path)
        assert answer.status == 200
        assert answer.document.count("<td>online</td>") == 4
        assert "4 containers" in answer.document
        assert "does not answer" not in answer.document
    assert Checked((await console.ask("GET", "/console/cluster")).document).faults == []


async def test_who_may_not_read_the_root_does_not_see_the_servers(
    secure_client: HttpClient,
) -> None:
    for user, status in (("writer", 403), ("reader", 200)):
        answer = await secure_client.ask("GET", "/console/cluster", headers=basic(user))
        assert answer.status == status
        assert ("Containers" in answer.document) == (status == 200)


def test_a_container_that_slows_writers_down_is_first() -> None:
    states = {
        ("0", "online"): 1,
        ("0", "failed"): 0,
        ("1", "online"): 1,
        ("10", "online"): 0,
        ("10", "failed"): 1,
    }
    rows = container_rows(
        seen(
            metrics.CONTAINER_STATES.family(states),
            metrics.UNFLUSHED_BYTES.family({("0",): 5, ("1",): 7}),
            metrics.THROTTLE_SECONDS.family(
                {("1", "tier 2"): 0.2, ("1", "cache"): 0.1, ("0", "cache"): 0.0}
            ),
        )
    )
    assert [(row.number, row.state, row.unflushed, row.delay_reason) for row in rows] == [
        (1, "online", 7, "tier 2"),
        (0, "online", 5, ""),
        (10, "failed", 0.0, ""),
    ]


def test_calls_of_tier_2_and_disks_have_rows() -> None:
    found = seen(
        metrics.TIER2_SECONDS.family(
            {("write", "done"): Distribution(0, ((2 * MS, 99), (8 * MS, 1)))}
        ),
        metrics.DISK_BYTES.family({("/d", "used"): 3, ("/d", "free"): 4}),
    )
    [call] = call_rows(found)
    assert (call.call, call.count, call.median, call.slow) == ("write", 100, 0.002, 0.002)
    [disk] = disk_rows(found)
    assert (disk.store, disk.used, disk.free) == ("a:1", 3, 4)
