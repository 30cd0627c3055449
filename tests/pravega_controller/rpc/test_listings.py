"""Lists have what the caller may read, whatever the pages are."""

from __future__ import annotations

from typing import Any

from pravega_controller.metadata.scope_records import Listing
from pravega_controller.rpc.listings import list_readable
from pravega_controller.rpc.rpc import Call
from pravega_security.resources import Level, scope_resource

PAGES = {
    "": Listing(["hidden-1", "hidden-2"], "1"),
    "1": Listing(["hidden-3"], "2"),
    "2": Listing(["hidden-4", "seen-1"], "3"),
    "3": Listing(["seen-2"], "4"),
    "4": Listing([], ""),
}


class Reader:
    name = "ann"

    def authorize(self, resource: str) -> Level:
        return Level.NONE if "hidden" in resource else Level.READ


async def find_page(token: str) -> Listing:
    return PAGES[token]


def call_of(caller: Any) -> Call:
    controller: Any = None
    return Call(controller, "", 0, lambda sentence: None, caller)


async def test_lists_have_what_the_caller_may_read() -> None:
    call, token = call_of(Reader()), ""
    found = []
    while True:
        page = await list_readable(call, find_page, token, scope_resource)
        if not page.names:
            break
        found.append(page.names)
        token = page.token
    assert found == [["seen-1"], ["seen-2"]]


async def test_without_authorization_pages_are_as_they_are() -> None:
    page = await list_readable(call_of(None), find_page, "", scope_resource)
    assert page == PAGES[""]
