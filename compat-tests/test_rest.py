"""The REST interface answers as the original's, route by route, with the differences listed.

The same requests go to the original's standalone server and to ours, one after the other. What
differs is in ``DIFFERENCES``, with the reason; anything else fails.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from compat_harness.java import NEWEST, JavaClient, JavaError
from compat_harness.original import run_original
from compat_harness.server import Server
from foreign_servers.deadlines import scale
from foreign_servers.tied_processes import tied

from segstore.testing.ports import free_ports

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

ANSWER_SECONDS_MAX = scale(60.0)
READY_SECONDS_MAX = scale(120.0)
FIXED = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2}
BY_EVENTS = {
    "type": "BY_RATE_IN_EVENTS_PER_SEC",
    "targetRate": 10,
    "scaleFactor": 2,
    "minSegments": 3,
}
BY_BYTES = {**BY_EVENTS, "type": "BY_RATE_IN_KBYTES_PER_SEC"}
DAYS = {"type": "LIMITED_DAYS", "value": 2}
TIME = {
    "type": "LIMITED_DAYS",
    "value": 0,
    "timeBasedRetention": {"days": 1, "hours": 2, "minutes": 3},
}
SIZE = {"type": "LIMITED_SIZE_MB", "value": 5}
S, T = "/v1/scopes/s1", "/v1/scopes/s1/streams/t1"
NONE = "/v1/scopes/none"
EVER = "from=0&to=9999999999999"


def stream(name: str, scaling: Any = FIXED, **others: Any) -> dict[str, Any]:
    return {"streamName": name, "scalingPolicy": scaling, **others}


REQUESTS: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/ping", None),
    ("POST", "/ping", None),
    ("GET", "/nothing", None),
    ("GET", "/v1/scopes", None),
    ("GET", "/v1/scopes/", None),
    ("HEAD", "/v1/scopes", None),
    ("PATCH", "/v1/scopes", None),
    ("POST", "/v1/scopes", {"scopeName": "s1"}),
    ("POST", "/v1/scopes", {"scopeName": "s1", "unknown": 1}),
    ("POST", "/v1/scopes", {"scopeName": "a b"}),
    ("POST", "/v1/scopes", {}),
    ("POST", "/v1/scopes", b"x"),
    ("GET", S, None),
    ("GET", NONE, None),
    ("GET", f"{S}/streams", None),
    ("GET", f"{NONE}/streams", None),
    ("POST", f"{S}/streams", stream("t1", streamTags=["a", "b"])),
    ("POST", f"{S}/streams", stream("t2", BY_EVENTS, retentionPolicy=DAYS)),
    ("POST", f"{S}/streams", stream("t3", BY_BYTES, retentionPolicy=SIZE)),
    ("POST", f"{S}/streams", stream("t4", retentionPolicy=TIME)),
    ("POST", f"{S}/streams", stream("t1")),
    ("POST", f"{S}/streams", stream("a b")),
    ("POST", f"{NONE}/streams", stream("t1")),
    ("POST", f"{S}/streams", {"streamName": "t9"}),
    ("GET", f"{S}/streams", None),
    ("GET", f"{S}/streams/", None),
    ("GET", f"{S}/streams?filter_type=showInternalStreams", None),
    ("GET", f"{S}/streams?filter_type=tag&filter_value=a", None),
    ("GET", f"{S}/streams?filter_type=tag&filter_value=none", None),
    ("GET", f"{S}/streams?filter_type=other", None),
    *(("GET", f"{S}/streams/t{number}", None) for number in (1, 2, 3, 4, 5)),
    ("PUT", T, {"scalingPolicy": FIXED, "retentionPolicy": SIZE}),
    ("GET", T, None),
    ("PUT", f"{S}/streams/none", {"scalingPolicy": FIXED}),
    ("GET", f"{S}/streams/t2/scaling-events?{EVER}", None),
    ("GET", f"{S}/streams/t2/scaling-events?from=0&to=1", None),
    ("GET", f"{S}/streams/t2/scaling-events", None),
    ("GET", f"{S}/streams/t2/scaling-events?from=5&to=1", None),
    ("GET", f"{S}/streams/t2/scaling-events?from=x&to=1", None),
    ("GET", f"{S}/streams/none/scaling-events?from=0&to=1", None),
    ("GET", f"{S}/readergroups", None),
    ("GET", f"{NONE}/readergroups", None),
    ("GET", f"{S}/readergroups/none", None),
    ("DELETE", f"{S}/readergroups/none", None),
    ("DELETE", T, None),
    ("PUT", f"{T}/state", {"streamState": "OPEN"}),
    ("PUT", f"{T}/state", {"streamState": "SEALED"}),
    ("PUT", f"{S}/streams/none/state", {"streamState": "SEALED"}),
    ("PUT", T, {"scalingPolicy": FIXED}),
    ("DELETE", S, None),
    ("DELETE", T, None),
    ("DELETE", T, None),
    ("DELETE", NONE, None),
    ("GET", "/v1/health/readiness", None),
    ("GET", "/v1/health/liveness", None),
    ("GET", "/v1/health/status", None),
    ("GET", "/v1/health/status/GRPCServer", None),
    ("GET", "/v1/health/details", None),
    ("GET", "/v1/health/none", None),
    ("GET", "/v1/health/status/none", None),
)

DIFFERENCES: dict[tuple[str, str], tuple[int, int, str]] = {
    ("POST", f"{S}/streams t9"): (500, 400, "the original fails without a scaling policy"),
    ("PUT", f"{T} sealed"): (500, 409, "the original tells nobody that the stream is sealed"),
    ("GET", f"{S}/streams/t2/scaling-events?from=x&to=1"): (404, 400, "it is no missing stream"),
}
"""The status of the original, ours, and the reason."""


class Rest:
    """The REST port of a server. ``controller`` is the address of its controller for clients."""

    def __init__(self, port: int, controller: str) -> None:
        self._port = port
        self.controller = controller

    def wait_until_ready(self) -> None:
        """Return once the server says so: the original opens the port after that of gRPC, and looks
        at its health every ten seconds."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        ready = None
        while ready != (200, True):
            assert time.monotonic() < deadline, f"the server is not ready: {ready}"
            time.sleep(0.05)
            with contextlib.suppress(OSError):
                ready = self.send("GET", "/v1/health/readiness", None)

    def send(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Return the status and the document of an answer, without what differs by chance."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, ANSWER_SECONDS_MAX)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            content = reply.read()
        finally:
            connection.close()
        if reply.status >= 400 or not content:
            return reply.status, None
        return reply.status, normalize(json.loads(content))


def normalize(document: Any) -> Any:
    """Return the document without times, with the lists of names in order."""
    if isinstance(document, list):
        found = [normalize(each) for each in document]
        return sorted(found, key=lambda each: json.dumps(each, sort_keys=True))
    if isinstance(document, dict):
        times = {"timestamp", "start"}
        return {name: normalize(each) for name, each in document.items() if name not in times}
    return document


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    port, store_port = free_ports(2)
    properties = {
        "singlenode.controller.rest.enable": "true",
        "singlenode.controller.rest.port": str(port),
        # Its segment store then opens a port for REST, too, which is the same for all by default.
        "pravegaservice.rest.listener.port": str(store_port),
    }
    # Its REST server makes classes in a way that Java 17 allows only when it is told to.
    options = ("--add-opens", "java.base/java.lang=ALL-UNNAMED")
    directory = tmp_path_factory.mktemp("original")
    with run_original(directory, jvm_options=options, properties=properties) as controller:
        rest = Rest(port, controller)
        rest.wait_until_ready()
        yield rest


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    [port] = free_ports(1)
    with Server(tmp_path_factory.mktemp("ours"), ["--http-port", str(port)]) as server:
        yield Rest(port, server.controller_uri)


@pytest.mark.proof
def test_each_route_answers_as_the_original(original: Rest, ours: Rest) -> None:
    found, is_sealed = [], False
    for method, path, body in REQUESTS:
        one, other = original.send(method, path, body), ours.send(method, path, body)
        is_sealed = is_sealed or (method, path) == ("PUT", f"{T}/state")
        name = path
        if isinstance(body, dict) and body.get("streamName") == "t9":
            name = f"{path} t9"
        elif is_sealed and (method, path) == ("PUT", T):
            name = f"{path} sealed"
        if (expected := DIFFERENCES.get((method, name))) is not None:
            assert (one[0], other[0]) == expected[:2], (method, name, one, other)
        elif one != other:
            found.append((method, path, body, one, other))
    assert not found, "\n".join(map(str, found))


@contextlib.contextmanager
def held_readers(rest: Rest, *arguments: str) -> Iterator[Callable[[], None]]:
    """Hold readers online by an official client, see ``HeldReaders``; yield what ends the first."""
    try:
        client = JavaClient.build(NEWEST)
    except JavaError as error:
        pytest.fail(str(error), pytrace=False)
    command = client.command("compat.HeldReaders", *arguments, controller=rest.controller)
    with subprocess.Popen(
        tied(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def dismiss() -> None:
            requests.write("\n")
            requests.flush()
            assert answers.readline() == "offline\n"

        try:
            assert answers.readline() == "online\n"
            yield dismiss
        finally:
            requests.close()
            process.wait(ANSWER_SECONDS_MAX)


@pytest.mark.parametrize("server", [pytest.param("original", marks=pytest.mark.proof), "ours"])
def test_a_group_tells_which_readers_are_online(
    server: str, request: pytest.FixtureRequest
) -> None:
    rest = request.getfixturevalue(server)
    path = "/v1/scopes/s2/readergroups/g"
    document = {"scopeName": "s2", "readerGroupName": "g", "streamList": ["s2/t"]}
    with held_readers(rest, "s2", "t", "g", "a", "b") as dismiss:
        assert rest.send("GET", path, None) == (200, {**document, "onlineReaderIds": ["a", "b"]})
        dismiss()
        assert rest.send("GET", path, None) == (200, {**document, "onlineReaderIds": ["b"]})
    assert rest.send("GET", path, None) == (200, {**document, "onlineReaderIds": []})
