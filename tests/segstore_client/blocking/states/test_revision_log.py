"""A log of revisions in a segment of a real store, by programs that block."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from pravega_wire import commands as wire
from pravega_wire.blocking import ConnectionLostError, SegmentConnection
from segstore_client.blocking.states.revision_log import BlockingRevisionLog
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.errors import NotFoundError, UnavailableError
from support.served_stream import run, served_stream


def append_in_turn(address: str) -> None:
    with ControllerClient(address) as controller:
        logs = [BlockingRevisionLog(controller, "s", "t", patience=30.0) for _ in range(2)]
        with closing(logs[0]) as first, closing(logs[1]) as second:
            first.repeat(first.session.read)
            second.repeat(second.session.read)
            for number in range(20):
                assert first.repeat(first.session.append(b"%d" % number))
                if number % 3 == 0:
                    assert not second.repeat(second.session.append(b"behind"))
                assert second.repeat(second.session.read) == (False, [b"%d" % number])


@pytest.mark.proof
async def test_a_revision_whose_answer_is_lost_is_appended_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections break before and after it is stored."""
    random, call = Random(1), SegmentConnection.call
    broken: list[str] = []

    def call_and_break(connection: SegmentConnection, request: wire.Request) -> wire.Reply:
        fate = random.choice(["kept", "before", "after"])
        if not isinstance(request, wire.ConditionalAppend) or fate == "kept":
            return call(connection, request)
        broken.append(fate)
        if fate == "after":
            call(connection, request)
        raise ConnectionLostError("lost")

    monkeypatch.setattr(SegmentConnection, "call", call_and_break)
    async with served_stream(tmp_path, 0) as stream:
        await run(append_in_turn, stream.address)
    assert {"before", "after"} <= set(broken)


def lose(connection: SegmentConnection, request: wire.Request) -> wire.Reply:
    raise ConnectionLostError("lost")


def ask_in_vain(address: str) -> None:
    with ControllerClient(address) as controller:
        log = BlockingRevisionLog(controller, "s", "none", patience=0.2)
        with pytest.raises(NotFoundError):
            log.repeat(log.session.read)
        with closing(BlockingRevisionLog(controller, "s", "t", patience=0.2)) as log:
            log.repeat(log.session.read)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(SegmentConnection, "call", lose)
                with pytest.raises(UnavailableError, match=r"s/t could not be reached for 0\.2 s"):
                    log.repeat(log.session.append(b"one"))


async def test_a_log_that_stays_away_is_told(tmp_path: Path) -> None:
    async with served_stream(tmp_path, 0) as stream:
        await run(ask_in_vain, stream.address)
