"""Tests of the pages that change a stream, on a real segment store."""

from __future__ import annotations

import html
import re
from urllib.parse import urlencode

from support.console_pages import Checked, make_stream
from support.http_controllers import Answer, HttpClient, basic

STREAM = "/console/streams/s/t"
OWN = {"Sec-Fetch-Site": "same-origin"}
CHANGES = ("scale", "truncate", "seal", "delete")


def fields_of(page: Answer) -> dict[str, str]:
    """Return the hidden fields of a page's form."""
    assert page.status == 200, page.document
    assert Checked(page.document).faults == []
    found = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page.document)
    return {name: html.unescape(value) for name, value in found}


async def change(client: HttpClient, action: str, **fields: str) -> Answer:
    body = urlencode(fields).encode()
    return await client.ask("POST", f"{STREAM}/{action}", body, OWN)


async def segments(client: HttpClient) -> list[str]:
    """Return the ids of the present segments, by the page that offers scales."""
    page = (await client.ask("GET", f"{STREAM}/scale")).document
    return re.findall(r'segments=(\d+)"', page)


async def test_a_stream_is_scaled_truncated_sealed_and_deleted(console: HttpClient) -> None:
    await make_stream(console)
    assert await segments(console) == ["0", "1"]
    plan = await console.ask("GET", f"{STREAM}/scale?segments=1")
    assert "two segments replace it" in plan.document
    assert (await change(console, "scale", **fields_of(plan))).status == 303
    # A scale goes on after its answer.
    while len(found := await segments(console)) != 3:
        pass
    plan = await console.ask("GET", f"{STREAM}/scale?segments={found[1]},{found[2]}")
    assert (await change(console, "scale", **fields_of(plan))).status == 303
    for number in range(3):
        event = urlencode({"event": f"event {number}"}).encode()
        assert (await console.ask("POST", f"{STREAM}/events", event, OWN)).status == 303
    plan = await console.ask("GET", f"{STREAM}/truncate")
    assert "45 B of events before the present end are deleted" in plan.document
    assert (await change(console, "truncate", **fields_of(plan))).status == 303
    assert "There are no events here" in (
        (await console.ask("GET", f"{STREAM}/events?start=head")).document
    )
    plan = await console.ask("GET", f"{STREAM}/delete")
    assert "The stream has to be sealed first" in plan.document
    assert (await change(console, "delete", name="t")).status == 412
    plan = await console.ask("GET", f"{STREAM}/seal")
    assert (await change(console, "seal", **fields_of(plan))).status == 303
    assert "sealed already" in (await console.ask("GET", f"{STREAM}/seal")).document
    assert (await change(console, "truncate", cut="")).status == 400
    fields_of(await console.ask("GET", f"{STREAM}/delete"))
    done = await change(console, "delete", name="t")
    assert (done.status, done.headers["location"].partition("?")[0]) == (303, "/console/scopes/s")
    assert (await console.ask("GET", STREAM)).status == 404


async def test_each_change_is_told_in_one_sentence(console: HttpClient) -> None:
    await make_stream(console)

    async def told_after(action: str, **fields: str) -> list[str]:
        answer = await change(console, action, **fields)
        assert answer.status == 303, answer.document
        page = (await console.ask("GET", answer.headers["location"])).document
        assert Checked(page).faults == []
        assert ("<dd>sealed</dd>" in page) == (action == "seal")
        return re.findall(r'role="status">([^<]+)</p>', page)

    plan = await console.ask("GET", f"{STREAM}/scale?segments=1")
    [scaled] = await told_after("scale", **fields_of(plan))
    assert scaled.startswith("Stream s/t is being scaled")
    while len(await segments(console)) != 3:
        pass
    plan = await console.ask("GET", f"{STREAM}/truncate")
    [truncated] = await told_after("truncate", **fields_of(plan))
    assert truncated.startswith("Stream s/t is truncated")
    assert await told_after("seal") == ["Stream s/t is sealed."]
    assert await told_after("delete", name="t") == ["Stream s/t is deleted."]


async def test_a_link_puts_no_text_of_its_own_on_a_page(console: HttpClient) -> None:
    await make_stream(console)
    for query in ("done=Send+money", "done=", "done=deleted", "done=deleted&stream="):
        page = (await console.ask("GET", f"/console/scopes/s?{query}")).document
        assert 'role="status">S' not in page


async def test_a_refused_deletion_leads_to_the_seal(console: HttpClient) -> None:
    await make_stream(console)
    refused = await change(console, "delete", name="t")
    planned = await console.ask("GET", f"{STREAM}/delete")
    assert (refused.status, planned.status) == (412, 200)
    for page in (refused.document, planned.document):
        assert f'href="{STREAM}/seal"' in page
        assert "The stream has to be sealed first." in page
        assert Checked(page).faults == []
    await change(console, "seal")
    page = (await console.ask("GET", f"{STREAM}/delete")).document
    assert f'href="{STREAM}/seal"' not in page


async def test_a_deletion_needs_the_name(console: HttpClient) -> None:
    await make_stream(console)
    await change(console, "seal")
    for name in ("", "T", "s/t"):
        assert (await change(console, "delete", name=name)).status == 400
    assert (await console.ask("GET", STREAM)).status == 200


async def test_asking_for_a_page_changes_nothing(console: HttpClient) -> None:
    await make_stream(console)
    before = await segments(console)
    for each in CHANGES:
        assert (await console.ask("GET", f"{STREAM}/{each}")).status == 200
        answer = await console.ask("POST", f"{STREAM}/{each}", b"name=t")
        assert answer.status == 403, each
    assert await segments(console) == before


async def test_what_is_no_scale_is_refused(console: HttpClient) -> None:
    await make_stream(console)
    for wrong in ("", "7", "0,7", "x", "1,0,0,2"):
        page = await console.ask("GET", f"{STREAM}/scale?segments={wrong}")
        assert page.status == 400, wrong
    assert (await change(console, "scale", sealed="0", ranges="a")).status == 400
    assert (await change(console, "scale", sealed="0", ranges="0.0,0.3")).status in (400, 409)
    assert (await change(console, "scale", sealed="9", ranges="0.0,0.5")).status == 409


async def test_who_may_only_read_is_offered_no_change_and_refused(
    secure_client: HttpClient,
) -> None:
    await make_stream(secure_client, headers=basic("admin"))
    for user, is_offered in (("reader", False), ("writer", True), ("admin", True)):
        page = (await secure_client.ask("GET", STREAM, headers=basic(user))).document
        assert ("Change the stream" in page) == is_offered
        for each in CHANGES:
            plan = await secure_client.ask("GET", f"{STREAM}/{each}", headers=basic(user))
            assert plan.status == (200 if is_offered else 403)
    for each in CHANGES:
        fields = urlencode({"name": "t", "sealed": "0", "ranges": "0.0,0.5"}).encode()
        headers = {**OWN, **basic("reader")}
        answer = await secure_client.ask("POST", f"{STREAM}/{each}", fields, headers)
        assert answer.status in ((400, 403) if each == "truncate" else (403,)), each
