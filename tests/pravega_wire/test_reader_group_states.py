"""States of reader groups, beside what the official library makes of the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_wire.errors import RemoteProtocolError
from pravega_wire.reader_group_states import OnlineReaders

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "compat-tests" / "golden" / "records.json").read_text("ascii")
)["group_revisions"]
REVISIONS = [bytes.fromhex(each["bytes"]) for each in GOLDEN]


def test_readers_come_and_go_as_the_official_library_says() -> None:
    online = OnlineReaders()
    for case, revision in zip(GOLDEN, REVISIONS, strict=True):
        online.add(revision)
        assert online.names == case["readers"]
    # They are about all that tells of readers.
    assert max(len(each["readers"]) for each in GOLDEN) == 2


@pytest.mark.parametrize("first", [4, 8])
def test_a_compaction_has_all_readers(first: int) -> None:
    online = OnlineReaders()
    for case, revision in zip(GOLDEN[first:], REVISIONS[first:], strict=True):
        online.add(revision)
        assert online.names == case["readers"]


@given(st.data())
def test_damaged_bytes_are_refused_or_mean_something(data: st.DataObject) -> None:
    """Whatever the bytes are, no other error is raised."""
    written = bytearray(data.draw(st.sampled_from(REVISIONS)))
    written[data.draw(st.integers(0, len(written) - 1))] = data.draw(st.integers(0, 255))
    online = OnlineReaders()
    try:
        online.add(bytes(written[: data.draw(st.integers(0, len(written)))]))
    except RemoteProtocolError:
        assert online.names == [] or written[3] == 2


@pytest.mark.parametrize("revision", [b"", b"\0\0\0\3", b"\0\0\0\1", b"\0\0\0\2\0\0\0\2\1\2"])
def test_what_is_no_revision_is_refused(revision: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        OnlineReaders().add(revision)
