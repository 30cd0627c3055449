"""The measurements of a benchmark: each outcome by row and server, and the targets of each row.

1. A shared row runs on ours and on each peer, and its reaches are ratios of the two.
2. A limit is a number that ours has to keep to. A row that is not shared has limits alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from foreign_servers.peer import Peer

from benchmarks.comparison import ComparedRow, Outcome, compare, limited

OURS = "ours"
OTHER_CPU_SHARE_QUIET_MAX = 0.05


class Row(Protocol):
    """A row of the table: its work, and its targets by the names of metrics."""

    @property
    def work(self) -> str:
        """Describe the work in a few words."""

    @property
    def is_shared(self) -> bool:
        """Return whether peers run it, too."""

    @property
    def reaches(self) -> Mapping[str, float]:
        """Return the ratios to reach."""

    @property
    def limits(self) -> Mapping[str, float]:
        """Return the numbers to keep to."""


SizeT = TypeVar("SizeT")


@dataclass(frozen=True, slots=True)
class Measured(Generic[SizeT]):
    """The outcomes of a run.

    ``rows`` are those that were run, by name; ``outcomes`` has one a round.
    """

    rows: Mapping[str, Row]
    size: SizeT
    servers: Mapping[str, Peer]
    outcomes: Mapping[tuple[str, str], Sequence[Outcome]]
    elapsed_seconds: float

    def of(self, row: str, server: str) -> Sequence[Outcome]:
        """Return the outcomes of one server on one row, one a round."""
        return self.outcomes.get((row, server), ())

    def compared(self) -> list[ComparedRow]:
        """Compare ours with every limit and every peer, row by row."""
        found = []
        for name, row in self.rows.items():
            ours = self.of(name, OURS)
            found += limited(name, ours=ours, limits=row.limits)
            if not row.is_shared:
                continue
            for peer in self.peers or [""]:
                found += compare(
                    name, ours=ours, peer=self.of(name, peer), reaches=row.reaches, peer_name=peer
                )
        return found

    @property
    def peers(self) -> list[str]:
        """Return the keys of all servers that are not ours."""
        return [key for key in self.servers if key != OURS]

    def remarks(self) -> list[str]:
        """Return failures and disturbances, by row and server."""
        return list_remarks(self.outcomes)

    @property
    def ours_failed(self) -> bool:
        """Return whether any run of ours failed."""
        return has_failed(self.outcomes, OURS)


def list_remarks(outcomes_of: Mapping[tuple[str, str], Sequence[Outcome]]) -> list[str]:
    """List what failed and what disturbed, by row and server."""
    remarks = []
    for (row, server), outcomes in outcomes_of.items():
        for index, each in enumerate(outcomes, start=1):
            where = f"{row}, {server}, round {index}"
            if each.failure:
                remarks.append(f"{where}: FAILED: {' '.join(each.failure.split())[:300]}")
            remarks += [f"{where}: {remark}" for remark in each.remarks]
            if (each.other_cpu_share or 0) > OTHER_CPU_SHARE_QUIET_MAX:
                remarks.append(f"{where}: others used {each.other_cpu_share:.0%} of the CPUs")
    return remarks


def has_failed(outcomes_of: Mapping[tuple[str, str], Sequence[Outcome]], server: str) -> bool:
    """Return whether any run of a server failed."""
    return any(
        each.failure
        for (_, who), outcomes in outcomes_of.items()
        for each in outcomes
        if who == server
    )
