"""``segstore cluster`` and ``segstore check``: what they print, and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trustme
from typer.testing import CliRunner, Result

from pravega_admin.commands import cluster
from pravega_admin.inspection.cluster_state import ClusterState, Member
from pravega_admin.verbs import app
from pravega_wire.commands import DelaysTold, Reply
from support.secure_servers import running_store

FULL = "the disk of /data is full"
WHOLE = ClusterState(
    (
        Member("segment store", "h:1", "serves", (0, 1), frozenset({0, 1}), FULL),
        Member("controller", "h:2", "serves"),
        Member("bookie", "h:3", "serves"),
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

    monkeypatch.setattr(cluster, "read_cluster", read)
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.01)
    return found


def test_status_lists_members(states: list[ClusterState]) -> None:
    states.append(WHOLE)
    done = invoke("cluster", "status", *OPTIONS)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "KIND           ADDRESS  STATE   CONTAINERS  NOT SERVED  DELAYS",
        "segment store  h:1      serves  0, 1        -           the disk of /data is full",
        "controller     h:2      serves  -           -           -",
        "bookie         h:3      serves  -           -           -",
    ]
    assert done.stderr == ""


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
        "delays": None,
    }
    assert "containers that no store serves: 0, 1" in done.stderr


def test_wait_ends_when_the_cluster_is_whole(states: list[ClusterState]) -> None:
    states += [BROKEN, BROKEN, WHOLE]
    done = invoke("cluster", "wait", *OPTIONS, "--stores", "1", "--bookies", "1")
    assert done.exit_code == 0, done.stderr
    assert states == [WHOLE]
    assert "is whole" in done.stderr


def test_a_stopped_bookie_is_told_where_others_do_its_work(states: list[ClusterState]) -> None:
    stopped = (Member("bookie", "h:4", "does not answer"), Member("bookie", "h:5", "gone"))
    states.append(ClusterState((*WHOLE.members, *stopped), WHOLE.container_count))
    for verb in ("status", "wait"):
        done = invoke("cluster", verb, *OPTIONS)
        assert done.exit_code == 0
        assert "bookies that do not answer: h:4, h:5" in done.stderr
    done = invoke("cluster", "wait", *OPTIONS, "--bookies", "2", "--timeout", "1")
    assert done.exit_code == 7
    assert "1 of 2 bookies: serves" in done.stderr


def test_wait_gives_up_with_what_is_missing(states: list[ClusterState]) -> None:
    states.append(WHOLE)
    done = invoke("cluster", "wait", *OPTIONS, "--stores", "3", "--timeout", "1")
    assert done.exit_code == 7
    assert "1 of 3 segment stores: serves, after 1 s" in done.stderr


def test_a_zookeeper_that_is_not_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 0.3)
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


def say_nothing_waits(command: Any) -> list[Reply]:
    return [DelaysTold(command.request_id, ())]


def test_a_server_with_tls_is_checked_with_its_authority(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("CA", "USER", "PROFILE"):
        monkeypatch.delenv(f"SEGSTORE_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    authority = trustme.CA()
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.cert_pem.bytes())
    with (
        running_store(say_nothing_waits, authority.issue_cert("127.0.0.1")) as store,
        running_store(say_nothing_waits) as plain,
    ):
        address = f"127.0.0.1:{store}"
        done = invoke("check", "segment-store", address, "--ca", str(ca))
        assert (done.exit_code, done.stderr) == (0, f"{address} serves\n")
        done = invoke("check", "segment-store", address)
        assert done.exit_code == 5
        assert f"{address} speaks TLS: give --ca FILE, or say tls://{address}" in done.stderr
        done = invoke("check", "segment-store", f"tls://{address}")
        assert done.exit_code == 5
        assert "not from an authority that this client trusts" in done.stderr
        monkeypatch.setenv("SEGSTORE_CA", str(ca))
        assert invoke("check", "segment-store", f"tls://{address}").exit_code == 0
        done = invoke("check", "segment-store", f"127.0.0.1:{plain}")
        assert done.exit_code == 5
        assert "speaks no TLS: say tcp:// instead of tls://" in done.stderr
        assert invoke("check", "segment-store", f"tcp://127.0.0.1:{plain}").exit_code == 0
    assert invoke("check", "segment-store", "http://h:1").exit_code == 2
