"""States of reader groups, beside what the official library makes of the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_wire.errors import RemoteProtocolError
from pravega_wire.names import segment_id
from pravega_wire.reader_groups.states import (
    GroupSettings,
    GroupState,
    encode_begun,
    encode_updating,
)

GOLDEN = json.loads(
    (Path(__file__).parents[3] / "compat-tests" / "golden" / "records.json").read_text("ascii")
)["group_revisions"]
REVISIONS = [bytes.fromhex(each["bytes"]) for each in GOLDEN]
WHOLE = [number for number, each in enumerate(REVISIONS) if each[3] == 1]
FIRST, SECOND = (f"scope/stream/{number}.#epoch.0" for number in range(2))


def shown(state: GroupState) -> dict[str, Any]:
    return {
        "readers": state.readers,
        "positions": state.positions(),
        "unassigned": len(state.unassigned),
        "ends": state.ends,
        "generation": state.generation,
        "updating": state.is_updating,
    }


@pytest.mark.parametrize("first", WHOLE)
def test_a_state_is_what_the_official_library_says(first: int) -> None:
    """From the first revision on, and from each whole state on."""
    state = GroupState()
    for case, revision in zip(GOLDEN[first:], REVISIONS[first:], strict=True):
        state.add(revision)
        assert shown(state) == {name: case[name] for name in case if name != "bytes"}
    # They are about all that tells of readers.
    assert len(WHOLE) == 5
    assert max(len(each["readers"]) for each in GOLDEN) == 2


def test_the_last_told_positions_are_known_beside_those_to_resume_at() -> None:
    state = GroupState()
    seen = []
    for revision in REVISIONS:
        state.add(revision)
        seen.append((state.positions().get(FIRST), state.read_to.get(FIRST)))
    # A reader told 30; its checkpoint was at 40; a silent one moves nothing of the other's.
    assert (0, 30) in seen
    assert (40, 40) in seen
    assert seen.index((0, 30)) < seen.index((40, 40))
    # A whole state that a client wrote after the silent checkpoint does not have its position.
    assert state.read_to == {FIRST: 20_000, SECOND: -1}


def test_a_silent_checkpoint_tells_where_a_reader_is() -> None:
    (number,) = (n for n, each in enumerate(REVISIONS) if b"x_SILENT_" in each and each[3] == 2)
    state = GroupState()
    for revision in REVISIONS[: number + 1]:
        state.add(revision)
    assert state.assigned["b"] == {SECOND: 7}
    assert state.read_to[SECOND] == 50


def test_revisions_are_written_as_the_official_library_writes_them() -> None:
    assert encode_updating() == REVISIONS[-2]
    cut = {0: 20_000, 1: -1}
    settings = GroupSettings(
        starts={"scope/stream": cut},
        ends={"scope/stream": {segment_id(2, 1): 77}},
        checkpoint_ms=-1,
        refresh_ms=1_234,
        outstanding_max=7,
        retention=2,
        generation=4,
        identifier=bytes(7) + b"\x01" + bytes(7) + b"\x02",
    )
    assert encode_begun(settings, {"scope/stream": cut}) == REVISIONS[-1]


@given(st.data())
def test_damaged_bytes_are_refused_or_mean_something(data: st.DataObject) -> None:
    """Whatever the bytes are, no other error is raised."""
    written = bytearray(data.draw(st.sampled_from(REVISIONS)))
    written[data.draw(st.integers(0, len(written) - 1))] = data.draw(st.integers(0, 255))
    state = GroupState()
    try:
        state.add(bytes(written[: data.draw(st.integers(0, len(written)))]))
    except RemoteProtocolError:
        assert state.readers == [] or written[3] == 2


@pytest.mark.parametrize("revision", [b"", b"\0\0\0\3", b"\0\0\0\1", b"\0\0\0\2\0\0\0\2\1\2"])
def test_what_is_no_revision_is_refused(revision: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        GroupState().add(revision)
