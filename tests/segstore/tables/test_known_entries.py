from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from segstore.tables.known_entries import NOWHERE, UNKNOWN, KnownEntries, Located
from segstore.tables.layouts import FixedKeyLayout


def make_known(*, clean_bytes_max: int = 1 << 20) -> KnownEntries:
    return KnownEntries(FixedKeyLayout(1), kept_value_bytes_max=4, clean_bytes_max=clean_bytes_max)


def at(offset: int) -> Located:
    return Located(offset, offset, 10, b"v")


def publish(known: KnownEntries, index_offset: int) -> None:
    known.publish(index_offset, known.unindexed(index_offset))


def test_what_the_attributes_took_over_leaves_the_tail_and_is_still_known() -> None:
    known = make_known()
    known.write(b"a", 0, at(0))
    known.write(b"b", 10, None)
    assert known.unindexed(100).keys() == {b"a", b"b"}
    publish(known, 20)
    assert known.tail_count == 0
    assert (known.get(b"a"), known.get(b"b"), known.get(b"c")) == (at(0), None, UNKNOWN)


def test_a_key_that_changed_during_a_step_stays_in_the_tail() -> None:
    known = make_known()
    known.write(b"a", 0, at(0))
    taken = known.unindexed(100)
    known.write(b"a", 10, at(10))
    known.publish(10, taken)
    written = known.written(b"a")
    assert written is not None
    assert (written.located, written.indexed) == (at(10), 0)


def test_a_held_tail_keeps_what_the_attributes_take_over() -> None:
    known = make_known()
    known.write(b"a", 0, at(0))
    with known.hold():
        publish(known, 10)
        assert known.unindexed(100) == {}
        known.write(b"b", 10, at(10))
        with known.hold():
            publish(known, 20)
        assert known.written(b"a") is not None
        assert known.written(b"b") is not None
    assert known.tail_count == 0


def test_a_later_hold_does_not_keep_what_was_taken_over_before() -> None:
    known = make_known()
    known.write(b"a", 0, at(0))
    publish(known, 10)
    with known.hold():
        assert known.tail_count == 0


def test_a_change_of_a_key_knows_where_the_attributes_have_it() -> None:
    known = make_known()
    known.remember(b"a", at(0))
    known.remember(b"b", None)
    for number, key in enumerate((b"a", b"b", b"c", b"a")):
        known.write(key, 20 + number, at(20 + number))
    unindexed = known.unindexed(100)
    assert [unindexed[key].indexed for key in (b"a", b"b", b"c")] == [0, NOWHERE, None]


def test_a_step_of_somebody_else_makes_places_unknown() -> None:
    known = make_known()
    known.remember(b"b", at(0))
    known.write(b"a", 10, at(10))
    known.write(b"b", 20, at(20))
    known.resync(20)
    assert known.get(b"a") == at(10)
    written = known.written(b"b")
    assert written is not None
    assert written.indexed is None
    assert known.tail_count == 1


def test_clean_entries_are_forgotten_those_unused_for_the_longest_time_first() -> None:
    known = make_known(clean_bytes_max=1300)
    for key in (b"a", b"b", b"c"):
        known.remember(key, at(0))
    known.get(b"a")
    known.remember(b"d", at(0))
    assert known.get(b"b") is UNKNOWN
    assert known.get(b"a") == at(0)
    assert known.memory_bytes <= 1300


def test_pinned_entries_stay_and_so_does_the_tail() -> None:
    known = make_known(clean_bytes_max=500)
    known.pin([b"a", b"a"])
    known.remember(b"a", at(0))
    known.write(b"t", 10, at(10))
    for number in range(10):
        known.remember(b"%d" % number, at(0))
    assert known.get(b"a") == at(0)
    assert known.get(b"t") == at(10)
    known.unpin([b"a"])
    known.remember(b"x", at(0))
    assert known.get(b"a") == at(0)
    known.unpin([b"a"])
    known.remember(b"x", at(0))
    known.remember(b"y", at(0))
    assert known.get(b"a") is UNKNOWN


def test_many_pinned_keys_are_remembered_in_no_time_and_let_go_with_their_pins() -> None:
    known = KnownEntries(FixedKeyLayout(4), kept_value_bytes_max=4, clean_bytes_max=10_000)
    keys = [number.to_bytes(4, "big") for number in range(50_000)]
    known.pin(keys)
    with _seconds_at_most(5):
        for key in keys:
            known.remember(key, None)
    assert known.get(keys[0]) is None
    known.unpin(keys)
    assert known.memory_bytes <= 10_000


@contextmanager
def _seconds_at_most(seconds: float) -> Iterator[None]:
    def give_up(number: int, frame: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_memory_is_given_back_with_the_keys() -> None:
    known = make_known(clean_bytes_max=0)
    known.write(b"a", 0, at(0))
    assert [key for _, key, _ in known.tail_range(b"a", b"z")] == [b"a"]
    assert known.memory_bytes > 400
    publish(known, 10)
    assert known.memory_bytes == 0


def test_the_tail_is_iterated_in_the_order_of_its_buckets() -> None:
    known = make_known()
    for key in (b"c", b"a", b"b"):
        known.write(key, 0, at(0))
    assert [key for _, key, _ in known.tail_range(b"a", b"b")] == [b"a", b"b"]
    known.write(b"0", 0, None)
    assert [key for _, key, _ in known.tail_range(b"0", b"z")] == [b"0", b"a", b"b", b"c"]


def test_pinned_entries_stay_beyond_the_bound_and_are_the_last_to_go() -> None:
    known = make_known(clean_bytes_max=3_000)
    known.remember(b"a", at(0))
    pinned = [bytes([1, number]) for number in range(100)]
    known.pin(pinned)
    known.pin(pinned[:50])
    for number, key in enumerate(pinned):
        known.remember(key, at(number))
    assert known.get(b"a") is UNKNOWN
    assert [known.get(key) for key in pinned] == [at(number) for number in range(100)]
    # Nothing else has room meanwhile, and costs no look at what is pinned.
    known.remember(b"b", at(0))
    assert known.get(b"b") is UNKNOWN
    known.unpin(pinned)
    assert [known.get(key) for key in pinned[:50]] == [at(number) for number in range(50)]
    assert all(known.get(key) is UNKNOWN for key in pinned[50:])
    assert known.memory_bytes > 3_000
    known.write(pinned[0], 1000, None)
    known.unpin(pinned[:50])
    assert known.memory_bytes <= 3_000 + 500
    assert known.get(pinned[0]) is None
    assert isinstance(known.get(pinned[49]), Located)
