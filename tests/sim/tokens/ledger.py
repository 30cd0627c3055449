"""The answers that clients got about their events, compared with the stream at the end.

Owns: ``Ledger``.

Rules:
1. Each event that was written is in the stream once, and those of a key are in their order.
2. The events of a transaction that was committed are in the stream once each, those of another
   nowhere.
3. Nothing else is in the stream, above all nothing of those who have no valid token.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pravega_wire.event_framing import iterate_event_spans


@dataclass
class Ledger:
    """The events that were acknowledged to clients, and the transactions that they committed."""

    counts: Counter[str]
    acknowledged: set[bytes] = field(default_factory=set)
    """The events of event writers."""
    transactions: dict[bytes, list[bytes]] = field(default_factory=dict)
    committed: dict[bytes, bool] = field(default_factory=dict)

    def check(self, segments: list[bytes]) -> None:
        """Compare it with the content of all segments, in the order of their epochs. Raises
        ``AssertionError``."""
        found = [data[start:end] for data in segments for start, end in iterate_event_spans(data)]
        expected = set(self.acknowledged)
        for identifier, events in self.transactions.items():
            if self.committed[identifier]:
                expected.update(events)
        missing, foreign = expected - set(found), set(found) - expected
        assert not missing, f"lost: {sorted(missing)[:5]}"
        assert not foreign, f"nobody was told of: {sorted(foreign)[:5]}"
        assert len(found) == len(set(found)), "an event is there twice"
        self._check_order(found)
        self.counts["event"] += len(self.acknowledged)
        self.counts["committed"] += sum(self.committed.values())
        self.counts["aborted"] += len(self.committed) - sum(self.committed.values())

    def _check_order(self, found: list[bytes]) -> None:
        following: Counter[bytes] = Counter()
        for event in found:
            kind, *key, number = event.split()
            if kind == b"event":
                name = b" ".join(key)
                assert int(number) == following[name], f"{event!r} is out of order"
                following[name] += 1
