"""States of reader groups, beside what the official library makes of the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_wire.errors import RemoteProtocolError
from pravega_wire.names import segment_id
from pravega_wire.reader_groups.changes import (
    Change,
    CheckpointReached,
    CheckpointsCleared,
    PositionTold,
    ReaderAdded,
    ReaderRemoved,
    SegmentAcquired,
    SegmentCompleted,
    SegmentReleased,
    UpdateBegun,
    begin_group,
    decode_revision,
    encode_changes,
    encode_state,
)
from pravega_wire.reader_groups.settings import GroupSettings
from pravega_wire.reader_groups.states import GroupState

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


def encode(revision: bytes) -> bytes:
    """Decode a revision and encode it again."""
    changes = [each for each in decode_revision(revision) if isinstance(each, Change)]
    if revision[3] == 1:
        (state,) = changes
        return encode_state(state)  # type: ignore[arg-type]
    return encode_changes(changes)


@pytest.mark.parametrize("revision", REVISIONS)
def test_revisions_are_written_as_the_official_library_writes_them(revision: bytes) -> None:
    written = encode(revision)
    # The library appends the unused part of its buffer to some.
    assert revision[: len(written)] == written
    assert not any(revision[len(written) :])


def test_a_group_begins_as_the_official_library_begins_it() -> None:
    assert encode_changes([UpdateBegun()]) == REVISIONS[-2]
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
    assert encode_changes([begin_group(settings, {"scope/stream": cut})]) == REVISIONS[-1]
    assert GroupSettings.decode(settings.encode()) == settings


@pytest.mark.parametrize("number", range(len(REVISIONS)))
def test_a_compacted_state_goes_on_alike(number: int) -> None:
    whole, compacted = GroupState(), GroupState()
    for revision in REVISIONS[: number + 1]:
        whole.add(revision)
    compacted.add(encode_state(whole.compact()))
    for revision in REVISIONS[number + 1 :]:
        assert compacted.compact() == whole.compact()
        whole.add(revision)
        compacted.add(revision)
    assert compacted == whole


def test_changes_that_do_not_fit_change_nothing() -> None:
    state = GroupState()
    for revision in REVISIONS[:3]:
        state.add(revision)
    before = state.compact()
    state.apply(
        [
            ReaderAdded("a"),
            ReaderRemoved("unknown", {FIRST: 1}),
            SegmentAcquired("unknown", FIRST),
            SegmentAcquired("a", "unknown/segment/0.#epoch.0"),
            SegmentReleased("a", SECOND, 5),
            SegmentReleased("unknown", FIRST, 5),
            SegmentCompleted("a", SECOND, {}),
            PositionTold("unknown", 5, {"unknown/segment/0.#epoch.0": 5}),
            CheckpointReached("unknown", "unknown", {FIRST: 5}),
            CheckpointsCleared("unknown"),
        ]
    )
    assert state.compact() == before


def test_changes_of_a_later_version_are_skipped_and_known() -> None:
    state = GroupState()
    state.add(REVISIONS[0])
    assert state.is_understood
    state.add(b"\0\0\0\2\0\0\0\3\0\x63\1")
    assert not state.is_understood
    state.add(REVISIONS[0])
    assert state.is_understood


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


def test_a_damaged_configuration_is_refused() -> None:
    change = begin_group(GroupSettings({"s/t": {}}, {}), {"s/t": {0: 0}})
    for damaged in (b"", change.configuration[:-1], b"\1" + change.configuration[1:]):
        with pytest.raises(RemoteProtocolError):
            GroupState().add(encode_state(replace(change, configuration=damaged)))


@pytest.mark.parametrize("revision", [b"", b"\0\0\0\3", b"\0\0\0\1", b"\0\0\0\2\0\0\0\2\1\2"])
def test_what_is_no_revision_is_refused(revision: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        GroupState().add(revision)
