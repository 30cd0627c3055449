"""kill -9 of one of two controllers, of the segment store, of all, under transactions and scales.

The official Java client is given both controllers. Three kills here; ``make kill-two-controllers``
sets KILL_ROUNDS to twenty.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from compat_harness.java import CLIENT_VERSIONS, JavaClient
from compat_harness.server import (
    CONTROLLER,
    SECOND_CONTROLLER,
    SEGMENT_STORE,
    TARGET_VARIABLE,
    Server,
)
from test_kill_nine import PAUSE_SECONDS, check_nothing_left, judge, kill_under_load

pytestmark = pytest.mark.proof

ROUNDS = int(os.environ.get("KILL_ROUNDS", "3"))
VICTIMS = (
    (CONTROLLER,),
    (SEGMENT_STORE,),
    (SECOND_CONTROLLER,),
    (),  # everything, the supervisor included
    (CONTROLLER,),
    (SEGMENT_STORE, SECOND_CONTROLLER),
    (CONTROLLER, SECOND_CONTROLLER),
    (SECOND_CONTROLLER,),
)
TRANSACTIONS_MIN = 10


@pytest.mark.compat
@pytest.mark.timeout(60 + 60 * ROUNDS + 420)
@pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="kills only a server of its own")
def test_transactions_survive_kills_of_two_controllers(tmp_path: Path) -> None:
    """Committed ones are read whole, once and in order, aborted ones never, and none is left."""
    directory = tmp_path / "workload"

    def look_for_what_is_left(server: Server) -> None:
        scope, _, stream = (directory / "stream").read_text().partition("/")
        begun = (directory / "transactions.log").read_text().split()
        assert len(begun) > TRANSACTIONS_MIN
        check_nothing_left(server, scope, stream, begun)

    # Each kind comes before one comes again; in CI both kinds of controller and the store.
    victims = [VICTIMS[number % len(VICTIMS)] for number in range(ROUNDS)]
    kills_with_progress = kill_under_load(
        JavaClient.build(CLIENT_VERSIONS[0]),
        tmp_path,
        victims,
        pause_seconds=PAUSE_SECONDS,
        program="TransactionKillNineWorkload",
        at_the_end=look_for_what_is_left,
        controllers=2,
    )
    judge(directory)
    assert kills_with_progress >= ROUNDS // 2
