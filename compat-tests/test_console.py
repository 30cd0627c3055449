"""The console in a real browser, on a real server that is written to meanwhile."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from compat_harness.reader_groups import begin_reader_group
from compat_harness.secure import ADMINISTRATOR, SecureServer
from compat_harness.server import HOST, Server
from foreign_servers.deadlines import scale

from pravega_wire.names import segment_id
from segstore.testing.ports import free_ports
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.cuts.group_seek import seek_group
from segstore_client.cuts.segment_info import tail_offsets

pytest.importorskip("selenium", reason="Selenium is not installed")
from foreign_servers.browser import Browser, open_browser, why_not

pytestmark = [
    pytest.mark.compat,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

ANSWER_SECONDS_MAX = scale(60.0)
WIDTHS = (380, 1280)
PATHS = (
    "/",
    "/cluster",
    "/scopes",
    "/scopes/shop",
    "/streams/shop/orders",
    "/streams/shop/orders/events",
    "/streams/shop/orders/events?start=head&as=hex",
    "/streams/shop/orders/transactions",
    "/streams/shop/orders/scale",
    "/streams/shop/orders/truncate",
    "/streams/shop/orders/seal",
    "/streams/shop/orders/delete",
    "/groups/shop/billing",
    "/tables/shop/prices",
    "/tables/shop/prices/entries",
    "/streams/shop/none",
)
PAUSE_SECONDS = 0.1


@dataclass(frozen=True)
class Written:
    """A server whose stream ``shop/orders`` is written to."""

    address: str
    controller: ControllerClient


def post(port: int, path: str, document: object) -> None:
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_SECONDS_MAX)
    connection.request("POST", f"/v1/{path}", json.dumps(document))
    reply = connection.getresponse()
    assert reply.status == 201, reply.read()
    connection.close()


def write(controller: ControllerClient, ended: threading.Event) -> None:
    """Write many bytes, for a lag that is not made up for soon, and then events until the end."""
    number = 0
    with BlockingEventWriter(controller, "shop", "orders") as writer:
        for each in range(100):
            writer.submit(b"x" * 10_000, key=str(each))
        writer.flush()
        while not ended.wait(PAUSE_SECONDS):
            for _ in range(10):
                number += 1
                event = json.dumps({"order": number, "item": "<b>tea</b>"})
                writer.submit(event.encode(), key=str(number % 50))
            writer.flush()


@contextmanager
def written_server(directory: Path) -> Iterator[Written]:
    [port] = free_ports(1)
    with Server(directory, [f"--http-port={port}"]) as server:
        post(port, "scopes", {"scopeName": "shop"})
        policy = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2}
        for stream in ("orders", "other"):
            post(port, "scopes/shop/streams", {"streamName": stream, "scalingPolicy": policy})
        with ControllerClient(server.controller_uri) as controller:
            begin_reader_group(controller, "shop", "billing", "orders")
            controller.create_table("shop", "prices", partitions=2, primary_key=8, secondary_key=0)
            ended = threading.Event()
            writer = threading.Thread(target=write, args=(controller, ended))
            writer.start()
            try:
                yield Written(f"http://{HOST}:{port}/console", controller)
            finally:
                ended.set()
                writer.join()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """A server that is written to during all tests of the module."""
    with written_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for all tests of the module."""
    with open_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def check_page(browser: Browser, path: str) -> None:
    """Check that a page fits into its window, and that the browser has no complaint."""
    assert browser.overflow() <= 0, f"{path} is too wide"
    assert browser.complaints() == [], path
    assert browser.run("return document.querySelectorAll('h1').length") == 1


def test_each_page_fits_and_is_live(written: Written, browser: Browser) -> None:
    written.controller.scale_stream(
        "shop",
        "orders",
        sealed=[segment_id(0, 0)],
        ranges=[(0.0, 0.2), (0.2, 0.5)],
        timeout=ANSWER_SECONDS_MAX,
    )
    for width in WIDTHS:
        for path in PATHS:
            browser.show(written.address + path, width, dark=width == WIDTHS[0])
            complaints = browser.complaints() if path.endswith("none") else []
            assert all("404" in each for each in complaints)
            check_page(browser, path)
    browser.show(f"{written.address}/", WIDTHS[1])
    # Rates need two looks, and come by themselves.
    browser.wait(lambda: "shop/orders" in browser.text("#live"))
    browser.wait(lambda: browser.run("return document.querySelectorAll('.u-legend').length == 3"))
    # Without a pointer in the chart, its legend has the newest numbers.
    browser.wait(lambda: "B" in browser.text(".u-legend .u-series:nth-child(2) .u-value"))
    check_page(browser, "/")
    browser.show(f"{written.address}/streams/shop/orders", WIDTHS[1])
    end = "return document.querySelector('#segments td:last-child').innerText"
    before = browser.run(end)
    browser.wait(lambda: browser.run(end) != before)
    assert browser.run("return document.querySelectorAll('svg.epochs rect').length") == 4
    browser.wait(lambda: browser.run("return document.querySelectorAll('.heat-5').length") >= 1)
    check_page(browser, "/streams/shop/orders")


def test_the_lag_of_a_group_is_live(written: Written, browser: Browser) -> None:
    trends = "return [...document.querySelectorAll('#lags td:nth-child(3)')].map(e => e.innerText)"
    browser.show(f"{written.address}/groups/shop/billing?sort=trend", WIDTHS[0], dark=True)
    browser.wait(lambda: any(each.startswith("+") for each in browser.run(trends)))
    browser.wait(lambda: browser.run("return document.querySelectorAll('.u-legend').length == 2"))
    tail = tail_offsets(written.controller, "shop", "orders")
    seek_group(written.controller, "shop", "billing", {"shop/orders": tail})
    browser.wait(lambda: any(each.startswith("−") for each in browser.run(trends)))
    check_page(browser, "/groups/shop/billing")
    browser.show(f"{written.address}/streams/shop/orders", WIDTHS[0])
    browser.wait(lambda: "billing" in browser.text("#readers"))
    browser.find("#readers-by-segment summary").click()
    browser.wait(lambda: "nobody" in browser.text("#readers-by-segment table"))
    check_page(browser, "/streams/shop/orders")


def test_an_event_is_written_and_found_and_a_stream_scaled(
    written: Written, browser: Browser
) -> None:
    events = f"{written.address}/streams/shop/other/events"
    browser.show(events, WIDTHS[0])
    browser.find("#write summary").click()
    browser.find("#event").send_keys("<script>document.title = 'harm'</script>")
    browser.find("#key").send_keys("k")
    browser.find("#write button").click()
    browser.wait(lambda: "The event is written" in browser.text())
    browser.wait(lambda: "document.title = 'harm'" in browser.text(".events"))
    browser.find("#find").send_keys("title =")
    browser.find(".panel button").click()
    browser.wait(lambda: "start=" in browser.driver.current_url)
    assert browser.text(".events pre") == "<script>document.title = 'harm'</script>"
    assert "harm" not in browser.driver.title
    check_page(browser, events)
    browser.show(f"{written.address}/streams/shop/other/scale", WIDTHS[0])
    browser.find("td a").click()
    browser.wait(lambda: "Split segment" in browser.text("h1"))
    browser.find("button.grave").click()
    browser.wait(lambda: len(written.controller.current_segments("shop", "other").ranges) == 3)
    check_page(browser, "scale")


@pytest.mark.proof
def test_a_page_stops_when_its_reader_says_so(written: Written, browser: Browser) -> None:
    browser.show(f"{written.address}/streams/shop/orders", WIDTHS[1])
    browser.run("document.querySelector('summary').click()")
    asked = (
        "return performance.getEntriesByType('resource')"
        ".filter(each => each.name.includes('/live')).length"
    )
    browser.wait(lambda: browser.run(asked) >= 1)
    browser.wait(lambda: browser.run("return document.querySelector('details').open"))
    browser.find("button.pause").click()
    assert browser.run("return document.querySelector('.pause').ariaPressed") == "true"
    browser.run(
        "window.held = 0;"
        "document.addEventListener('htmx:beforeRequest', event => {"
        " if (event.defaultPrevented) window.held += 1; });"
    )
    # An update that had begun may still end.
    browser.wait(lambda: browser.run("return window.held") >= 1)
    count = browser.run(asked)
    browser.wait(lambda: browser.run("return window.held") >= 2)
    assert browser.run(asked) == count
    browser.find("button.pause").click()
    browser.wait(lambda: browser.run(asked) > count)


def test_what_does_not_answer_is_told(browser: Browser, tmp_path: Path) -> None:
    [port] = free_ports(1)
    with Server(tmp_path, [f"--http-port={port}"]):
        browser.show(f"http://{HOST}:{port}/console/", WIDTHS[0])
        # The disk of the machine may be nearly full.
        assert any(word in browser.text() for word in ("Healthy", "Needs attention"))
    browser.wait(lambda: "does not answer" in browser.text("#stale"))
    # What it said before is not known to be so any more.
    assert "Healthy" not in browser.text()
    browser.complaints()


@pytest.mark.proof
def test_over_tls_a_guest_reads_one_scope_and_the_administrator_changes_it(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with SecureServer(tmp_path, [f"--http-port={port}"]) as server:
        for scope in ("shop", "vault"):
            for words in (("scope", "create", scope), ("stream", "create", f"{scope}/orders")):
                done = server.run_as(ADMINISTRATOR, *words)
                assert done.returncode == 0, done.stderr
        server.add_user("guest", ("prn::/scope:shop", "READ"), ("prn::/scope:shop/*", "READ"))

        def address(user: str, path: str) -> str:
            return f"https://{user}:{server.passwords[user]}@{HOST}:{port}/console/{path}"

        seal = (
            "return fetch(location.origin + '/console/streams/shop/orders/seal', {method: 'POST'})"
            ".then(answer => answer.status)"
        )
        with open_browser(tmp_path / "guest") as browser:
            browser.show(address("guest", "scopes/shop"), WIDTHS[0])
            assert "orders" in browser.text()
            browser.show(address("guest", "streams/shop/orders"), WIDTHS[0])
            assert "User guest" in browser.text("header")
            assert "Change the stream" not in browser.text()
            # The live part is asked for as the same user.
            browser.wait(lambda: browser.run("return document.querySelector('.u-legend')"))
            check_page(browser, "/streams/shop/orders")
            assert browser.run(seal) == 403
            for path in ("scopes", "cluster", "scopes/vault", "streams/vault/orders/events"):
                browser.show(address("guest", path), WIDTHS[0])
                assert "You may not do this" in browser.text("h1"), path
        with open_browser(tmp_path / "administrator") as browser:
            browser.show(address(ADMINISTRATOR, "streams/shop/orders/seal"), WIDTHS[1])
            browser.find("button.grave").click()
            browser.wait(lambda: "sealed" in browser.text("#live"))
