from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from segstore.network.admission.request_lanes import RequestLanes, Ticket


class Requests:
    """Requests by name, with who has started and who is still running."""

    def __init__(self) -> None:
        self.lanes = RequestLanes()
        self.started: list[str] = []
        self.running: dict[str, Ticket] = {}

    def enter(self, name: str, *segments: str, exclusive: bool = False) -> None:
        def start(ticket: Ticket) -> None:
            self.started.append(name)
            self.running[name] = ticket

        self.lanes.enter(segments, start, exclusive=exclusive)

    def finish(self, name: str) -> None:
        self.lanes.leave(self.running.pop(name))


def test_requests_of_different_segments_run_side_by_side() -> None:
    requests = Requests()
    requests.enter("a", "s", exclusive=True)
    requests.enter("b", "t", exclusive=True)
    assert requests.started == ["a", "b"]


def test_shared_requests_of_a_segment_run_side_by_side() -> None:
    requests = Requests()
    requests.enter("a", "s")
    requests.enter("b", "s")
    assert requests.started == ["a", "b"]
    assert not requests.lanes.is_held_up("s")


def test_an_exclusive_request_waits_for_all_before_it_and_holds_up_all_behind_it() -> None:
    requests = Requests()
    requests.enter("read", "s")
    requests.enter("seal", "s", exclusive=True)
    requests.enter("info", "s")
    assert requests.started == ["read"]
    assert requests.lanes.is_held_up("s")
    assert not requests.lanes.is_held_up("t")
    requests.finish("read")
    assert requests.started == ["read", "seal"]
    requests.finish("seal")
    assert requests.started == ["read", "seal", "info"]
    requests.finish("info")
    assert not requests.lanes.by_segment


def test_a_request_of_several_segments_waits_in_all_their_lanes() -> None:
    requests = Requests()
    requests.enter("s", "s", exclusive=True)
    requests.enter("merge", "t", "s", exclusive=True)
    requests.enter("t", "t")
    assert requests.started == ["s"]
    requests.finish("s")
    assert requests.started == ["s", "merge"]
    requests.finish("merge")
    assert requests.started == ["s", "merge", "t"]


def test_merging_a_segment_into_itself_is_one_lane() -> None:
    requests = Requests()
    requests.enter("merge", "s", "s", exclusive=True)
    requests.finish("merge")
    assert not requests.lanes.by_segment


def test_a_request_that_is_done_at_once_makes_room_at_once() -> None:
    lanes = RequestLanes()
    started: list[int] = []

    def start(ticket: Ticket) -> None:
        started.append(len(started))
        lanes.leave(ticket)

    for _ in range(3):
        lanes.enter(("s",), start, exclusive=True)
    assert started == [0, 1, 2]
    assert not lanes.by_segment


requests_made = st.lists(
    st.tuples(st.sets(st.sampled_from("stu"), min_size=1, max_size=3), st.booleans()), max_size=30
)


@given(requests_made, st.randoms(use_true_random=False))
def test_conflicting_requests_never_overlap_and_all_start_in_order(
    made: list[tuple[set[str], bool]], random: object
) -> None:
    requests = Requests()
    for number, (segments, exclusive) in enumerate(made):
        requests.enter(str(number), *sorted(segments), exclusive=exclusive)

    def conflict(a: int, b: int) -> bool:
        return bool(made[a][0] & made[b][0]) and (made[a][1] or made[b][1])

    while requests.running:
        running = [int(name) for name in requests.running]
        assert not any(conflict(a, b) for a in running for b in running if a < b)
        waiting = set(range(len(made))) - {int(name) for name in requests.started}
        # Nobody waits without somebody earlier in the way, running or waiting.
        for number in waiting:
            earlier = [*running, *(other for other in waiting if other < number)]
            assert any(made[number][0] & made[other][0] for other in earlier)
        requests.finish(str(random.choice(running)))  # type: ignore[attr-defined]
    assert len(requests.started) == len(made)
    order = {int(name): position for position, name in enumerate(requests.started)}
    for a in range(len(made)):
        for b in range(a + 1, len(made)):
            assert not conflict(a, b) or order[a] < order[b]
    assert not requests.lanes.by_segment
