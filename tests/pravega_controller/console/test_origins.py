"""Tests of the requests that a page of another site has made a browser send."""

from __future__ import annotations

import pytest

from pravega_controller.console.origins import check_host, check_origin
from pravega_controller.http.calls import Refusal
from support.http_controllers import HttpClient


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
