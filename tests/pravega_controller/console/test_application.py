"""Tests of what all pages share: users, refusals, headers, files."""

from __future__ import annotations

import re

import pytest

from pravega_controller.console.rendering import PAGE_HEADERS, static_files
from pravega_controller.console.routes import PAGES
from support.console_pages import Checked, make_stream
from support.http_controllers import HttpClient, basic


def paths_of_pages() -> list[str]:
    """Return the paths of all pages that are read, of the stream ``s/t``."""
    return [
        "/console" + path.format(scope="s", stream="t", group="g", table="k")
        for path, method in PAGES
        if method == "GET"
    ]


async def test_pages_are_whole_and_accessible(console: HttpClient) -> None:
    await make_stream(console)
    for path in ("/console/", "/console/scopes", "/console/scopes/s", "/console/streams/s/t"):
        answer = await console.ask("GET", path)
        assert answer.status == 200, path
        page = answer.document
        assert Checked(page).faults == [], path
        assert page.count("<h1>") == 1
        assert re.search(r'<html lang="en">', page)


async def test_pages_forbid_everything_that_is_not_theirs(console: HttpClient) -> None:
    await make_stream(console)
    for path in (*paths_of_pages(), "/console/none", "/console/streams/s/none"):
        answer = await console.ask("GET", path)
        found = {name: answer.headers[name.lower()] for name in PAGE_HEADERS}
        assert found == PAGE_HEADERS, path
    policy = PAGE_HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")


async def test_each_answer_of_the_port_has_a_policy(client: HttpClient) -> None:
    await make_stream(client)
    long = b"x" * (1 << 20) + b"xx"
    own = {"Sec-Fetch-Site": "same-origin"}
    for method, path, body, headers, status in (
        ("GET", "/", None, {}, 303),
        ("GET", "/console", None, {}, 303),
        ("GET", "/console/scopes/", None, {}, 303),
        ("GET", "/console/none/", None, {}, 303),
        ("GET", "/console/none", None, {}, 404),
        ("PUT", "/console/scopes", None, {}, 405),
        ("GET", "/console/scopes", None, {"Host": "evil.example"}, 403),
        ("GET", "/console/static/x/none", None, {}, 404),
        ("GET", "/console/static/x/console.css", None, {}, 200),
        ("POST", "/console/streams/s/t/seal", b"", {}, 403),
        ("POST", "/console/streams/s/t/seal/", b"", own, 404),
        ("POST", "/console/streams/s/t/events", long, own, 413),
        ("POST", "/console/streams/s/t/seal", b"", own, 303),
        ("GET", "/v1/scopes//", None, {}, 404),
        ("GET", "/none", None, {}, 404),
        ("PUT", "/v1/scopes", None, {}, 405),
    ):
        answer = await client.ask(method, path, body, headers)
        assert answer.status == status, (method, path)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; "), path
        assert "frame-ancestors 'none'" in policy, path
        # An address of a redirect has no host: a browser may have sent any.
        assert answer.headers.get("location", "/").startswith("/"), path
        assert ("allow" in answer.headers) == (status == 405), path


async def test_the_port_leads_to_the_console(client: HttpClient) -> None:
    for path in ("/", "/console"):
        answer = await client.ask("GET", path)
        assert (answer.status, answer.headers["location"]) == (303, "/console/")


async def test_files_are_kept_by_browsers_and_have_their_licences(client: HttpClient) -> None:
    page = (await client.ask("GET", "/console/scopes")).document
    addresses = re.findall(r'(?:src|href)="(/console/static/[^"]+)"', page)
    assert len(addresses) == 6
    for each in addresses:
        answer = await client.ask("GET", each)
        assert answer.status == 200
        assert "immutable" in answer.headers["cache-control"]
    assert {"vendor/htmx.LICENSE.txt", "vendor/uPlot.LICENSE.txt"} <= static_files().keys()
    for wrong in ("../rendering.py", "console.py", "vendor"):
        assert (await client.ask("GET", f"/console/static/x/{wrong}")).status == 404


async def test_with_users_each_page_asks_who_it_is(secure_client: HttpClient) -> None:
    for path in (*paths_of_pages(), "/console/"):
        answer = await secure_client.ask("GET", path)
        assert answer.status == 401, path
        assert answer.headers["www-authenticate"].startswith("Basic ")
        assert (await secure_client.ask("GET", path, headers=basic("reader", "x"))).status == 401


async def test_a_user_sees_what_its_rights_say(secure_client: HttpClient) -> None:
    for stream in ("t", "u"):
        await make_stream(secure_client, stream=stream, headers=basic("admin"))
    seen = {}
    for user in ("reader", "writer", "admin"):
        for path in ("", "scopes", "scopes/s", "streams/s/t", "streams/s/u"):
            answer = await secure_client.ask("GET", f"/console/{path}", headers=basic(user))
            seen[user, path] = answer.status
            assert user in answer.document
            assert Checked(answer.document).faults == []
    assert {key: status for key, status in seen.items() if status != 200} == {
        ("reader", "streams/s/u"): 403,
        ("writer", "scopes"): 403,
        ("writer", "scopes/s"): 403,
        ("writer", "streams/s/u"): 403,
    }
    overview = (await secure_client.ask("GET", "/console/", headers=basic("writer"))).document
    assert "You may not read the root" in overview
    assert "Busiest streams" not in overview
    names = (await secure_client.ask("GET", "/console/scopes/s", headers=basic("reader"))).document
    assert "/console/streams/s/t" in names
    assert "/console/streams/s/u" not in names


async def test_what_is_refused_is_a_page_that_says_why(client: HttpClient) -> None:
    await make_stream(client)
    for path, status, sentence in (
        ("none", 404, "There is no such page."),
        ("scopes/none", 404, "scope none does not exist"),
        ("streams/s/none", 404, "s/none"),
        ("streams/s/t?sort=x", 400, "sort has to be one of"),
        ("go?name=", 400, "Write the name"),
        ("scopes/%3Cscript%3E", 404, "scope &lt;script&gt; does not exist"),
    ):
        answer = await client.ask("GET", f"/console/{path}")
        assert (answer.status, sentence in answer.document) == (status, True), path
        assert Checked(answer.document).faults == []


@pytest.mark.parametrize(
    ("name", "path"),
    [("s", "scopes/s"), (" s/t ", "streams/s/t"), ("s/a b%", "streams/s/a%20b%25")],
)
async def test_a_name_leads_to_its_page(client: HttpClient, name: str, path: str) -> None:
    answer = await client.ask(
        "GET", "/console/go?name=" + name.replace("%", "%25").replace(" ", "+")
    )
    assert (answer.status, answer.headers["location"]) == (303, f"/console/{path}")
