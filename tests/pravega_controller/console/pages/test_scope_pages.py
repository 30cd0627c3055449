"""Tests of the pages of scopes: names in order, page by page, and those that contain a text."""

from __future__ import annotations

import re

import pytest
import trio

from pravega_controller.console import scope_names
from pravega_controller.store_client import table_client
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
        address = "".join(later).replace("&amp;", "&")
    assert seen == expected
    found = (await client.ask("GET", f"{SCOPE}?find=M-2")).document
    assert names_on(found) == ["stream-2"] + [f"stream-{number}" for number in range(20, 25)]
    assert "Page " not in found
    beyond = (await client.ask("GET", f"{SCOPE}?page=9")).document
    assert names_on(beyond) == expected[20:]
    assert "None with such a name" in (await client.ask("GET", f"{SCOPE}?find=z")).document
    assert (await client.ask("GET", f"{SCOPE}?page=0")).status == 400


async def test_names_that_are_still_read_come_by_and_by(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stream in ("t", "u"):
        await make_stream(client, stream=stream)
    monkeypatch.setattr(table_client, "PAGE_ENTRIES", 1)
    monkeypatch.setattr(scope_names, "READ_SECONDS", 1e-9)
    page = (await client.ask("GET", f"{SCOPE}?find=t")).document
    assert Checked(page).faults == []
    assert "still being read" in page
    assert 'hx-get="/console/scopes/s/live?find=t&amp;page=1"' in page
    # There are two names of each stream, so nothing else was read yet.
    assert "/console/streams/s/u" not in page
    monkeypatch.undo()
    with trio.fail_after(60):
        while "still being read" in (page := (await client.ask("GET", f"{SCOPE}/live")).document):
            pass
    assert "/console/streams/s/t" in page
    assert "/console/streams/s/u" in page
    assert "<html" not in page


async def test_a_deleted_stream_is_not_listed_any_more(client: HttpClient) -> None:
    await make_stream(client)
    assert "/console/streams/s/t" in (await client.ask("GET", SCOPE)).document
    own = {"Sec-Fetch-Site": "same-origin"}
    for path, body in (("seal", b""), ("delete", b"name=t")):
        answer = await client.ask("POST", f"/console/streams/s/t/{path}", body, own)
        assert answer.status == 303, answer.document
    assert "/console/streams/s/t" not in (await client.ask("GET", SCOPE)).document
