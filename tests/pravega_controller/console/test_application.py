"""Tests of what all pages share: users, refusals, headers, files."""

from __future__ import annotations

import re
from random import Random
from urllib.parse import urlencode

import pytest

from pravega_controller.config import ControllerConfig
from pravega_controller.console.application import PAGES  # which imports the pages
from pravega_controller.console.rendering import PAGE_HEADERS, static_files
from pravega_controller.controller import Controller, Environment, open_controller
from pravega_controller.http.calls import Calls
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.store_client.segment_client import NO_TOKEN
from pravega_wire import commands as wire
from pravega_wire import controller_pb2 as pb
from pravega_wire.names import key_value_table_stream, segment_name
from pravega_wire.stream_cut_text import encode_cut_text
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


CHANGES = ("scale", "truncate", "seal", "delete")
OF_THE_ROOT = {"/console/scopes", "/console/cluster", "/console/cluster/live"}
OF_THE_ROOT |= {"/console/overview/points"}


async def fill_scope(controller: Controller, scope: str) -> str:
    """Make one of everything in a scope; return the open transaction."""
    await controller.scopes.create(scope)
    await controller.streams.create(scope, "t", fixed_configuration(1))
    begun = await controller.transactions.begin(scope, "t", lease_ms=120_000)
    cut = pb.StreamCut(streamInfo=pb.StreamInfo(scope=scope, stream="t"))
    group = pb.ReaderGroupConfiguration(
        scope=scope,
        readerGroupName="g",
        readerGroupId="12345678-1234-5678-1234-567812345678",
        startingStreamCuts=[cut],
        endingStreamCuts=[cut],
    )
    table = pb.KeyValueTableConfig(scope=scope, kvtName="k", partitionCount=1, primaryKeyLength=8)
    calls = Calls(controller, None).of([], "")
    await calls.call("createReaderGroup", group)
    await calls.call("createKeyValueTable", table)
    segment = segment_name(scope, key_value_table_stream("k"), 0)
    entry = wire.TableEntry(wire.TableKey(b"thekey--"), f"value of {scope}".encode())
    reply = await controller.segments.request(
        segment, lambda i: wire.UpdateTableEntries(i, segment, NO_TOKEN, (entry,))
    )
    assert isinstance(reply, wire.TableEntriesUpdated)
    return begun.identifier.hex()


async def test_a_guest_of_one_scope_sees_nothing_else_and_changes_nothing(
    secure_console: HttpClient, segment_store: tuple[str, int]
) -> None:
    config = ControllerConfig(segment_stores=(segment_store,), container_count=4)
    async with open_controller(config, Environment(random=Random(8))) as controller:
        transactions = {each: await fill_scope(controller, each) for each in ("s", "vault")}
    own = {"Sec-Fetch-Site": "same-origin", **basic("guest")}
    seen, allowed = {}, set()
    for scope in ("s", "vault"):
        form = {
            "transaction": transactions[scope],
            "event": "x",
            "name": "t",
            "cut": encode_cut_text(f"{scope}/t", {0: 0}),
            "sealed": "0",
            "ranges": "0.0,0.5,1.0",
        }
        for path, method in PAGES:
            address = "/console" + path.format(scope=scope, stream="t", group="g", table="k")
            body = urlencode(form).encode() if method == "POST" else None
            answer = await secure_console.ask(method, address, body, own)
            if path != "/go":
                seen[method, f"{scope} {path}" if "{" in path else address] = answer.status
            if scope == "vault":
                assert not re.search("thekey|value of", str(answer.document)), address
            if answer.status == 200:
                allowed.add(path)
                assert "vault" not in str(answer.document), address
                assert ("value of s" in str(answer.document)) == path.endswith("/entries")
                assert not re.search("Abort|Write it|Change the stream", str(answer.document))
    for (method, path), status in seen.items():
        is_change = method == "POST" or path.endswith(CHANGES)
        is_refused = is_change or path in OF_THE_ROOT or path.startswith("vault")
        assert status == (403 if is_refused else 200), (method, path)
    assert len(allowed) > 10
    for stream in ("t", "none"):
        answer = await secure_console.ask("GET", f"/console/streams/vault/{stream}", None, own)
        assert answer.status == 403
    admin = basic("admin")
    for scope in ("s", "vault"):
        stream = f"/console/streams/{scope}/t"
        page = (await secure_console.ask("GET", f"{stream}/transactions", None, admin)).document
        assert f"Abort {transactions[scope]}" in page
        page = (
            await secure_console.ask("GET", f"{stream}/events?start=head", None, admin)
        ).document
        assert "There are no events here" in page
        page = (await secure_console.ask("GET", f"{stream}/scale", None, admin)).document
        assert re.findall(r'segments=(\d+)"', page) == ["0"]
        entries = f"/console/tables/{scope}/k/entries"
        page = (await secure_console.ask("GET", entries, None, admin)).document
        assert f"value of {scope}" in page
        # A right to streams is none to a table.
        assert (await secure_console.ask("GET", entries, None, basic("reader"))).status == 403


async def test_each_change_is_refused_to_other_sites_and_is_bounded(
    client: HttpClient, secure_client: HttpClient
) -> None:
    changes = [
        "/console" + path.format(scope="s", stream="t")
        for path, method in PAGES
        if method == "POST"
    ]
    assert len(changes) >= 6
    long = b"event=" + b"x" * (1 << 20)
    for path in changes:
        for headers in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
            answer = await client.ask("POST", path, b"name=t", headers)
            assert (answer.status, "only a page of this console" in answer.document) == (403, True)
        own = {"Sec-Fetch-Site": "same-origin"}
        assert (await client.ask("POST", path, long, own)).status == 413, path
        assert (await secure_client.ask("POST", path, long, own)).status == 401, path


async def test_segments_of_a_table_are_no_stream(
    secure_console: HttpClient, segment_store: tuple[str, int]
) -> None:
    config = ControllerConfig(segment_stores=(segment_store,), container_count=4)
    async with open_controller(config, Environment(random=Random(8))) as controller:
        await fill_scope(controller, "s")
    for path in ("", "/live", "/events", "/events/live", "/points", "/transactions"):
        answer = await secure_console.ask(
            "GET", f"/console/streams/s/k_kvtable{path}", None, basic("guest")
        )
        assert answer.status in (403, 404), path


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


async def test_a_refusal_leads_back_to_what_is_above_the_page(client: HttpClient) -> None:
    await make_stream(client)
    own = {"Sec-Fetch-Site": "same-origin"}
    for method, path, places in (
        ("GET", "none", [""]),
        ("GET", "scopes/none", ["", "scopes"]),
        ("GET", "streams/s/none", ["", "scopes", "scopes/s"]),
        ("GET", "groups/s/none", ["", "scopes", "scopes/s"]),
        ("GET", "streams/s/none/events", ["", "scopes", "scopes/s", "streams/s/none"]),
        ("GET", "tables/s/a%20b/entries", ["", "scopes", "scopes/s", "tables/s/a%20b"]),
        (
            "POST",
            "streams/s/t/delete",
            ["", "scopes", "scopes/s", "streams/s/t", "streams/s/t/delete"],
        ),
        ("GET", "go?name=", [""]),
    ):
        body = b"" if method == "POST" else None
        answer = await client.ask(method, f"/console/{path}", body, own)
        assert answer.status >= 400, path
        assert Checked(answer.document).faults == [], path
        main = answer.document.partition("<main")[2]
        found = re.findall(r'href="/console/([^"]*)"', main)
        assert found == [*places, places[-1]], path
        assert "Back to " in main


async def test_what_has_a_name_is_found_by_it(
    console: HttpClient, segment_store: tuple[str, int]
) -> None:
    config = ControllerConfig(segment_stores=(segment_store,), container_count=4)
    async with open_controller(config, Environment(random=Random(8))) as controller:
        for scope in ("s", "other"):
            await fill_scope(controller, scope)
        await controller.streams.create("s", "only", fixed_configuration(1))
        await controller.streams.create("s", "g", fixed_configuration(1))

    async def find(name: str) -> list[str]:
        answer = await console.ask("GET", f"/console/go?name={name}")
        if answer.status == 303:
            return [answer.headers["location"]]
        assert answer.status == 200
        assert Checked(answer.document).faults == []
        return re.findall(r'<li><a href="(/console/\w+/\w+/\w+)"', answer.document)

    assert await find("other/g") == ["/console/groups/other/g"]
    assert await find("s/k") == ["/console/tables/s/k"]
    assert await find("only") == ["/console/streams/s/only"]
    assert await find("s/g") == ["/console/streams/s/g", "/console/groups/s/g"]
    assert await find("g") == [
        "/console/groups/other/g",
        "/console/groups/s/g",
        "/console/streams/s/g",
    ]
    assert await find("other") == ["/console/scopes/other"]
    assert await find("none") == ["/console/scopes/none"]
    assert await find("s/none") == ["/console/streams/s/none"]


@pytest.mark.parametrize(
    ("name", "path"),
    [("s", "scopes/s"), (" s/t ", "streams/s/t"), ("s/a b%", "streams/s/a%20b%25")],
)
async def test_a_name_leads_to_its_page(client: HttpClient, name: str, path: str) -> None:
    answer = await client.ask(
        "GET", "/console/go?name=" + name.replace("%", "%25").replace(" ", "+")
    )
    assert (answer.status, answer.headers["location"]) == (303, f"/console/{path}")
