"""Plans are asked for over the wire, also of servers that have none."""

from __future__ import annotations

from typing import Any

import pytest

from pravega_spark.errors import PlanRefusedError
from pravega_spark.reading.cuts import Slice
from pravega_spark.reading.scan_plans import ScanPlan, ScanPlans, new_lease_id
from pravega_spark.reading.segments import SegmentStores
from pravega_spark.reading.tier_two import TierAddress
from pravega_wire.commands import (
    ChunksHeld,
    HoldChunks,
    PlannedChunk,
    PlanScan,
    ReadSegment,
    Reply,
    ScanPlanned,
    SegmentRead,
    WrongHost,
)


def planned(request: PlanScan, end: int, stored_end: int) -> ScanPlanned:
    name = f"chunk at {request.start_offset}"
    start = request.start_offset
    chunk = PlannedChunk(start, end - start, name, 0, 0, b"", ())
    return ScanPlanned(
        request.request_id, request.segment, end, stored_end, 1, "id", "file:///", "", "", (chunk,)
    )


def test_a_server_that_ends_the_connection_is_read_over_the_wire(server: Any) -> None:
    plans = 0

    def answer(command: object) -> Reply | None:
        nonlocal plans
        if isinstance(command, ReadSegment):
            return SegmentRead(
                command.segment, command.offset, False, False, b"0123", command.request_id
            )
        plans += 1
        return None

    with server(answer) as address, SegmentStores("s", "t", lambda _: address) as stores:
        with pytest.raises(PlanRefusedError, match="does not tell where tier 2 has"):
            ScanPlans(stores).request(0, 0, 4, new_lease_id())
        assert plans == 2, "the connection might have broken for another reason"
        assert list(stores.read_slice(Slice(0, 0, 4))) == [(0, b"0123")]


def test_a_query_asks_again_after_a_passing_failure(server: Any) -> None:
    is_failing = True

    def answer(command: object) -> Reply | None:
        assert isinstance(command, PlanScan)
        return None if is_failing else planned(command, 10, 10)

    with server(answer) as address, SegmentStores("s", "t", lambda _: address) as stores:
        plans = ScanPlans(stores)
        for _ in range(2):
            for _ in range(2):
                with pytest.raises(PlanRefusedError):
                    plans.request(0, 0, 10, new_lease_id())
            assert not plans.are_refused
            is_failing = False
            assert plans.request(0, 0, 10, new_lease_id()) is not None
            is_failing = True
        for _ in range(3):
            with pytest.raises(PlanRefusedError):
                plans.request(0, 0, 10, new_lease_id())
        assert plans.are_refused


def test_a_long_plan_is_asked_for_in_parts(server: Any) -> None:
    def answer(command: object) -> Reply | None:
        assert isinstance(command, PlanScan)
        return planned(command, min(command.start_offset + 10, 25), 25)

    with server(answer) as address, SegmentStores("s", "t", lambda _: address) as stores:
        plan = ScanPlans(stores).request(0, 0, 30, new_lease_id())
    assert plan is not None
    assert plan.end == 25
    assert [chunk.start_offset for chunk in plan.chunks] == [0, 10, 20]


def test_a_segment_that_moves_is_looked_for_again(server: Any) -> None:
    replies = 0
    located: list[int] = []

    def answer(command: object) -> Reply | None:
        nonlocal replies
        assert isinstance(command, PlanScan)
        replies += 1
        if replies == 1:
            return WrongHost(command.request_id, command.segment, "")
        return planned(command, 10, 10)

    with server(answer) as address:

        def locate(segment: int) -> tuple[str, int]:
            located.append(segment)
            return address

        with SegmentStores("s", "t", locate) as stores:
            plan = ScanPlans(stores).request(5, 0, 10, new_lease_id())
    assert plan is not None
    assert located == [5, 5]


def test_many_chunks_are_held_by_several_requests(server: Any) -> None:
    held: list[str] = []

    def answer(command: object) -> Reply | None:
        assert isinstance(command, HoldChunks)
        held.extend(command.chunk_names)
        is_here = "chunk 2400" not in command.chunk_names
        return ChunksHeld(command.request_id, command.segment, 1_000 if is_here else 0)

    chunks = tuple(PlannedChunk(n, 1, f"chunk {n}", 0, 0, b"", ()) for n in range(2_500))
    plan = ScanPlan(TierAddress("", ""), 0, 2_400, chunks[:2_400])
    with server(answer) as address, SegmentStores("s", "t", lambda _: address) as stores:
        assert ScanPlans(stores).hold(0, plan, new_lease_id())
        assert held == [chunk.chunk_name for chunk in plan.chunks]
        longer = ScanPlan(TierAddress("", ""), 0, 2_500, chunks)
        assert not ScanPlans(stores).hold(0, longer, new_lease_id())


def test_a_part_of_a_plan_has_the_chunks_with_its_bytes() -> None:
    chunks = tuple(PlannedChunk(start, 10, "", 0, 0, b"", ()) for start in (0, 10, 20))
    plan = ScanPlan(TierAddress("", ""), 3, 28, chunks)
    part = plan.within(10, 21)
    assert part is not None
    assert (part.start, part.end, part.chunks) == (10, 21, chunks[1:])
    outer = plan.within(0, 100)
    assert outer == plan
    assert plan.within(28, 100) is None
