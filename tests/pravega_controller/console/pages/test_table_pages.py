"""Tests of the page of a key-value table, on a real segment store."""

from __future__ import annotations

import re
from random import Random

from pravega_controller.config import ControllerConfig
from pravega_controller.console.application import make_console
from pravega_controller.controller import Environment, open_controller
from pravega_controller.http.calls import Calls
from pravega_controller.http.health import Health
from pravega_controller.store_client.segment_client import NO_TOKEN
from pravega_wire import commands as wire
from pravega_wire import controller_pb2 as pb
from pravega_wire.names import key_value_table_stream, segment_name
from support.console_pages import Checked
from support.http_controllers import send_to_application


async def test_a_table_shows_its_partitions_with_their_entries(
    segment_store: tuple[str, int],
) -> None:
    config = ControllerConfig(segment_stores=(segment_store,), container_count=4)
    async with open_controller(config, Environment(random=Random(7))) as controller:
        calls = Calls(controller, None)
        console = make_console(calls, Health(controller, config), ())
        await controller.scopes.create("s")
        table = pb.KeyValueTableConfig(
            scope="s", kvtName="prices", partitionCount=2, primaryKeyLength=8
        )
        await calls.of([], "").call("createKeyValueTable", table)
        segment = segment_name("s", key_value_table_stream("prices"), 1)
        entries = tuple(
            wire.TableEntry(wire.TableKey(number.to_bytes(8, "big")), b"v") for number in range(3)
        )
        reply = await controller.segments.request(
            segment, lambda i: wire.UpdateTableEntries(i, segment, NO_TOKEN, entries)
        )
        assert isinstance(reply, wire.TableEntriesUpdated)

        async def read(path: str, expected: int = 200) -> str:
            status, body = await send_to_application(console, "GET", path, b"")
            assert status == expected, body
            assert Checked(body.decode()).faults == []
            return body.decode()

        assert "/console/tables/s/prices" in await read("/scopes/s")
        page = await read("/tables/s/prices")
        assert re.findall(r"<dd>([^<]+)</dd>", page)[:3] == ["3", "2", "8 B"]
        rows = re.findall(r'=\d">(\d)</a></th><td>[^<]+</td><td[^>]+>(\d)<', page)
        assert rows == [("0", "0"), ("1", "3")]
        assert "/console/tables/s/prices/entries?partition=1" in page
        await read("/tables/s/none", 404)
