"""Delays after failed logins, with a clock of the test."""

from __future__ import annotations

import pytest

from pravega_security.login_delays import FREE_FAILURES, FREE_USERS, LoginDelays, address_of
from support.key_sets import Clock


def test_failures_cost_more_and_more_time() -> None:
    clock = Clock()
    delays = LoginDelays(clock)
    for _ in range(FREE_FAILURES - 1):
        delays.note_failure("10.0.0.1", "u")
        assert delays.refuse_seconds("10.0.0.1", "u") == 0
    seconds = []
    for _ in range(8):
        delays.note_failure("10.0.0.1", "u")
        seconds.append(delays.refuse_seconds("10.0.0.1", "u"))
        clock.now += seconds[-1]
        assert delays.refuse_seconds("10.0.0.1", "u") == 0
    assert seconds == [1, 2, 4, 8, 16, 30, 30, 30]
    assert delays.failure_count == FREE_FAILURES - 1 + 8
    assert delays.refusal_count == 8


def fail(delays: LoginDelays, peer: str, user: str, times: int) -> None:
    for _ in range(times):
        delays.note_failure(peer, user)


def test_a_refused_attempt_makes_the_time_no_longer() -> None:
    clock = Clock()
    delays = LoginDelays(clock)
    fail(delays, "10.0.0.1", "u", FREE_FAILURES + 2)
    for expected in (4, 3, 2, 1, 0):
        assert delays.refuse_seconds("10.0.0.1", "u") == expected
        clock.now += 1


def test_other_users_and_addresses_are_not_delayed() -> None:
    delays = LoginDelays(Clock())
    fail(delays, "ipv4:10.0.0.1:1234", "u", FREE_FAILURES)
    assert delays.refuse_seconds("10.0.0.1", "u") == 1
    assert delays.refuse_seconds("ipv4:10.0.0.1:99", "u") == 1
    assert delays.refuse_seconds("10.0.0.2", "u") == 0
    assert delays.refuse_seconds("10.0.0.1", "v") == 0


def test_success_forgets() -> None:
    delays = LoginDelays(Clock())
    fail(delays, "10.0.0.1", "u", FREE_FAILURES)
    delays.note_success("10.0.0.1", "u")
    assert delays.refuse_seconds("10.0.0.1", "u") == 0
    delays.note_failure("10.0.0.1", "u")
    assert delays.refuse_seconds("10.0.0.1", "u") == 0


def test_time_forgets() -> None:
    clock = Clock()
    delays = LoginDelays(clock)
    fail(delays, "10.0.0.1", "u", 20)
    clock.now += 900
    delays.note_failure("10.0.0.1", "u")
    assert delays.refuse_seconds("10.0.0.1", "u") == 0


def test_the_table_is_bounded() -> None:
    delays = LoginDelays(Clock(), entries_max=20)
    for number in range(100):
        fail(delays, f"10.0.0.{number}", "u", FREE_FAILURES)
    refused = [delays.refuse_seconds(f"10.0.0.{number}", "u") > 0 for number in range(100)]
    # Each has an entry for the address, too.
    assert refused == [False] * 90 + [True] * 10


def test_many_users_from_one_address_cost_time() -> None:
    clock = Clock()
    delays = LoginDelays(clock)
    for number in range(FREE_USERS - 1):
        delays.note_failure("10.0.0.1", f"u{number}")
        assert delays.refuse_seconds("10.0.0.1", "next") == 0
    seconds = []
    for number in range(7):
        delays.note_failure("10.0.0.1", f"v{number}")
        seconds.append(delays.refuse_seconds("10.0.0.1", "next"))
        clock.now += seconds[-1]
        # A login that succeeds does not end it: who tries many users may have one.
        delays.note_success("10.0.0.1", "own")
    assert seconds == [1, 2, 4, 8, 16, 30, 30]
    assert delays.refuse_seconds("10.0.0.2", "next") == 0


def test_one_user_with_a_wrong_password_does_not_delay_others_of_its_address() -> None:
    clock = Clock()
    delays = LoginDelays(clock)
    for _ in range(100):
        delays.note_failure("10.0.0.1", "u")
        clock.now += 30
    assert delays.refuse_seconds("10.0.0.1", "v") == 0


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("ipv4:10.0.0.1:1234", "10.0.0.1"),
        ("ipv6:[::ffff:10.0.0.1]:1", "10.0.0.1"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:1234", "2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2::9%5D:1234", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix:/tmp/socket", "unix:/tmp/socket"),
        ("", ""),
    ],
)
def test_peers_count_by_address(peer: str, address: str) -> None:
    assert address_of(peer) == address
