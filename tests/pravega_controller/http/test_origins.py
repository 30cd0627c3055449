"""Tests of the requests that a page of another site has made a browser send."""

from __future__ import annotations

import pytest

from pravega_controller.http.calls import Refusal
from pravega_controller.http.origins import check_host, check_origin
from support.http_controllers import HttpClient, basic


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "cross-site", "origin": "https://evil.example", "host": "localhost:1"},
        {"sec-fetch-site": "same-site", "origin": "http://localhost:1", "host": "localhost:1"},
        {"sec-fetch-site": "none", "host": "localhost:1"},
        {"origin": "http://evil.example", "host": "localhost:1"},
        {"origin": "null", "host": "localhost:1"},
        {"origin": "http://localhost:2", "host": "localhost:1"},
        {"origin": "http://[", "host": "localhost:1"},
        {"host": "localhost:1"},
    ],
)
def test_a_change_that_another_site_asks_for_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(Refusal) as refused:
        check_origin(headers)
    assert refused.value.status == 403


def test_a_change_that_the_console_asks_for_is_made() -> None:
    check_origin({"sec-fetch-site": "same-origin", "host": "x"})
    check_origin({"origin": "http://10.0.0.1:9091", "host": "10.0.0.1:9091"})


@pytest.mark.parametrize(
    "host",
    [
        "localhost:9091",
        "127.0.0.1:9091",
        "[::1]:9091",
        "10.1.2.3",
        "box:1",
        "a.localhost",
        "own.net",
    ],
)
def test_without_users_a_controllers_own_names_are_taken(host: str) -> None:
    check_host({"host": host}, {"own.net"})


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:9091", "x]:", "a.b"])
async def test_without_users_a_foreign_name_is_refused(client: HttpClient, host: str) -> None:
    with pytest.raises(Refusal):
        check_host({"host": host}, {"own.net"})
    answer = await client.ask("GET", "/console/scopes", headers={"Host": host})
    assert answer.status in (400, 403)
    assert "Scopes</h1>" not in str(answer.document)


FOREIGN = (
    {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://["},
)
REBOUND = {"Origin": "http://evil.example:1", "Host": "evil.example:1"}
"""A page whose name leads to this machine: for the browser, its own server."""


async def test_rest_changes_nothing_for_a_page_of_another_site(
    client: HttpClient, secure_client: HttpClient
) -> None:
    scope = {"scopeName": "s"}
    for headers in (*FOREIGN, REBOUND):
        assert (await client.ask("POST", "/v1/scopes", scope, headers)).status == 403, headers
    for headers in FOREIGN:
        answer = await secure_client.ask("POST", "/v1/scopes", scope, {**headers, **basic("admin")})
        assert answer.status == 403, headers
    answer = await client.ask("GET", "/v1/scopes", None, FOREIGN[0])
    assert "s" not in [each["scopeName"] for each in answer.document.get("scopes", ())]
    assert (await client.ask("DELETE", "/v1/scopes/s", None, FOREIGN[0])).status == 403
    assert (await client.ask("POST", "/v1/scopes", scope)).status == 201
    own = {"Sec-Fetch-Site": "same-origin"}
    assert (await client.ask("DELETE", "/v1/scopes/s", None, own)).status == 204
