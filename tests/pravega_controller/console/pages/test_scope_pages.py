"""Tests of the pages of scopes: names in order, page by page, and those that contain a text."""

from __future__ import annotations

import re

import pytest

from pravega_controller.console import scope_names
from pravega_controller.console.scope_names import choose
from support.console_pages import FIXED, Checked, make_stream
from support.http_controllers import HttpClient

SCOPE = "/console/scopes/s"


def names_on(page: str) -> list[str]:
    assert Checked(page).faults == []
    return re.findall(r">(stream-\d+)<", page)


async def test_more_names_than_a_page_shows_are_found(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scope_names, "NAMES_SHOWN_MAX", 10)
    await client.ask("POST", "/v1/scopes", {"scopeName": "s"})
    for number in range(25):
        await make_stream(client, stream=f"stream-{number}")
    document = {"streamName": "a<b>", "scalingPolicy": FIXED}
    assert (await client.ask("POST", "/v1/scopes/s/streams", document)).status == 400
    expected = sorted(f"stream-{number}" for number in range(25))
    address, seen = SCOPE, []
    for number in (1, 2, 3):
        page = (await client.ask("GET", address)).document
        assert f"Page {number} of 3" in page
        seen += names_on(page)
        later = re.findall(r'rel="next" href="([^"]+)"', page)
        assert len(later) == (number < 3)
        address = SCOPE + "".join(later).replace("&amp;", "&")
    assert seen == expected
    found = (await client.ask("GET", f"{SCOPE}?find=M-2")).document
    assert names_on(found) == ["stream-2"] + [f"stream-{number}" for number in range(20, 25)]
    assert "Page " not in found
    beyond = (await client.ask("GET", f"{SCOPE}?page=9")).document
    assert names_on(beyond) == expected[20:]
    assert "None with such a name" in (await client.ask("GET", f"{SCOPE}?find=z")).document
    assert (await client.ask("GET", f"{SCOPE}?page=0")).status == 400


async def test_a_scope_with_too_many_names_says_so(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_stream(client)
    monkeypatch.setattr(scope_names, "NAMES_READ_MAX", 1)
    assert "more names than are listed" in (await client.ask("GET", SCOPE)).document


async def test_a_deleted_stream_is_not_listed_any_more(client: HttpClient) -> None:
    await make_stream(client)
    assert "/console/streams/s/t" in (await client.ask("GET", SCOPE)).document
    own = {"Sec-Fetch-Site": "same-origin"}
    for path, body in (("seal", b""), ("delete", b"name=t")):
        answer = await client.ask("POST", f"/console/streams/s/t/{path}", body, own)
        assert answer.status == 303, answer.document
    assert "/console/streams/s/t" not in (await client.ask("GET", SCOPE)).document


def test_a_page_has_what_may_be_read() -> None:
    part = choose(["Ab", "b", "ba", "c"], "B", 1, lambda name: name != "b")
    assert (part.names, part.count, part.first, part.page_count) == (["Ab", "ba"], 2, 1, 1)
    empty = choose([], "", 7, lambda name: True)
    assert (empty.names, empty.number, empty.page_count) == ([], 1, 1)
