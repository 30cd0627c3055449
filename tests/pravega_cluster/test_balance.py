"""The balancer: whole, even, stable; as few moves as a search through all maps finds."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from pravega_cluster.balance import balance_containers
from pravega_cluster.records import ContainerMap, Host

HOSTS = [Host(f"10.0.0.{number}", 12345) for number in range(1, 7)]


@st.composite
def maps(draw: st.DrawFn, containers_max: int = 40) -> dict[Host, frozenset[int]]:
    """Draw any map: uneven, with containers that are missing or beyond the count."""
    hosts = draw(st.lists(st.sampled_from(HOSTS), unique=True))
    found: dict[Host, set[int]] = {host: set() for host in hosts}
    for container in draw(st.sets(st.integers(-2, containers_max))) if hosts else ():
        found[draw(st.sampled_from(hosts))].add(container)
    return {host: frozenset(each) for host, each in found.items()}


LIVING = st.sets(st.sampled_from(HOSTS), min_size=1)


def count_moves(before: ContainerMap, after: ContainerMap) -> int:
    """Count the containers that are on another host than before, or had none."""
    return sum(len(after[host] - before.get(host, frozenset())) for host in after)


def fewest_moves(before: ContainerMap, hosts: list[Host], container_count: int) -> int:
    """Return the fewest moves to any even map, by trying them all."""
    fewest = container_count
    for choice in itertools.product(hosts, repeat=container_count):
        sizes = [choice.count(host) for host in hosts]
        if max(sizes) - min(sizes) <= 1:
            moved = sum(c not in before.get(host, ()) for c, host in enumerate(choice))
            fewest = min(fewest, moved)
    return fewest


def assert_whole_and_even(after: ContainerMap, hosts: set[Host], container_count: int) -> None:
    assert after.keys() == hosts
    given_out = [container for containers in after.values() for container in containers]
    assert sorted(given_out) == list(range(container_count))
    sizes = [len(containers) for containers in after.values()]
    assert max(sizes) - min(sizes) <= 1


@given(maps(), LIVING, st.integers(0, 40))
def test_a_map_is_whole_even_and_stays(
    before: dict[Host, frozenset[int]], hosts: set[Host], container_count: int
) -> None:
    after = balance_containers(before, hosts, container_count)
    assert_whole_and_even(after, hosts, container_count)
    assert balance_containers(after, hosts, container_count) == after


@settings(max_examples=60)
@given(maps(containers_max=5), st.sets(st.sampled_from(HOSTS[:3]), min_size=1), st.integers(1, 6))
def test_no_map_needs_fewer_moves(
    before: dict[Host, frozenset[int]], hosts: set[Host], container_count: int
) -> None:
    after = balance_containers(before, hosts, container_count)
    assert count_moves(before, after) == fewest_moves(before, sorted(hosts), container_count)


@given(st.sets(st.sampled_from(HOSTS), min_size=2), st.integers(1, 40), st.data())
def test_a_host_that_leaves_moves_its_own_containers_alone(
    hosts: set[Host], container_count: int, data: st.DataObject
) -> None:
    before = balance_containers({}, hosts, container_count)
    gone = data.draw(st.sampled_from(sorted(hosts)))
    after = balance_containers(before, hosts - {gone}, container_count)
    assert count_moves(before, after) == len(before[gone])


@given(LIVING, st.integers(1, 40), st.data())
def test_a_host_that_joins_takes_its_share_and_no_other_moves(
    hosts: set[Host], container_count: int, data: st.DataObject
) -> None:
    new = Host("10.0.1.1", 12345)
    before = balance_containers({}, hosts, container_count)
    after = balance_containers(before, hosts | {new}, container_count)
    assert count_moves(before, after) == len(after[new])
