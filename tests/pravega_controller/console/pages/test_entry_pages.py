"""Tests of the pages of a key-value table's entries, on a real segment store."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any

import pytest

from pravega_controller.config import ControllerConfig
from pravega_controller.console.application import make_console
from pravega_controller.console.events.event_walks import SHOWN_BYTES_MAX
from pravega_controller.console.pages import entry_pages
from pravega_controller.controller import Controller, Environment, open_controller
from pravega_controller.http.calls import Calls
from pravega_controller.http.health import Health
from pravega_controller.store_client.segment_client import NO_TOKEN
from pravega_wire import commands as wire
from pravega_wire import controller_pb2 as pb
from pravega_wire.hashing import table_key_hash
from pravega_wire.names import key_value_table_stream, segment_name
from support.console_pages import Checked
from support.http_controllers import send_to_application

PARTITIONS = 2
PAGE = "/tables/s/prices/entries"


class Table:
    """A key-value table with primary keys of eight bytes and secondary ones of two, and the console
    that shows it."""

    def __init__(self, controller: Controller, console: Any) -> None:
        self._controller = controller
        self._console = console

    async def put(self, *entries: tuple[bytes, bytes]) -> None:
        for primary, value in entries:
            key = primary.ljust(8, b"\0")
            number = int(table_key_hash(key) * PARTITIONS)
            segment = segment_name("s", key_value_table_stream("prices"), number)
            entry = wire.TableEntry(wire.TableKey(key + b"\0\0"), value)
            reply = await self._controller.segments.request(
                segment,
                lambda i, segment=segment, entry=entry: wire.UpdateTableEntries(
                    i, segment, NO_TOKEN, (entry,)
                ),
            )
            assert isinstance(reply, wire.TableEntriesUpdated)

    async def read(self, path: str, expected: int = 200) -> str:
        status, body = await send_to_application(self._console, "GET", path, b"")
        assert status == expected, body
        assert Checked(body.decode()).faults == []
        return body.decode()

    async def read_pages(self, query: str = "") -> list[list[tuple[str, str]]]:
        """Return the keys and values of a page and of all that it leads to."""
        pages = []
        while True:
            page = await self.read(PAGE + query)
            pages.append(shown(page))
            following = re.findall(r'class="button" href="/console[^?]+([^"]+)"', page)
            if not following:
                return pages
            query = html.unescape(following[0])


def shown(page: str) -> list[tuple[str, str]]:
    """Return the keys and the values on a page, as they are written in it."""
    return re.findall(r"key <b>(.*?)</b>.*?<pre[^>]*>(.*?)</pre>", page, re.DOTALL)


@pytest.fixture
async def table(segment_store: tuple[str, int]) -> AsyncIterator[Table]:
    config = ControllerConfig(segment_stores=(segment_store,), container_count=4)
    async with open_controller(config, Environment(random=Random(7))) as controller:
        calls = Calls(controller, None)
        await controller.scopes.create("s")
        configuration = pb.KeyValueTableConfig(
            scope="s",
            kvtName="prices",
            partitionCount=PARTITIONS,
            primaryKeyLength=8,
            secondaryKeyLength=2,
        )
        await calls.of([], "").call("createKeyValueTable", configuration)
        yield Table(controller, make_console(calls, Health(controller, config), ()))


def flat(pages: Sequence[Sequence[tuple[str, str]]]) -> list[tuple[str, str]]:
    return [each for page in pages for each in page]


@pytest.mark.parametrize("read_bytes_max", [entry_pages.READ_BYTES_MAX, 100])
async def test_pages_show_each_entry_once(
    table: Table, read_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_pages, "ENTRIES_SHOWN", 7)
    monkeypatch.setattr(entry_pages, "READ_BYTES_MAX", read_bytes_max)
    entries = [(f"{number:04d}", f"value {number}") for number in range(40)]
    await table.put(*[(key.encode(), value.encode()) for key, value in entries])
    pages = await table.read_pages()
    assert sorted(flat(pages)) == entries
    assert max(map(len, pages)) <= 7
    assert len(pages) >= 7
    found = dict(entries)
    page = shown(await table.read(f"{PAGE}?key=0020"))
    # The page begins with the key, in the partition of the key.
    assert page[0] == ("0020", found["0020"])
    assert [key for key, _ in page] == sorted(key for key, _ in page)


async def test_values_are_shown_in_the_form_that_is_asked_for(table: Table) -> None:
    script = "<script>alert(1)</script>"
    long = b"x" * (SHOWN_BYTES_MAX + 1)
    await table.put((b"json", b'{"a":1}'), (b"\xff\x00\x01", b"\x00"), (b"long", long))
    await table.put((script[:8].encode(), script.encode()))
    found = dict(flat(await table.read_pages()))
    assert found["json"] == "{&#34;a&#34;: 1}"
    assert found["hex:ff0001"].startswith("000000  00")
    assert found["long"] == "x" * SHOWN_BYTES_MAX + "…"
    assert found["&lt;script&gt;"] == html.escape(script, quote=False)
    [(_, value), *_] = shown(await table.read(f"{PAGE}?key=json&as=hex"))
    assert value.startswith("000000  7b 22")
    page = await table.read(f"{PAGE}?key=hex:ff0001&as=json")
    assert shown(page)[0][0] == "hex:ff0001"
    assert "This is no json" in page


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("partition=2", "from 0 to 1"),
        ("partition=x", "from 0 to 1"),
        ("from=0", "in hexadecimal"),
        ("from=" + "00" * 11, "have 10 bytes"),
        ("key=hex:0g", "is not hexadecimal"),
        ("key=123456789", "have 8 bytes, and this one has 9"),
        ("as=x", "as has to be one of"),
    ],
)
async def test_a_place_that_there_is_not_is_refused(
    table: Table, query: str, sentence: str
) -> None:
    assert sentence in await table.read(f"{PAGE}?{query}", 400)


async def test_a_table_without_entries_says_so(table: Table) -> None:
    page = await table.read(PAGE)
    assert "There are no entries here" in page
    assert "?partition=1&amp;as=auto" in page
    last = await table.read(f"{PAGE}?partition=1")
    assert "the end of the last partition" in last
    await table.read("/tables/s/none/entries", 404)
