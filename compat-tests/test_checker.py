"""The checker must see every kind of wrong: a checker that cannot fail proves nothing."""

from __future__ import annotations

import random

import pytest
from compat_harness.checker import FINDINGS_KEPT_MAX, Finding, Kind, LedgerError, check
from hypothesis import given
from hypothesis import strategies as st


def written(key: str, count: int, *, acked: bool = True) -> list[str]:
    facts = [f"sent {key} {sequence}" for sequence in range(count)]
    if acked:
        facts += [f"acked {key} {sequence}" for sequence in range(count)]
    return facts


def read(key: str, *sequences: int) -> list[str]:
    return [f"read {key} {sequence}" for sequence in sequences]


def test_everything_read_in_order_is_clean() -> None:
    report = check(
        [*written("a", 3), *written("b", 2)], [*read("a", 0, 1), *read("b", 0, 1), "read a 2"]
    )
    assert report.clean
    assert (report.sent_count, report.acked_count, report.read_count) == (5, 5, 5)
    assert str(report).startswith("clean: 5 sent")


def test_a_lost_tail_is_found() -> None:
    report = check(written("a", 3), read("a", 0, 1))
    assert report.findings == [Finding(Kind.LOST, "a", 2)]
    assert "a:2 acked but never read" in str(report)


def test_a_loss_in_the_middle_is_found() -> None:
    assert check(written("a", 3), read("a", 0, 2)).findings == [Finding(Kind.LOST, "a", 1)]


def test_a_whole_key_lost_is_found() -> None:
    assert check(written("a", 2), []).counts == {Kind.LOST: 2}


def test_a_duplicate_is_found() -> None:
    report = check(written("a", 3), read("a", 0, 1, 1, 2))
    assert report.findings == [Finding(Kind.DUPLICATE, "a", 1)]


def test_a_duplicate_of_an_event_without_ack_is_found() -> None:
    report = check(written("a", 2, acked=False), read("a", 0, 1, 0))
    assert report.findings == [Finding(Kind.DUPLICATE, "a", 0)]


def test_a_repeated_block_of_events_is_found() -> None:
    report = check(written("a", 4), read("a", 0, 1, 2, 1, 2, 3))
    assert report.counts == {Kind.DUPLICATE: 2}


def test_disorder_is_found() -> None:
    report = check(written("a", 3), read("a", 0, 2, 1))
    assert report.findings == [Finding(Kind.DISORDER, "a", 1)]


def test_order_between_keys_is_free() -> None:
    writes = [*written("a", 2), *written("b", 2)]
    assert check(writes, [*read("b", 0, 1), *read("a", 0, 1)]).clean


def test_an_unacked_event_may_be_missing_at_the_end() -> None:
    writes = [*written("a", 1), "sent a 1"]
    assert check(writes, read("a", 0)).clean
    assert check(writes, read("a", 0, 1)).clean


def test_an_unacked_event_missing_before_a_later_one_is_a_gap() -> None:
    report = check(written("a", 3, acked=False), read("a", 0, 2))
    assert report.findings == [Finding(Kind.GAP, "a", 1)]


def test_an_event_given_up_may_be_missing_anywhere() -> None:
    writes = ["sent a 0", "sent a 1", "failed a 0", "acked a 1"]
    assert check(writes, read("a", 1)).clean
    assert check(writes, read("a", 0, 1)).clean
    assert check(writes, read("a", 0, 0, 1)).counts == {Kind.DUPLICATE: 1}


def test_an_invented_event_is_found() -> None:
    report = check(written("a", 1), [*read("a", 0, 1), *read("b", 0)])
    assert report.findings == [Finding(Kind.INVENTED, "a", 1), Finding(Kind.INVENTED, "b", 0)]


def test_a_changed_event_is_found() -> None:
    report = check(written("a", 2), ["read a 0", "corrupt a 1"])
    assert report.findings == [Finding(Kind.CORRUPT, "a", 1)]


def test_after_a_rewind_what_was_read_may_come_again() -> None:
    reads = [*read("a", 0, 1, 2), "rewind", *read("a", 1, 2, 3)]
    report = check(written("a", 4), reads)
    assert report.clean
    assert report.rewind_count == 1


def test_a_rewind_does_not_excuse_a_loss_or_a_second_repetition() -> None:
    start = [*read("a", 0, 1, 2), "rewind"]
    assert check(written("a", 5), [*start, *read("a", 4)]).counts == {Kind.LOST: 1}
    assert check(written("a", 4), [*start, *read("a", 1, 1, 2, 3)]).counts == {Kind.DUPLICATE: 1}
    assert check(written("a", 4), [*start, *read("a", 1, 3)]).counts == {Kind.LOST: 1}


def test_a_report_counts_all_and_shows_the_first() -> None:
    report = check(written("a", 100), [])
    assert report.counts == {Kind.LOST: 100}
    assert len(report.findings) == FINDINGS_KEPT_MAX


@pytest.mark.parametrize(
    "writes",
    [
        ["sent a 1"],
        ["acked a 0"],
        ["sent a 0", "acked a 0", "acked a 0"],
        ["sent a 0", "acked a 0", "failed a 0"],
        ["sent a 0", "read a 0"],
        ["sent a"],
        ["sent a zero"],
    ],
)
def test_a_writers_ledger_that_makes_no_sense_is_refused(writes: list[str]) -> None:
    with pytest.raises(LedgerError):
        check(writes, [])


@pytest.mark.parametrize("line", ["sent a 0", "acked a 0", "read a", "nonsense"])
def test_a_readers_ledger_that_makes_no_sense_is_refused(line: str) -> None:
    with pytest.raises(LedgerError):
        check(written("a", 1), [line])


@given(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
)
def test_any_interleaving_of_keys_is_clean_and_any_single_loss_is_found(
    counts: list[int], seed: int
) -> None:
    rng = random.Random(seed)
    writes = [fact for key, count in enumerate(counts) for fact in written(f"k{key}", count)]
    left = {f"k{key}": iter(range(count)) for key, count in enumerate(counts)}
    reads = []
    while left:
        key = rng.choice(sorted(left))
        try:
            reads.append(f"read {key} {next(left[key])}")
        except StopIteration:
            del left[key]
    assert check(writes, reads).clean
    if reads:
        lost = rng.randrange(len(reads))
        report = check(writes, reads[:lost] + reads[lost + 1 :])
        assert report.counts == {Kind.LOST: 1}
        assert f"read {report.findings[0].key} {report.findings[0].sequence}" == reads[lost]
        report = check(writes, [*reads[: lost + 1], *reads[lost:]])
        assert report.counts == {Kind.DUPLICATE: 1}
