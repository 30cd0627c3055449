"""Orders the updates of one table.

Owns: ``UpdateQueue``. A member is *ready* when it may be appended. It is *held* while an earlier
held member has one of its keys, and while the entries of its own keys are being read.

Invariants:
1. Updates that share a key run in the order in which they came, and an update without keys neither
   overtakes nor is overtaken. Held by
   ``test_members_have_their_turns_in_their_order_and_overtake_only_what_they_may``.
2. While an update waits for a read of tier 2, updates of other keys overtake it. Held by
   ``test_updates_of_other_keys_overtake_one_that_waits_for_its_key``.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from segstore.tables.updates import Waiting


class UpdateQueue:
    """The queue of one table's updates. A member is in the queue from ``append`` until ``pop``,
    ``discard`` or ``clear``."""

    def __init__(self) -> None:
        self._ready: OrderedDict[Waiting, None] = OrderedDict()
        self._held: dict[Waiting, int] = {}
        self._discarded: set[Waiting] = set()
        self._followers: dict[Waiting, list[Waiting]] = {}
        self._last: dict[bytes, Waiting] = {}
        self._last_for_all: Waiting | None = None

    def __bool__(self) -> bool:
        return bool(self._ready or self._held)

    def __contains__(self, member: Waiting) -> bool:
        return member in self._ready or (member in self._held and member not in self._discarded)

    @property
    def first(self) -> Waiting | None:
        """Return the first ready update; None if no update is ready."""
        return next(iter(self._ready), None)

    def append(self, member: Waiting) -> None:
        """Add a member at the end of the queue. It is held if it may not overtake a held member."""
        before = self._those_before(member) if self._held else ()
        if member.is_ready and not before:
            self._ready[member] = None
            return
        self._held[member] = len(before) + (not member.is_ready)
        for each in before:
            self._followers.setdefault(each, []).append(member)
        if member.ordered_keys is None:
            self._last_for_all = member
        else:
            self._last.update(dict.fromkeys(member.ordered_keys, member))

    def _those_before(self, member: Waiting) -> set[Waiting]:
        """Return the held members that ``member`` may not overtake."""
        if member.ordered_keys is None:
            return set(self._held)
        before = {self._last[key] for key in member.ordered_keys if key in self._last}
        if self._last_for_all is not None:
            before.add(self._last_for_all)
        return before

    def make_ready(self, member: Waiting) -> None:
        """Record that the entries of a member's keys are in memory now."""
        if not member.is_ready:
            member.is_ready = True
            if member in self:
                self._release([member])

    def pop(self) -> Waiting:
        """Remove and return the first ready update."""
        return self._ready.popitem(last=False)[0]

    def discard(self, member: Waiting) -> bool:
        """Remove a member from the queue. Return whether it was in the queue."""
        if member not in self:
            return False
        if member in self._ready:
            del self._ready[member]
            return True
        # Members after this one must still not overtake the ones before it.
        self._discarded.add(member)
        if not member.is_ready:
            self._release([member])
        return True

    def clear(self) -> list[Waiting]:
        """Remove all members; return them in an order in which they may be appended again."""
        members = [*self._ready, *(each for each in self._held if each in self)]
        self._ready.clear()
        self._held.clear()
        self._discarded.clear()
        self._followers.clear()
        self._last.clear()
        self._last_for_all = None
        return members

    def wake(self) -> None:
        """Wake the tasks that wait for ready members, so that one of them makes room in the
        tail."""
        for member in self._ready:
            member.wake()

    def _release(self, members: list[Waiting]) -> None:
        """Count down the things that each of these members waits for. A member that waits
        for nothing more becomes ready, and its followers wait for one thing less."""
        released = deque(members)
        while released:
            member = released.popleft()
            self._held[member] -= 1
            if self._held[member]:
                continue
            self._remove(member)
            if member in self._discarded:
                self._discarded.remove(member)
            else:
                self._ready[member] = None
            released += self._followers.pop(member, ())

    def _remove(self, member: Waiting) -> None:
        del self._held[member]
        if self._last_for_all is member:
            self._last_for_all = None
        for key in member.ordered_keys or ():
            if self._last.get(key) is member:
                del self._last[key]
