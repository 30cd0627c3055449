"""The vortex in its short form: each fault once or twice around one store, and the checker content.

`make vortex MINUTES=60` is the long form.
"""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

import pytest
from compat_harness.checker import check
from vortex.faults import FAULTS
from vortex.proxy import Network, Proxy
from vortex.run import Run
from vortex.workers import decode_event, encode_event

SHORT = (
    "kill the segment store",
    "cut the network",
    "kill both servers",
    "set the wall clock",
    "kill the segment store again while it recovers",
    "reset all connections",
    "kill the segment store on a full disk",
    "free a full disk by truncating, sealing and deleting",
    "pause the segment store",
    "send half frames on many connections",
    "kill everything",
    "kill everything, and recover what is not damaged",
    "lose the journal after a stop, and recover",
    "hold many idle connections",
    "stop and start the gentle way",
)


@pytest.mark.proof
@pytest.mark.compat
@pytest.mark.timeout(600)
def test_a_store_survives_one_fault_after_the_other(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEGSTORE_COMPAT_SEED", random.randrange(2**32)))
    print(f"SEGSTORE_COMPAT_SEED={seed}")
    assert set(SHORT) <= FAULTS.keys()
    outcome = Run(tmp_path, seed=seed, say=print).execute(seconds=0.0, faults=SHORT)
    for line in outcome.lines():
        print(line)
    assert sum(outcome.faults.values()) == len(set(SHORT) - set(outcome.left_out))


def test_events_say_when_their_bytes_are_not_those_that_were_written() -> None:
    data = encode_event("a-1", 7, random.Random(1))
    assert decode_event(data) == ("a-1", 7, True)
    for position in range(len(b"00000000 a-1 7 "), len(data)):
        changed = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        assert decode_event(changed) == ("a-1", 7, False)
    assert not check(["sent a 0", "acked a 0"], ["corrupt a 0"]).clean


def test_a_proxy_cuts_and_heals() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with Proxy("127.0.0.2", "127.0.0.1", [port]) as proxy:
            with socket.create_connection(("127.0.0.2", port), timeout=10) as client:
                accepted, _ = server.accept()
                with accepted:
                    client.sendall(b"over")
                    assert accepted.recv(4) == b"over"
                    assert proxy.reset_connections() == 1
                    assert client.recv(1) == b""
                    assert accepted.recv(1) == b""
            with (
                proxy.behaving(Network.CUT),
                socket.create_connection(("127.0.0.2", port), timeout=10) as client,
            ):
                assert client.recv(1) == b""
            with (
                socket.create_connection(("127.0.0.2", port), timeout=10) as client,
                proxy.behaving(Network.SILENT),
            ):
                accepted, _ = server.accept()
                accepted.settimeout(0.3)
                client.sendall(b"held")
                with pytest.raises(TimeoutError):
                    accepted.recv(4)
            accepted.settimeout(10)
            assert accepted.recv(4) == b"held"
            accepted.close()
