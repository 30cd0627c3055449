"""Tests of looks: how often, for how long, and what rates follow from them."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from pravega_controller.console.looks import (
    BREAK_SECONDS,
    LOOK_SECONDS,
    RATE_SECONDS,
    SUBJECTS_MAX,
    Look,
    Looks,
    Track,
    rate,
    trend,
)


class Counter:
    """Counts the looks at it."""

    def __init__(self) -> None:
        self.count = 0

    async def take(self) -> int:
        self.count += 1
        await trio.sleep(0.1)
        return self.count

    def track(self) -> Track[int]:
        return Track(self.take, lambda looks: (float(looks[-1].seen),))


async def test_many_who_ask_share_a_look(autojump_clock: MockClock) -> None:
    counter = Counter()
    track = counter.track()
    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(track.look)
    assert counter.count == 1
    await trio.sleep(LOOK_SECONDS / 2)
    await track.look()
    assert counter.count == 1
    await trio.sleep(LOOK_SECONDS)
    assert [each.seen for each in await track.look()] == [1, 2]
    assert [numbers for _, numbers in track.points] == [(1.0,), (2.0,)]


async def test_what_takes_long_is_looked_at_less(autojump_clock: MockClock) -> None:
    counter = Counter()

    async def take() -> int:
        await trio.sleep(0.4)
        return await counter.take()

    track = Track(take, lambda looks: ())
    await track.look()
    await trio.sleep(4.9)
    assert [each.seen for each in await track.look()] == [1]
    await trio.sleep(0.2)
    assert [each.seen for each in await track.look()] == [1, 2]
    looks = Looks()
    assert looks.track("subject", take, lambda _: ()) is looks.track("subject", take, lambda _: ())
    first = looks.track("subject", take, lambda _: ())
    looks.forget("subject")
    assert looks.track("subject", take, lambda _: ()) is not first


async def test_old_looks_do_not_count_for_rates(autojump_clock: MockClock) -> None:
    track = Counter().track()
    await track.look()
    await trio.sleep(BREAK_SECONDS)
    assert [each.seen for each in await track.look()] == [2]
    # One from before the time of rates is kept, so that looks at a slow store have rates.
    for _ in range(2):
        await trio.sleep(RATE_SECONDS + 1)
        await track.look()
    await trio.sleep(RATE_SECONDS / 2)
    assert [each.seen for each in await track.look()] == [3, 4, 5]


async def test_what_has_no_rates_keeps_its_last_look(autojump_clock: MockClock) -> None:
    track = Track(Counter().take)
    await track.look()
    await trio.sleep(LOOK_SECONDS)
    assert [each.seen for each in await track.look()] == [2]
    assert not track.points


async def test_a_look_that_is_given_up_is_taken_by_the_next(autojump_clock: MockClock) -> None:
    counter = Counter()
    track = counter.track()
    with trio.move_on_after(0.01):
        await track.look()
    assert [each.seen for each in await track.look()] == [2]


async def test_subjects_that_nobody_asks_for_are_forgotten() -> None:
    looks = Looks()
    counter = Counter()

    def track(subject: object) -> Track[int]:
        return looks.track(subject, counter.take, lambda _: ())

    first, second = track("first"), track("second")
    for number in range(SUBJECTS_MAX - 1):
        track(number)
        assert track("first") is first
    assert track("second") is not second


def test_a_counter_that_begins_again_has_no_rate() -> None:
    def of(*values: float | None) -> float | None:
        return rate([Look(2.0 * number, each) for number, each in enumerate(values)], lambda v: v)

    assert of(10, 20, 50) == 10.0
    assert of(10, 10) == 0.0
    assert of(10) is None
    assert of(50, 20) is None
    assert of(None, 20) is None


def test_what_becomes_less_has_a_trend() -> None:
    looks = [Look(2.0 * number, each) for number, each in enumerate((50.0, 20.0))]
    assert trend(looks, lambda seen: seen) == -15.0
    assert trend(looks[:1], lambda seen: seen) is None


def test_two_looks_one_after_the_other_have_no_rate() -> None:
    looks = [Look(0.0, 0.0), Look(0.01, 100.0)]
    assert rate(looks, lambda seen: seen) is None
    assert rate([looks[0], Look(LOOK_SECONDS, 100.0)], lambda seen: seen) == 100 / LOOK_SECONDS
