"""The clock of labels while the wall clock is set, and records with labels from the future."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pravega_controller.clocks import FOLLOWED_SHARE, ContinuedTime, RecordTimes, SteadyClock

YEAR_MS = 365 * 86_400_000
START_MS = 1_700_000_000_000


class Machine:
    """A wall clock that is set, and the seconds that pass meanwhile."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.ahead_ms = 0
        self.clock = SteadyClock(self.wall_ms, lambda: self.seconds)

    def wall_ms(self) -> int:
        return START_MS + int(1000 * self.seconds) + self.ahead_ms


@given(st.lists(st.tuples(st.floats(0, 100_000), st.integers(-50 * YEAR_MS, 50 * YEAR_MS))))
def test_a_steady_clock_measures_what_passes_whatever_the_wall_clock_is_set_to(
    moves: list[tuple[float, int]],
) -> None:
    machine = Machine()
    last = machine.clock.now_ms()
    assert last == START_MS
    for seconds, ahead_ms in moves:
        machine.seconds += seconds
        machine.ahead_ms = ahead_ms
        now = machine.clock.now_ms()
        passed_ms = 1000 * seconds
        assert abs(now - last - passed_ms) <= FOLLOWED_SHARE * passed_ms + 1
        assert now >= last
        last = now


def test_a_steady_clock_comes_back_to_a_wall_clock_that_stays_set() -> None:
    machine = Machine()
    machine.clock.now_ms()
    for ahead_ms in (3_600_000, 0):
        machine.ahead_ms = ahead_ms
        for _ in range(17 * 60):
            machine.seconds += 60
            machine.clock.now_ms()
        assert abs(machine.clock.now_ms() - machine.wall_ms()) <= 1


def test_a_label_from_the_future_counts_from_the_moment_at_which_it_is_first_seen() -> None:
    times = RecordTimes()
    assert times.now_ms("a", 100, now_ms=1_000) == 1_000
    assert times.now_ms("a", 5_000, now_ms=1_000) == 5_000
    assert times.now_ms("a", 5_000, now_ms=1_500) == 5_500
    assert times.now_ms("a", 5_500, now_ms=1_600) == 5_600
    assert times.now_ms("a", 9_000, now_ms=1_700) == 9_000
    assert times.now_ms("a", 9_000, now_ms=10_000) == 17_300, "it never goes back"
    assert times.now_ms("b", 100, now_ms=1_700) == 1_700


def test_a_gap_in_which_nobody_knew_a_record_counts_up_to_a_maximum() -> None:
    times = RecordTimes(gap_ms_max=100)
    assert times.now_ms("a", 0, now_ms=1_000) == 1_000, "it has no label"
    assert times.now_ms("a", 1_000, now_ms=9_000) == 9_000, "it was known here all the time"
    assert times.now_ms("b", 8_950, now_ms=9_000) == 9_000
    assert times.now_ms("c", 5_000, now_ms=9_000) == 5_100
    assert times.now_ms("c", 5_100, now_ms=9_500) == 5_600


def test_records_from_the_future_take_a_bounded_amount_of_memory() -> None:
    times = RecordTimes(records_max=2)
    for record in "abc":
        times.now_ms(record, 5_000, now_ms=1_000)
    assert times.now_ms("b", 5_000, now_ms=2_000) == 6_000
    assert times.now_ms("a", 5_000, now_ms=2_000) == 5_000, "it counts from now"


@given(
    st.integers(-50 * YEAR_MS, 50 * YEAR_MS),
    st.lists(st.integers(0, YEAR_MS)),
)
def test_a_continued_time_is_bounded_at_its_beginning_and_never_goes_back(
    ahead_ms: int, moves: list[int]
) -> None:
    steady_ms, gap_ms_max = START_MS + ahead_ms, 3_600_000
    time = ContinuedTime(lambda: steady_ms, gap_ms_max=gap_ms_max)
    assert time.now_ms() == steady_ms
    time.go_on_from(START_MS)
    last = time.now_ms()
    assert START_MS <= last <= START_MS + gap_ms_max
    for passed_ms in moves:
        before_ms = abs(steady_ms - last)
        steady_ms += passed_ms
        now = time.now_ms()
        assert abs(now - last - passed_ms) <= FOLLOWED_SHARE * passed_ms + 1
        assert abs(steady_ms - now) <= before_ms
        last = now
