"""Judges what readers got by what writers sent.

Owns: the rules of a stream that survives everything, over ledgers of plain lines.

Writers' ledger, one fact a line, in the order in which it was known:

    sent KEY SEQUENCE       about to be written; a key's sequence numbers are 0, 1, 2, ...
    acked KEY SEQUENCE      the server said that it is durable
    failed KEY SEQUENCE     the client gave up: its fate is unknown

Readers' ledger, in the order in which events were delivered:

    read KEY SEQUENCE
    corrupt KEY SEQUENCE    delivered, but not with the bytes that were written
    rewind                  from here on the reader may repeat what it had delivered before

Rules:
1. Every acked event is read.
2. No event is read twice, whether acked or not; after a rewind only what was read before may come
   again.
3. Per key, events are read in the order in which they were sent, without gaps: an event may be
   missing in front of a later one of its key only if the client gave it up.
4. Nothing is read that was not sent, and nothing comes with other bytes.

Time is linear in the number of lines and memory is one byte an event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

ACKED = 1
FAILED = 2
READ = 4

FINDINGS_KEPT_MAX = 20


class BrokenPromiseError(AssertionError):
    """Acknowledged events were lost, doubled, changed or read out of order."""

    no_second_try = True
    """``make test`` does not try the test again (``gate.outcomes``)."""


class LedgerError(Exception):
    """A ledger which no workload writes: the harness is wrong, not the server."""


class Kind(Enum):
    """The kinds of errors that the checker finds."""

    LOST = "acked but never read"
    DUPLICATE = "read twice"
    DISORDER = "read after a later event of its key"
    GAP = "not read, although not given up and a later event of its key was read"
    INVENTED = "read but never sent"
    CORRUPT = "read with other bytes than were written"


@dataclass(frozen=True, slots=True)
class Finding:
    """One event for which a rule does not hold."""

    kind: Kind
    key: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.key}:{self.sequence} {self.kind.value}"


@dataclass(slots=True)
class Report:
    """The verdict: ``counts`` of everything wrong and the first few ``findings`` in full."""

    sent_count: int = 0
    acked_count: int = 0
    failed_count: int = 0
    read_count: int = 0
    rewind_count: int = 0
    counts: Counter[Kind] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not self.counts

    def check_promise(self, where: str) -> None:
        """Raise ``BrokenPromiseError`` if anything is wrong with what was read ``where``."""
        if not self.clean:
            raise BrokenPromiseError(f"{where}: {self}")

    def add(self, kind: Kind, key: str, sequence: int) -> None:
        """Note that a rule does not hold for an event."""
        self.counts[kind] += 1
        if len(self.findings) < FINDINGS_KEPT_MAX:
            self.findings.append(Finding(kind, key, sequence))

    def __str__(self) -> str:
        totals = (
            f"{self.sent_count} sent, {self.acked_count} acked, {self.failed_count} failed,"
            f" {self.read_count} read, {self.rewind_count} rewinds"
        )
        if self.clean:
            return f"clean: {totals}"
        wrong = ", ".join(f"{count} {kind.value}" for kind, count in self.counts.items())
        return "\n".join([f"{wrong} ({totals})", *(f"  {each}" for each in self.findings)])


@dataclass(slots=True)
class _Key:
    """The state of one key's events: a byte of flags for each that was sent."""

    flags: bytearray = field(default_factory=bytearray)
    next_read: int = 0


def check(writes: Iterable[str], reads: Iterable[str]) -> Report:
    """Judge the readers' ledger by the writers' ledger.

    Raises ``LedgerError`` if a line is no known fact or the writers contradict themselves.
    """
    report = Report()
    keys = _take_writes(writes, report)
    _take_reads(reads, keys, report)
    for name, key in keys.items():
        for sequence, flags in enumerate(key.flags):
            if flags & ACKED and not flags & READ:
                report.add(Kind.LOST, name, sequence)
    return report


def _take_writes(lines: Iterable[str], report: Report) -> dict[str, _Key]:
    keys: dict[str, _Key] = {}
    for line in lines:
        fact, name, sequence = _parse(line)
        key = keys.setdefault(name, _Key())
        if fact == "sent":
            if sequence != len(key.flags):
                raise LedgerError(f"{name}:{sequence} was sent after {len(key.flags)} events")
            key.flags.append(0)
            report.sent_count += 1
            continue
        if not 0 <= sequence < len(key.flags) or key.flags[sequence]:
            raise LedgerError(f"{line.strip()!r}: it was not sent or was settled before")
        if fact == "acked":
            key.flags[sequence] |= ACKED
            report.acked_count += 1
        elif fact == "failed":
            key.flags[sequence] |= FAILED
            report.failed_count += 1
        else:
            raise LedgerError(f"{line.strip()!r} is no fact of a writer")
    return keys


def _take_reads(lines: Iterable[str], keys: dict[str, _Key], report: Report) -> None:
    rewound: dict[str, int] = {}
    for line in lines:
        if line.strip() == "rewind":
            report.rewind_count += 1
            # Each key may begin again, once, anywhere at or before its next event.
            rewound = {name: key.next_read for name, key in keys.items()}
            continue
        fact, name, sequence = _parse(line)
        if fact not in ("read", "corrupt"):
            raise LedgerError(f"{line.strip()!r} is no fact of a reader")
        report.read_count += 1
        key = keys.get(name)
        if key is None or not 0 <= sequence < len(key.flags):
            report.add(Kind.INVENTED, name, sequence)
            continue
        if fact == "corrupt":
            report.add(Kind.CORRUPT, name, sequence)
        next_before = rewound.pop(name, None)
        if next_before is not None and sequence <= next_before:
            key.next_read = sequence
            for repeated in range(sequence, next_before):
                key.flags[repeated] &= ~READ
        _take_read(name, key, sequence, report)


def _take_read(name: str, key: _Key, sequence: int, report: Report) -> None:
    if key.flags[sequence] & READ:
        report.add(Kind.DUPLICATE, name, sequence)
    elif sequence < key.next_read:
        report.add(Kind.DISORDER, name, sequence)
    for skipped in range(key.next_read, sequence):
        # An acked event that never comes is reported as lost, at the end.
        if not key.flags[skipped] & (READ | FAILED | ACKED):
            report.add(Kind.GAP, name, skipped)
    key.flags[sequence] |= READ
    key.next_read = max(key.next_read, sequence + 1)


def _parse(line: str) -> tuple[str, str, int]:
    try:
        fact, name, sequence = line.split()
        return fact, name, int(sequence)
    except ValueError as error:
        raise LedgerError(f"{line.strip()!r} is no line of a ledger") from error
