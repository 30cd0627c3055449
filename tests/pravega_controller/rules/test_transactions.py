"""The rules of transactions, beside slow and obvious models of them."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_controller.errors import InvalidRequestError
from pravega_controller.rules.history import Epoch, apply_epochs, first_epoch, scaled_epoch
from pravega_controller.rules.streams import Segment, even_ranges
from pravega_controller.rules.transactions import (
    BATCH_TRANSACTIONS_MAX,
    EXECUTION_MS_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    Commit,
    choose_batch,
    execution_ms_left,
    execution_ms_max,
    generalize,
    make_id,
    number_ranges,
    numbers_in,
    rolled_epochs,
    segment_name,
    validate_lease,
)
from pravega_wire import names
from pravega_wire.transaction_ids import halves_of_id, id_of_halves

EPOCHS = st.integers(0, 2**31 - 1)
COUNTERS = st.integers(0, 2**96 - 1)
LEASES = st.integers(LEASE_MS_MIN, LEASE_MS_MAX)


@given(EPOCHS, COUNTERS)
def test_an_id_is_the_uuid_that_clients_make_of_its_halves(epoch: int, counter: int) -> None:
    identifier = make_id(epoch, counter)
    high, low = halves_of_id(identifier)
    assert -(2**63) <= high < 2**63
    assert -(2**63) <= low < 2**63
    assert id_of_halves(high, low) == identifier
    # The text of a name is the two halves in hexadecimal, as the id's UUID without its hyphens.
    assert identifier.hex() == f"{high % 2**64:016x}{low % 2**64:016x}"
    assert uuid.UUID(bytes=identifier).int == epoch << 96 | counter
    assert names.transaction_epoch(identifier) == high >> 32 == epoch


@given(EPOCHS, COUNTERS, st.integers(0, 2**31 - 1))
def test_a_segments_name_can_be_taken_apart_again(epoch: int, counter: int, number: int) -> None:
    identifier = make_id(epoch, counter)
    parsed = names.parse_segment_name(segment_name("s", "a", number, identifier))
    assert (parsed.scope, parsed.stream) == ("s", "a")
    assert (parsed.segment_number, parsed.epoch) == (number, epoch)
    assert parsed.transaction_id == identifier


@pytest.mark.parametrize("epoch", [-1, 2**31])
def test_no_id_has_an_epoch_that_cannot_be(epoch: int) -> None:
    with pytest.raises(InvalidRequestError):
        make_id(epoch, 0)


@given(st.integers(-(2**63), 2**63 - 1))
def test_leases_are_within_their_bounds(lease_ms: int) -> None:
    if 10_000 <= lease_ms <= 600_000:
        validate_lease(lease_ms)
    else:
        with pytest.raises(InvalidRequestError):
            validate_lease(lease_ms)


@given(LEASES, LEASES, st.integers(-(10**15), 10**15))
def test_a_restart_never_shortens_the_lease_and_never_lengthens_the_execution(
    begin_lease_ms: int, lease_ms: int, age_ms: int
) -> None:
    left = execution_ms_left(begin_lease_ms, lease_ms, age_ms=age_ms)
    whole = min(1000 * begin_lease_ms, 24 * 3600 * 1000)
    assert execution_ms_max(begin_lease_ms) == whole <= EXECUTION_MS_MAX
    assert left >= lease_ms
    assert left <= max(whole, lease_ms)
    if 0 <= age_ms <= whole - lease_ms:
        assert left == whole - age_ms


COMMITS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 10_000)),
    max_size=150,
    unique_by=lambda pair: pair[1],
).map(lambda pairs: [Commit(make_id(epoch, order), order) for epoch, order in pairs])


@given(COMMITS, st.none() | st.integers(0, 4))
def test_batches_take_every_commit_once_in_order(
    commits: list[Commit], begun_epoch: int | None
) -> None:
    left = list(commits)
    done: list[Commit] = []
    begun = begun_epoch
    while batch := choose_batch(left, begun_epoch=begun):
        assert len({commit.epoch for commit in batch}) == 1
        assert len(batch) <= BATCH_TRANSACTIONS_MAX
        assert batch == sorted(batch, key=lambda commit: commit.order)
        left = [commit for commit in left if commit not in batch]
        last = batch[-1]
        passed_over = [c for c in left if c.order < last.order and c.epoch <= last.epoch]
        assert not passed_over
        done += batch
        begun = batch[0].epoch
    assert not left
    assert sorted(done, key=lambda c: c.order) == sorted(commits, key=lambda c: c.order)


def test_a_later_commit_does_not_join_the_begun_epoch_past_one_of_a_lower_epoch() -> None:
    """Its client may have waited for the answer to the commit that it would pass."""
    first, lower, later = (Commit(make_id(e, n), n) for n, e in enumerate([1, 0, 1]))
    assert choose_batch([first, lower, later], begun_epoch=1) == [first]
    assert choose_batch([lower, later], begun_epoch=1) == [lower]
    assert choose_batch([later], begun_epoch=0) == [later]


@given(COMMITS, COMMITS, st.none() | st.integers(0, 4))
def test_what_a_crash_left_half_done_is_the_first_part_of_the_next_batch(
    before: list[Commit], later: list[Commit], begun_epoch: int | None
) -> None:
    """Commits that come meanwhile have later places, whatever their epochs."""
    batch = choose_batch(before, begun_epoch=begun_epoch)
    if not batch:
        return
    moved = [Commit(make_id(c.epoch, 20_000 + c.order), 20_000 + c.order) for c in later]
    resumed = choose_batch([*before, *moved], begun_epoch=batch[0].epoch)
    assert resumed[: len(batch)] == batch


# ---- Rolling -------------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> list[Epoch]:
    """Draw epochs of a stream that is split, merged and rolled at random."""
    epochs = [first_epoch(even_ranges(draw(st.integers(1, 4))), first_number=0, created_ms=0)]
    for _ in range(draw(st.integers(0, 6))):
        latest = segments_of(epochs, len(epochs) - 1)
        if draw(st.booleans()):
            sealed = draw(st.sampled_from(latest))
            middle = (sealed.low + sealed.high) / 2
            ranges = [(sealed.low, middle), (middle, sealed.high)]
            epochs.append(
                scaled_epoch(
                    latest, [sealed.segment_id], ranges, number=len(epochs), created_ms=len(epochs)
                )
            )
        else:
            epochs += rolled(epochs, draw(st.integers(0, len(epochs) - 1)))
    return epochs


def segments_of(epochs: list[Epoch], number: int) -> tuple[Segment, ...]:
    return apply_epochs((), epochs[: number + 1])


def rolled(epochs: list[Epoch], taken: int, *, now_ms: int = 0) -> tuple[Epoch, Epoch]:
    active = len(epochs) - 1
    return rolled_epochs(
        segments_of(epochs, taken),
        epochs[taken],
        segments_of(epochs, active),
        epochs[active],
        now_ms=now_ms,
    )


def shape(segments: tuple[Segment, ...]) -> list[tuple[int, float, float]]:
    return [(segment.number, segment.low, segment.high) for segment in segments]


@given(histories(), st.data())
def test_rolling_repeats_the_two_epochs_under_new_ids(
    epochs: list[Epoch], data: st.DataObject
) -> None:
    taken = data.draw(st.integers(0, len(epochs) - 1))
    now_ms = data.draw(st.integers(0, 100))
    active = len(epochs) - 1
    known = {segment.segment_id for epoch in epochs for segment in epoch.created}
    merged, resumed = rolled(epochs, taken, now_ms=now_ms)
    after = [*epochs, merged, resumed]
    assert (merged.number, resumed.number) == (active + 1, active + 2)
    assert merged.reference == epochs[taken].reference
    assert resumed.reference == epochs[active].reference
    assert shape(segments_of(after, active + 1)) == shape(segments_of(epochs, taken))
    assert shape(segments_of(after, active + 2)) == shape(segments_of(epochs, active))
    created = [s.segment_id for s in (*merged.created, *resumed.created)]
    assert len(set(created)) == len(created)
    assert not known & set(created)
    assert epochs[active].created_ms < merged.created_ms < resumed.created_ms
    assert merged.created_ms >= now_ms


@given(st.sets(st.integers(0, 60)))
def test_ranges_of_segment_numbers_are_as_few_as_can_be(numbers: set[int]) -> None:
    ranges = number_ranges(tuple(numbers))
    assert numbers_in(ranges) == sorted(numbers)
    assert len(ranges) == len({number for number in numbers if number - 1 not in numbers})


@given(histories())
def test_an_epochs_segments_have_the_names_of_its_transactions(epochs: list[Epoch]) -> None:
    """All duplicates of an epoch have the same names for the segments of its transactions."""
    for epoch in epochs:
        identifier = make_id(epoch.reference, 7)
        mine = {
            segment_name("s", "a", segment.number, identifier)
            for segment in segments_of(epochs, epoch.number)
        }
        resumed = generalize(segments_of(epochs, epoch.reference), epoch.reference)
        assert mine == {
            names.transaction_segment_name(
                names.segment_name("s", "a", segment.segment_id), identifier
            )
            for segment in resumed
        }
