"""Running rows: clusters take turns, and every run of a row leaves an outcome.

1. One cluster runs at a time, in an empty directory of its own, which is removed after it. The ends
   of its logs are kept until the next run.
2. Within a round each server runs the rows of one set-up on one cluster, then the next server does.
   Which server goes first alternates with the rounds.
3. What goes wrong in a row is its outcome, not an error; the rows after it are still run.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from foreign_servers.peer import PeerFailedError, running

from benchmarks.block_load import BlockLoadFailedError
from benchmarks.cluster.rows import BY_NAME, Row
from benchmarks.cluster.servers import make_cluster
from benchmarks.cluster.sizes import Size
from benchmarks.cluster.works import Session
from benchmarks.comparison import Outcome
from benchmarks.finished_parts import FinishedParts
from benchmarks.load import LoadFailedError
from benchmarks.measured import OURS, Measured
from benchmarks.streams.run import removed
from pravega_wire.errors import ProtocolError

FAILURES = (PeerFailedError, LoadFailedError, BlockLoadFailedError, ProtocolError, OSError)


def run(
    names: Sequence[str],
    size: Size,
    *,
    keys: Sequence[str],
    directory: Path,
    finished: FinishedParts,
) -> Measured[Size]:
    """Run these rows on the servers with these keys, but for set-ups of a round that are
    ``finished``."""
    began = time.monotonic()
    rows = {row.name: row for row in BY_NAME.values() if row.name in names}
    outcomes: dict[tuple[str, str], list[Outcome]] = {}

    def tell(what: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {what}", file=sys.stderr, flush=True)

    def measure(index: int, of_set_up: Sequence[Row]) -> Iterator[tuple[str, str, Outcome]]:
        for key in keys if index % 2 == 0 else reversed(keys):
            chosen = [row for row in of_set_up if row.is_shared or key == OURS]
            place = directory / f"{index + 1}-{of_set_up[0].name}-{key}"
            for name, outcome in _outcomes(chosen, key, size, place):
                shown = {each.name: value for each, value in outcome.numbers.items()}
                tell(f"round {index + 1}: {name} {key}: {outcome.failure or shown}")
                yield name, key, outcome

    for index in range(size.rounds):
        for set_up, group in groupby(rows.values(), key=lambda row: row.set_up.name):
            part = partial(measure, index, list(group))
            for name, key, outcome in finished.outcomes(f"{set_up} {index + 1}", part):
                outcomes.setdefault((name, key), []).append(outcome)
    servers = {key: make_cluster(key, next(iter(rows.values())).set_up) for key in keys}
    return Measured(rows, size, servers, outcomes, time.monotonic() - began)


def _outcomes(
    rows: Sequence[Row], key: str, size: Size, place: Path
) -> Iterable[tuple[str, Outcome]]:
    """Run the rows of one set-up on one cluster, freshly started, and return their outcomes."""
    left = [row.name for row in rows]
    if not left:
        return
    peer = make_cluster(key, rows[0].set_up)
    try:
        peer.prepare()
        with removed(place), running(peer, place) as server:
            session = Session(peer, server, place, size)
            for row in rows:
                left.remove(row.name)
                yield row.name, _outcome(row, session)
    except FAILURES as error:
        yield from ((name, Outcome({}, failure=str(error))) for name in left)


def _outcome(row: Row, session: Session) -> Outcome:
    try:
        return row.measure(session)
    except FAILURES as error:
        return Outcome({}, failure=str(error) or repr(error))
