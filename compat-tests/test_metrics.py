"""A real store tells Prometheus what an official client has written, and only to whom it may."""

from __future__ import annotations

import base64
import http.client
import ssl
from pathlib import Path
from typing import Any

import pytest
from compat_harness import python_events
from compat_harness.secure import SecureServer
from compat_harness.server import Server
from foreign_servers.deadlines import scale
from prometheus_client.parser import text_string_to_metric_families

from segstore.testing.ports import free_ports

pravega_client: Any = pytest.importorskip(
    "pravega_client", reason="there is no wheel of the official Python client for this Python"
)

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

ANSWER_SECONDS_MAX = scale(60.0)
EVENT_HEADER_BYTES = 8
STREAM = {"scope": "s", "stream": "a"}
BYTES, EVENTS = "segstore_stream_append_bytes_total", "segstore_stream_append_events_total"
ORIGINAL_BYTES = "pravega_segmentstore_segment_write_bytes_total"


class Scrape:
    """The lines of one scrape."""

    def __init__(self, text: str) -> None:
        self._samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def find(self, name: str, **labels: str) -> float:
        """Return the sum of the lines with a name and some of their labels."""
        return sum(
            sample.value
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def ask(connection: http.client.HTTPConnection, user: str = "", password: str = "") -> Any:
    """Return the status and the text of the metrics."""
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    connection.request(
        "GET", "/metrics", headers={"Authorization": f"Basic {pair}"} if user else {}
    )
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, text


def scrape(port: int) -> Scrape:
    status, text = ask(http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS_MAX))
    assert status == 200
    return Scrape(text)


def write(streams: Any, count: int) -> int:
    """Write events; return the bytes of them in the stream."""
    events = [f"event {number}" for number in range(count)]
    python_events.write(streams.create_writer("s", "a"), events)
    return sum(EVENT_HEADER_BYTES + len(event) for event in events)


def test_metrics_are_what_a_client_has_written(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with Server(tmp_path, [f"--http-port={port}"]) as server:
        first = scrape(port)
        assert first.find("segstore_store_up") == 1
        assert first.find("segstore_container_state", state="online") == first.find(
            "segstore_store_containers"
        )
        streams = pravega_client.StreamManager(server.controller_uri)
        streams.create_scope("s")
        streams.create_stream("s", "a", 3)
        length = write(streams, 1234)
        told = scrape(port)
        assert told.find(EVENTS, **STREAM) == 1234
        assert told.find(BYTES, **STREAM) == told.find(ORIGINAL_BYTES, **STREAM) == length
        assert told.find("segstore_append_events_total") >= 1234
        appends = told.find("segstore_append_seconds_count")
        assert told.find("segstore_append_seconds_bucket", le="+Inf") == appends >= 3
        assert told.find("segstore_rpc_seconds_count", method="createStream", code="OK") == 1
        name = "pravega_controller_stream_created_latency_ms_seconds_count"
        assert told.find(name) == 1
        # Counters begin again with their process.
        server.stop()
        server.start()
        again = scrape(port)
        assert again.find(EVENTS, **STREAM) == 0
        assert again.find("segstore_append_events_total") < 1234
        length = write(pravega_client.StreamManager(server.controller_uri), 10)
        told = scrape(port)
        assert (told.find(EVENTS, **STREAM), told.find(BYTES, **STREAM)) == (10, length)


def test_who_may_not_read_the_root_gets_no_metrics(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with SecureServer(tmp_path, [f"--http-port={port}"]) as server:
        server.add_user("prometheus", ("prn::/", "READ"))
        server.add_user("other", ("prn::/scope:s", "READ_UPDATE"))
        trusted = ssl.create_default_context(cafile=server.ca)
        statuses = {}
        for user in ("", "prometheus", "other"):
            connection = http.client.HTTPSConnection(
                "localhost", port, timeout=ANSWER_SECONDS_MAX, context=trusted
            )
            statuses[user], text = ask(connection, user, server.passwords.get(user, ""))
            if user == "prometheus":
                assert Scrape(text).find("segstore_store_up") == 1
        assert statuses == {"": 401, "prometheus": 200, "other": 403}
