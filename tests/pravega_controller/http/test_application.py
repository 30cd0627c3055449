"""Tests of what all routes share: bodies, errors, headers, paths."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pravega_controller.config import ControllerConfig
from pravega_controller.http.application import HEADERS, READ_BYTES_MAX, make_application
from pravega_controller.http.calls import Calls
from pravega_controller.http.health import Health
from pravega_controller.http.routes import ROUTES
from support.http_controllers import HttpClient, send_to_application

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=15), inner),
    max_leaves=8,
)


async def test_a_long_body_is_refused_early(client: HttpClient) -> None:
    def send() -> bytes:
        with socket.create_connection(("127.0.0.1", client.port), 30) as connection:
            head = b"POST /v1/scopes HTTP/1.1\r\nHost: x\r\nContent-Length: 104857600\r\n\r\n"
            connection.sendall(head + bytes(READ_BYTES_MAX + 65536))
            return connection.recv(65536)

    answer = await trio.to_thread.run_sync(send)
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_a_trailing_slash_changes_nothing(client: HttpClient) -> None:
    for path in ("/v1/scopes", "/v1/scopes/_system", "/ping", "/v1/health/readiness"):
        plain, slash = await client.ask("GET", path), await client.ask("GET", f"{path}/")
        assert (plain.status, plain.document) == (slash.status, slash.document)
        assert plain.status == 200


async def test_answers_are_not_kept_and_not_shown_as_pages(client: HttpClient) -> None:
    paths = {"/v1/scopes": 200, "/v1/scopes/none": 404, "/nothing": 404, "/ping": 200}
    for path, status in paths.items():
        answer = await client.ask("GET", path)
        assert answer.status == status
        assert {name: answer.headers[name.lower()] for name in HEADERS} == HEADERS


async def test_a_path_answers_its_methods_and_tells_them_to_others(client: HttpClient) -> None:
    for path, methods in (("/v1/scopes", "GET, HEAD, POST"), ("/openapi.json", "GET, HEAD")):
        for spelling in (path, f"{path}/"):
            refused = await client.ask("PATCH", spelling)
            assert refused.status == 405
            assert ", ".join(sorted(refused.headers["allow"].split(", "))) == methods
            found = await client.ask("HEAD", spelling)
            assert (found.status, found.document) == (200, None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"1e999",
        b'"a"',
        b"null",
        b"[]",
        b'{"scopeName":NaN}',
    ],
)
async def test_a_body_that_is_no_object_is_refused(client: HttpClient, body: bytes) -> None:
    for method, path in (("POST", "/v1/scopes"), ("PUT", "/v1/scopes/s/streams/t")):
        answer = await client.ask(method, path, body)
        assert answer.status == 400
        assert answer.document["error"]


@pytest.mark.parametrize("text", [rb"\ud800", rb"a\udfff", b"\xed\xa0\x80"])
async def test_half_of_a_pair_of_surrogates_is_refused(client: HttpClient, text: bytes) -> None:
    await client.ask("POST", "/v1/scopes", {"scopeName": "s"})
    scaling = b'"scalingPolicy": {"type": "FIXED_NUM_SEGMENTS"}'
    for path, body in (
        ("/v1/scopes", b'{"scopeName": "%s"}' % text),
        ("/v1/scopes/s/streams", b'{"streamName": "%s", %s}' % (text, scaling)),
        (
            "/v1/scopes/s/streams",
            b'{"streamName": "t", "streamTags": ["%s"], %s}' % (text, scaling),
        ),
        ("/v1/scopes/s/streams", b'{"streamName": "t", "%s": 1, %s}' % (text, scaling)),
    ):
        answer = await client.ask("POST", path, body)
        assert (answer.status, answer.document) == (400, {"error": "the body has to be JSON"})


class Scopes:
    """The scopes of a controller that has none."""

    async def exists(self, name: str) -> bool:
        return False


class EmptyController:
    """A controller that has nothing, for requests that do not get so far."""

    scopes = Scopes()


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    route=st.sampled_from(
        [each for methods in ROUTES.values() for each in methods.values() if each.request]
    ),
    part=st.text(max_size=20),
    body=JSON,
)
def test_no_request_is_answered_with_a_traceback(route: Any, part: str, body: object) -> None:
    controller: Any = EmptyController()
    application = make_application(Calls(controller, None), Health(controller, ControllerConfig()))
    assume(not {*part} & {*"/?#"} and part not in (".", ".."))
    path = route.path.format(scope=part or "s", stream="t", group="g")
    wrong = {"streamName": 1, "scopeName": 1, "streamState": 1}
    document = {**body, **wrong} if isinstance(body, dict) else body
    status, answer = trio.run(
        send_to_application, application, route.method, path, json.dumps(document).encode()
    )
    assert 400 <= status < 500
    assert json.loads(answer)["error"]
