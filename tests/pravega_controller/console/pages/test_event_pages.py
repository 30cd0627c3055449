"""Tests of the pages of events, on a real segment store."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from pravega_controller.console.events.avro_records import SCHEMA_LENGTH_MAX
from pravega_wire.stream_cut_text import encode_cut_text
from support.console_pages import Checked, make_stream
from support.http_controllers import Answer, HttpClient, basic

EVENTS = "/console/streams/s/t/events"
OWN = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/x-www-form-urlencoded"}


async def write(client: HttpClient, event: str, headers: Any = None, **fields: str) -> Answer:
    body = urlencode({"event": event, **fields}).encode()
    return await client.ask("POST", EVENTS, body, {**OWN, **(headers or {})})


def shown(answer: Answer) -> list[str]:
    """Return the events on a page, as they are written in it."""
    assert answer.status == 200, answer.document
    assert Checked(answer.document).faults == [] or "<html" not in answer.document
    return re.findall(r"<pre[^>]*>(.*?)</pre>", answer.document, re.DOTALL)


async def test_an_event_that_is_published_is_read(console: HttpClient) -> None:
    await make_stream(console)
    for number in range(3):
        answer = await write(console, f"event {number}", key="k")
        assert answer.status == 303, answer.document
        assert re.fullmatch(rf"{EVENTS}\?written=\d", answer.headers["location"])
    assert (await write(console, "00 ff", kind="hex")).status == 303
    texts = {"event 0", "event 1", "event 2"}
    for query in ("", "?start=head", "?start=time&time=2026-01-01T00:00", "/live"):
        found = shown(await console.ask("GET", EVENTS + query))
        assert len(found) == 4
        assert texts < {*found}
    [event] = shown(await console.ask("GET", f"{EVENTS}?find=event+1"))
    assert event == "event 1"
    page = (await console.ask("GET", f"{EVENTS}?start=head&find=event")).document
    cuts = re.findall(r"start=cut&amp;cut=([^&]+)&", page)
    assert len(cuts) == 3
    later = shown(await console.ask("GET", f"{EVENTS}?start=cut&cut={cuts[1]}"))
    # The event without a key is in any segment.
    assert later[:2] == ["event 1", "event 2"]


async def test_an_event_with_a_script_is_shown_as_text(console: HttpClient) -> None:
    await make_stream(console)
    script = "<script>alert(1)</script>"
    for event in (script, '{"a": "' + script + '"}', "<!--", "</pre>"):
        assert (await write(console, event)).status == 303
    for form in ("auto", "text", "json", "hex"):
        page = (await console.ask("GET", f"{EVENTS}?as={form}&find=&start=head")).document
        assert Checked(page).faults == []
        assert "alert(1)</script>" not in page
        assert form == "hex" or "&lt;script&gt;alert(1)&lt;/script&gt;" in page


async def test_events_that_are_avro_are_shown_by_a_schema(console: HttpClient) -> None:
    await make_stream(console)
    for number in range(60):
        assert (
            await write(console, (b"\x02" + b"%x" % (number % 16)).hex(), kind="hex")
        ).status == 303
    schema = '{"type": "record", "name": "R", "fields": [{"name": "<a>", "type": "string"}]}'
    query = urlencode({"as": "avro", "schema": schema})
    for begin in ("", "start=head&", "find=f&"):
        found = shown(answer := await console.ask("GET", f"{EVENTS}?{begin}{query}"))
        assert "{&#34;&lt;a&gt;&#34;: &#34;f&#34;}" in found, answer.document
    # What the page leads to shows events in the same way.
    first = await console.ask("GET", f"{EVENTS}?start=head&{query}")
    page = first.document
    [here, *_] = re.findall(r'class="whole" href="[^?]+([^"]+)"', page)
    later = shown(await console.ask("GET", EVENTS + html.unescape(here)))
    assert later == shown(first)[: len(later)] != []
    live = re.findall(r'hx-get="([^"]+)"', (await console.ask("GET", f"{EVENTS}?{query}")).document)
    assert "avro" in (await console.ask("GET", html.unescape(live[0]))).document
    hidden = re.findall(r'type="hidden" name="schema" value="([^"]+)"', page)
    assert html.unescape(hidden[0]) == schema
    wrong = await console.ask("GET", f"{EVENTS}?as=avro&schema=%7B")
    assert (wrong.status, "is JSON" in wrong.document) == (400, True)
    longest = urlencode({"as": "avro", "schema": '"int"'.ljust(SCHEMA_LENGTH_MAX - 1) + "\n"})
    assert (await console.ask("GET", f"{EVENTS}?start=head&{longest}")).status == 200


async def test_a_change_of_another_site_writes_nothing(console: HttpClient) -> None:
    await make_stream(console)
    answer = await write(console, "x", {"Sec-Fetch-Site": "cross-site"})
    assert answer.status == 403
    assert shown(await console.ask("GET", f"{EVENTS}?start=head")) == []


async def test_what_cannot_be_written_is_refused(console: HttpClient) -> None:
    await make_stream(console)
    assert (await write(console, "")).status == 400
    assert (await write(console, "0g", kind="hex")).status == 400
    assert (await console.ask("POST", EVENTS, b"\xff", OWN)).status == 400
    assert (await console.ask("POST", EVENTS, b"event=" + b"x" * (1 << 20), OWN)).status == 413
    await console.ask("PUT", "/v1/scopes/s/streams/t/state", {"streamState": "SEALED"})
    assert (await write(console, "x")).status == 400
    assert shown(await console.ask("GET", EVENTS)) == []


@pytest.mark.parametrize(
    "query",
    ["start=x", "as=x", "start=cut&cut=x", "start=time&time=x", "start=time"],
)
async def test_a_wrong_beginning_is_refused(console: HttpClient, query: str) -> None:
    await make_stream(console)
    assert (await console.ask("GET", f"{EVENTS}?{query}")).status == 400


async def test_a_cut_of_another_stream_is_refused(console: HttpClient) -> None:
    await make_stream(console)
    answer = await console.ask(
        "GET", f"{EVENTS}?start=cut&cut={quote(encode_cut_text('s/u', {0: 0}))}"
    )
    assert (answer.status, "a cut of s/u" in answer.document) == (400, True)


async def test_who_may_only_read_is_offered_no_form_and_refused(
    secure_client: HttpClient,
) -> None:
    await make_stream(secure_client, headers=basic("admin"))
    pages = {
        user: (await secure_client.ask("GET", EVENTS, headers=basic(user))).document
        for user in ("reader", "writer", "admin")
    }
    assert {user for user, page in pages.items() if "Write an event" in page} == {"writer", "admin"}
    assert (await write(secure_client, "x", basic("reader"))).status == 403
    assert (await write(secure_client, "x")).status == 401
