"""The readings of a process."""

from __future__ import annotations

import os
import time

import pytest
import trio
import trio.testing

from pravega_metrics import process_metrics
from pravega_metrics.process_metrics import (
    CERTIFICATE_END,
    LAG_SECONDS,
    LOOP_LAG,
    measure_loop_lag,
    read_process,
    watch_certificate,
)


async def test_a_late_event_loop_is_measured(
    mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    recorder = LOOP_LAG.of()
    before = dict(recorder.counts())
    nursery.start_soon(measure_loop_lag)
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(LAG_SECONDS + 0.5)
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(LAG_SECONDS)
    await trio.testing.wait_all_tasks_blocked()
    after = dict(recorder.counts())
    lags = [bound for bound, count in after.items() for _ in range(count - before.get(bound, 0))]
    assert len(lags) == 2
    assert lags[0] < 1_000_000
    assert 500_000_000 <= lags[1] <= 500_000_000 * 1.125


def test_readings_are_those_of_this_process() -> None:
    found = {family.metric: family.readings.get(()) for family in read_process()}
    user, system, *_ = os.times()
    assert found[process_metrics.CPU_SECONDS] <= user + system
    assert 10_000_000 < found[process_metrics.RESIDENT_BYTES] < 2**40
    assert 3 <= found[process_metrics.OPEN_FILES] <= found[process_metrics.OPEN_FILES_MAX]
    assert found[process_metrics.START_SECONDS] <= time.time()


def test_the_end_of_the_certificate_is_told_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_metrics, "_certificate_ends", [])

    def told() -> object:
        [family] = [each for each in read_process() if each.metric is CERTIFICATE_END]
        return family.readings

    assert told() == {}
    watch_certificate(lambda: 7.0)
    watch_certificate(lambda: 8.0)
    assert told() == {(): 8.0}
