"""``segstore cluster`` and ``segstore check``: what they print, and how they end."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from pravega_admin import cluster_commands
from pravega_admin.cluster_state import ClusterState, Member
from pravega_admin.verbs import app

WHOLE = ClusterState(
    (
        Member("segment store", "h:1", "serves", (0, 1), frozenset({0, 1})),
        Member("controller", "h:2", "serves"),
        Member("bookie", "h:3", "registered"),
    ),
    2,
)
BROKEN = ClusterState(
    (
        Member("segment store", "h:1", "serves", (0,), frozenset()),
        Member("segment store", "h:9", "gone", (1,)),
        Member("controller", "h:2", "serves"),
    ),
    2,
)
OPTIONS = ("--zookeeper", "127.0.0.1:9")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> list[ClusterState]:
    """Return a look that finds one state after the other, and then the last one again."""
    found: list[ClusterState] = []

    def read(*arguments: object) -> ClusterState:
        return found.pop(0) if len(found) > 1 else found[0]

    monkeypatch.setattr(cluster_commands, "_read_cluster", read)
    monkeypatch.setattr(cluster_commands, "LOOK_SECONDS", 0.01)
    return found


def test_status_lists_members(states: list[ClusterState]) -> None:
    states.append(WHOLE)
    done = invoke("cluster", "status", *OPTIONS)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "KIND           ADDRESS  STATE       CONTAINERS  NOT SERVED",
        "segment store  h:1      serves      0, 1        -",
        "controller     h:2      serves      -           -",
        "bookie         h:3      registered  -           -",
    ]


def test_status_of_a_broken_cluster_is_an_error_that_says_what_is_broken(
    states: list[ClusterState],
) -> None:
    states.append(BROKEN)
    done = invoke("cluster", "status", *OPTIONS, "-o", "json")
    assert done.exit_code == 6
    assert json.loads(done.stdout)[1] == {
        "kind": "segment store",
        "address": "h:9",
        "state": "gone",
        "containers": [1],
        "not_served": [1],
    }
    assert "containers that no store serves: 0, 1" in done.stderr


def test_wait_ends_when_the_cluster_is_whole(states: list[ClusterState]) -> None:
    states += [BROKEN, BROKEN, WHOLE]
    done = invoke("cluster", "wait", *OPTIONS, "--stores", "1", "--bookies", "1")
    assert done.exit_code == 0, done.stderr
    assert states == [WHOLE]
    assert "is whole" in done.stderr


def test_wait_gives_up_with_what_is_missing(states: list[ClusterState]) -> None:
    states.append(WHOLE)
    done = invoke("cluster", "wait", *OPTIONS, "--stores", "3", "--timeout", "1")
    assert done.exit_code == 7
    assert "1 of 3 segment stores: serves, after 1 s" in done.stderr


def test_a_zookeeper_that_is_not_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_commands, "ANSWER_SECONDS", 0.3)
    done = invoke("cluster", "status", *OPTIONS)
    assert done.exit_code == 5
    assert "ZooKeeper at 127.0.0.1:9 does not answer" in done.stderr
    done = invoke("cluster", "wait", *OPTIONS, "--timeout", "1")
    assert done.exit_code == 7
    assert "does not answer" in done.stderr


@pytest.mark.parametrize("what", ["segment-store", "controller"])
def test_a_server_that_is_not_there_fails_its_check(what: str) -> None:
    done = invoke("check", what, "127.0.0.1:9", "--timeout", "5")
    assert done.exit_code == 5
    assert "127.0.0.1:9" in done.stderr


def test_an_address_without_a_port_is_wrong_usage() -> None:
    assert invoke("check", "controller", "somewhere").exit_code == 2
    assert invoke("cluster", "status", "--zookeeper", "somewhere").exit_code == 2
