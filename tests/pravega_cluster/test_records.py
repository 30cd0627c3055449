"""The bytes of hosts and of the map of containers: known ones, round trips, damage."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_cluster.records import (
    ClusterRecordError,
    Host,
    decode_map,
    encode_host,
    encode_map,
    parse_node_name,
)

STORE = Host("127.0.0.1", 12345)
STORE_BYTES = bytes.fromhex("0000010000000011 0009 3132372e302e302e31 00003039 0000")

INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
HOSTS = st.builds(Host, TEXT, INT32, TEXT)


@st.composite
def maps(draw: st.DrawFn) -> dict[Host, frozenset[int]]:
    hosts = draw(st.lists(HOSTS, unique=True, max_size=6))
    containers = draw(st.sets(INT32, max_size=200)) if hosts else set()
    found: dict[Host, set[int]] = {host: set() for host in hosts}
    for container in sorted(containers):
        found[draw(st.sampled_from(hosts))].add(container)
    return {host: frozenset(each) for host, each in found.items()}


def test_known_bytes() -> None:
    assert encode_host(STORE) == STORE_BYTES
    assert encode_map({}) == bytes.fromhex("000001000000000100")
    both = bytes.fromhex(
        f"000001000000002b 01 {STORE_BYTES.hex()} 0000010000000009 02 00000000 00000001"
    )
    assert encode_map({STORE: frozenset({1, 0})}) == both
    assert decode_map(both) == {STORE: frozenset({0, 1})}


@given(maps())
def test_maps_come_back(container_map: dict[Host, frozenset[int]]) -> None:
    data = encode_map(container_map)
    assert decode_map(data) == container_map
    assert encode_map(dict(reversed(container_map.items()))) == data


@given(maps(), st.data())
def test_a_part_of_a_map_is_damaged(
    container_map: dict[Host, frozenset[int]], data: st.DataObject
) -> None:
    encoded = encode_map(container_map)
    length = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(ClusterRecordError):
        decode_map(encoded[:length])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_map_or_an_error(data: bytes) -> None:
    with suppress(ClusterRecordError):
        decode_map(data)


def test_a_container_is_given_once() -> None:
    other = Host("127.0.0.1", 12346)
    one = encode_map({STORE: frozenset({7}), other: frozenset({8})})
    twice = one.replace((8).to_bytes(4, "big"), (7).to_bytes(4, "big"))
    with pytest.raises(ClusterRecordError, match="in the map twice"):
        decode_map(twice)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        (STORE, "127.0.0.1:12345:"),
        (Host("fe80::1", 1), "fe80::1:1:"),
        (Host("c1", 9090, "3c9f"), "c1:9090:3c9f"),
    ],
)
def test_names_of_nodes(host: Host, name: str) -> None:
    assert host.node_name == name
    assert parse_node_name(name) == host


@pytest.mark.parametrize(
    "name", ["", ":", "::", "h", "h:1", "h:x:", "h:-1:", ":1:", "h:65536:", "h:²:"]
)
def test_strange_names_are_refused(name: str) -> None:
    with pytest.raises(ClusterRecordError):
        parse_node_name(name)
