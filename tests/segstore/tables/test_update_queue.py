"""The order of a table's updates, against what each of them may and may not overtake."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from segstore.tables.update_queue import UpdateQueue
from segstore.tables.updates import Waiting


class Member(Waiting):
    def __init__(self, number: int, keys: Sequence[bytes] | None, *, is_ready: bool) -> None:
        super().__init__()
        self.number = number
        self._keys = keys
        self.is_ready = is_ready

    @property
    def ordered_keys(self) -> Sequence[bytes] | None:
        return self._keys

    def may_overtake(self, other: Member) -> bool:
        if self._keys is None or other._keys is None:
            return False
        return not set(self._keys) & set(other._keys)


keys = st.none() | st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), max_size=3)
actions = st.lists(
    st.tuples(st.just("append"), keys, st.booleans())
    | st.tuples(st.sampled_from(["ready", "discard", "pop"]), st.integers(0, 20), st.booleans())
)


@given(actions)
def test_members_have_their_turns_in_their_order_and_overtake_only_what_they_may(
    made: list[tuple[str, Sequence[bytes] | int | None, bool]],
) -> None:
    queue = UpdateQueue()
    waiting: list[Member] = []
    was_discarded = False

    def may_have_its_turn(member: Member) -> bool:
        before = waiting[: waiting.index(member)]
        held = [other for other in before if other not in released]
        return member.is_ready and all(member.may_overtake(other) for other in held)

    # Those that may have their turns do not have to wait for others that may have theirs.
    released: list[Member] = []

    def release() -> None:
        for member in waiting:
            if member not in released and may_have_its_turn(member):
                released.append(member)

    for number, (action, argument, flag) in enumerate(made):
        if action == "append":
            assert not isinstance(argument, int)
            member = Member(number, argument, is_ready=flag)
            waiting.append(member)
            queue.append(member)
        elif action == "pop":
            first = queue.first
            # Those behind one that was discarded may wait longer than they have to.
            assert was_discarded or (first is None) == (not released)
            if first is not None:
                assert queue.pop() is first
                assert first in released
                ahead = waiting[: waiting.index(first)]
                assert all(first.may_overtake(other) for other in ahead)
                waiting.remove(first)
                released.remove(first)
        elif waiting:
            assert isinstance(argument, int)
            member = waiting[argument % len(waiting)]
            if action == "discard":
                was_discarded = True
                assert queue.discard(member)
                assert not queue.discard(member)
                waiting.remove(member)
                if member in released:
                    released.remove(member)
            else:
                queue.make_ready(member)
        release()
        assert bool(queue) == bool(waiting)
        assert all(member in queue for member in waiting)
    for member in waiting:
        queue.make_ready(member)
    while queue.first is not None:
        first = queue.pop()
        assert isinstance(first, Member)
        assert all(first.may_overtake(other) for other in waiting[: waiting.index(first)])
        waiting.remove(first)
    assert not waiting
    assert not queue


def test_all_that_is_taken_out_may_be_appended_again_in_that_order() -> None:
    queue = UpdateQueue()
    for number, (key, is_ready) in enumerate(
        [(b"a", True), (b"b", False), (b"b", True), (b"a", True)]
    ):
        queue.append(Member(number, [key], is_ready=is_ready))
    numbers = [member.number for member in queue.clear() if isinstance(member, Member)]
    assert numbers == [0, 3, 1, 2]
    assert not queue
    queue.append(Member(4, [b"b"], is_ready=True))
    assert queue.first is not None


def test_one_that_is_discarded_between_two_leaves_them_in_their_order() -> None:
    queue = UpdateQueue()
    members = [Member(number, [b"a"], is_ready=number == 2) for number in range(3)]
    for member in members:
        queue.append(member)
    assert queue.discard(members[1])
    assert queue.first is None
    queue.make_ready(members[0])
    assert [queue.pop(), queue.pop()] == [members[0], members[2]]
    assert not queue
