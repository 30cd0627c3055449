"""A session that is given up while it is opened."""

from __future__ import annotations

import socket

import trio

from zookeeper_client.kazoo_session import open_zookeeper


async def test_a_stop_does_not_wait_for_a_zookeeper_that_is_away() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        hosts = f"127.0.0.1:{held.getsockname()[1]}"
        began = trio.current_time()
        with trio.move_on_after(0.5):
            async with trio.open_nursery() as nursery, open_zookeeper(hosts, nursery):
                raise AssertionError("nobody listens there")
        assert trio.current_time() - began < 3
