"""Requests are refused as the RPCs that they stand for."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from pravega_controller.errors import StoreUnavailableError
from pravega_controller.http.calls import Calls, Refusal, refusal_of
from pravega_wire import controller_pb2 as pb
from support.http_controllers import HttpClient, basic

FIXED = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 1}
STREAM = "/v1/scopes/s/streams/t"
READING = (
    "/v1/scopes",
    "/v1/scopes/s",
    "/v1/scopes/s/streams",
    STREAM,
    f"{STREAM}/scaling-events?from=0&to=1",
    "/v1/scopes/s/readergroups",
    "/v1/health/details",
)
CHANGES = (
    ("POST", "/v1/scopes", {"scopeName": "other"}),
    ("POST", "/v1/scopes/s/streams", {"streamName": "u", "scalingPolicy": FIXED}),
    ("PUT", STREAM, {"scalingPolicy": FIXED}),
    ("PUT", f"{STREAM}/state", {"streamState": "SEALED"}),
    ("DELETE", STREAM, None),
    ("DELETE", "/v1/scopes/s", None),
)
WRONG = ({}, basic("reader", "not-its-password"), basic("nobody"), {"Authorization": "X y"})
OPEN = ("/ping", "/live", "/ready", "/v1/health", "/v1/health/readiness", "/openapi.json")


async def make_stream(client: HttpClient) -> None:
    admin = basic("admin")
    assert (await client.ask("POST", "/v1/scopes", {"scopeName": "s"}, admin)).status == 201
    for name in ("t", "hidden"):
        body = {"streamName": name, "scalingPolicy": FIXED}
        assert (await client.ask("POST", "/v1/scopes/s/streams", body, admin)).status == 201


async def test_refusals_are_those_of_the_rpcs(
    secure_client: HttpClient, users: dict[str, Any]
) -> None:
    ask = secure_client.ask
    await make_stream(secure_client)
    for path in READING:
        for headers in WRONG:
            answer = await ask("GET", path, None, headers)
            assert answer.status == 401, (path, headers, answer)
            assert answer.headers["www-authenticate"].startswith("Basic ")
        assert (await ask("GET", path, None, basic("reader"))).status == 200, path
    for method, path, body in CHANGES:
        assert (await ask(method, path, body)).status == 401, path
        assert (await ask(method, path, body, basic("reader"))).status == 403, path
    for path in OPEN:
        assert (await ask("GET", path)).status == 200, path
    lines = users["audit_log"].read_text()
    assert '"method": "deleteScope"' in lines
    assert "not-its-password" not in lines


async def test_lists_have_what_the_caller_may_read(secure_client: HttpClient) -> None:
    await make_stream(secure_client)
    streams = await secure_client.ask("GET", "/v1/scopes/s/streams", None, basic("reader"))
    assert [each["streamName"] for each in streams.document["streams"]] == ["t"]
    scopes = await secure_client.ask("GET", "/v1/scopes", None, basic("reader"))
    assert scopes.document == {"scopes": [{"scopeName": "s"}]}
    answer = await secure_client.ask("GET", "/v1/scopes/s/streams/hidden", None, basic("reader"))
    assert answer.status == 403


def test_one_authorization_header_decides() -> None:
    calls = Calls(None, None)  # type: ignore[arg-type]
    header = ("authorization", "Basic x")
    calls.of([header, ("host", "x")], "ipv4:127.0.0.1:1")
    with pytest.raises(Refusal, match="2 headers authorization"):
        calls.of([header, header], "ipv4:127.0.0.1:1")


def test_what_nobody_expected_is_not_told_to_the_caller() -> None:
    assert refusal_of(StoreUnavailableError("no store")).status == 503
    found = refusal_of(RuntimeError("a secret"))
    assert (found.status, "secret" in found.sentence) == (500, False)


async def test_passwords_are_verified_for_all_connections_at_once(
    secure_client: HttpClient,
) -> None:
    async def ask() -> None:
        answer = await secure_client.ask("GET", "/v1/scopes", None, basic("admin"))
        assert answer.status == 200

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)


async def test_who_asks_for_a_need_makes_no_call() -> None:
    no_controller: Any = None
    request = Calls(no_controller, None).of([], "peer")
    with pytest.raises(AttributeError):
        await request.call("listScopes", pb.ScopesRequest())
    assert await request.permit("listScopes", pb.ScopesRequest()) is None
