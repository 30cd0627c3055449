"""The timer of leases: nothing ends early, whatever the order of begins, pings and ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from pravega_controller.transactions.leases import LEFT_OVER_MAX, ROUND_SECONDS_MIN, LeaseTimer


@dataclass(eq=False)
class Lease:
    lease_end: float
    is_running: bool = True


STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "ping", "end"]), st.floats(0, 5), st.floats(0.1, 20)),
    max_size=40,
)


@given(STEPS)
def test_a_lease_ends_at_its_end_and_no_earlier(steps: list[tuple[str, float, float]]) -> None:
    async def run() -> None:
        ended: dict[Lease, float] = {}

        def expire(leases: Sequence[Lease]) -> None:
            for lease in leases:
                assert lease.is_running
                assert lease not in ended
                ended[lease] = trio.current_time()
                lease.is_running = False

        timer: LeaseTimer[Lease] = LeaseTimer()
        leases: list[Lease] = []
        stopped: set[Lease] = set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timer.run, expire)
            for action, pause, seconds in steps:
                await trio.sleep(pause)
                end = trio.current_time() + seconds
                running = [lease for lease in leases if lease.is_running]
                if action == "begin" or not running:
                    leases.append(Lease(end))
                    timer.add(leases[-1])
                elif action == "ping":
                    is_earlier = end < running[0].lease_end
                    running[0].lease_end = end
                    if is_earlier:
                        timer.add(running[0])
                else:
                    running[-1].is_running = False
                    stopped.add(running[-1])
                    timer.count_early_end()
            await trio.sleep(100)
            nursery.cancel_scope.cancel()
        for lease in leases:
            assert (lease in stopped) != (lease in ended)
            if lease in ended:
                assert lease.lease_end <= ended[lease] <= lease.lease_end + 2 * ROUND_SECONDS_MIN

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_leases_that_ended_early_take_no_room() -> None:
    timer: LeaseTimer[Lease] = LeaseTimer()
    kept = [Lease(trio.current_time() + 1000) for _ in range(10)]
    for lease in kept:
        timer.add(lease)
    for _ in range(20_000):
        lease = Lease(trio.current_time() + 600)
        timer.add(lease)
        lease.is_running = False
        timer.count_early_end()
        assert len(timer._ends) <= LEFT_OVER_MAX + len(kept) + 1
