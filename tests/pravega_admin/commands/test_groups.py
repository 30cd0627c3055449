"""The verbs for reader groups against a running store, with states as the official clients write
them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from pravega_admin.verbs import app
from pravega_wire import commands as wire
from pravega_wire import controller_pb2 as pb
from pravega_wire.hashing import REVISION_MARK
from pravega_wire.names import mark_stream, reader_group_stream, segment_name
from pravega_wire.reader_groups.changes import UpdateBegun, encode_changes
from pravega_wire.sessions import segment_log
from pravega_wire.sessions.segment_log import LogSession, Steps
from pravega_wire.stream_cut_text import encode_cut_text
from pravega_wire.watermarks import SegmentWithRange, Watermark, encode_watermark
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.controller.stream_settings import StreamSettings
from segstore_client.cuts import group_seek
from segstore_client.cuts.group_lag import find_lags
from segstore_client.cuts.group_seek import seek_group
from segstore_client.cuts.group_state import find_state, open_state
from segstore_client.cuts.segment_log import SegmentLog
from support.group_revisions import ID, acquires, begins, comes, name_segment, tells

if TYPE_CHECKING:
    from ..conftest import Standalone

Command = Callable[..., Any]
NUMBERS = itertools.count()
EVENT = b"x" * 92
"""With its header an event has 100 bytes."""


@pytest.fixture
def client(store: Standalone) -> Iterator[ControllerClient]:
    with ControllerClient(store.controller) as client:
        yield client


@pytest.fixture
def command(store: Standalone) -> Command:
    """Runs a command; returns its JSON, or its sentence on stderr if it shall fail."""

    def run(*arguments: str, code: int = 0) -> Any:
        environment = {"SEGSTORE_CONTROLLER": store.controller, "SEGSTORE_OUTPUT": "json"}
        result = CliRunner().invoke(app, list(arguments), env=environment)
        assert result.exit_code == code, result.output
        return json.loads(result.stdout) if code == 0 else result.stderr

    return run


@pytest.fixture
def scope(client: ControllerClient) -> str:
    name = f"group-scope{next(NUMBERS)}"
    client.create_scope(name)
    return name


def append(log: SegmentLog, *revisions: bytes) -> None:
    for each in revisions:
        log.read()
        assert log.append(each)


class Group:
    """A group of a stream with two segments of 1,000 bytes, whose reader has the first one."""

    def __init__(self, client: ControllerClient, scope: str) -> None:
        self.client, self.scope = client, scope
        self.stream, self.name = f"{scope}/stream", f"{scope}/group"
        settings = StreamSettings()
        client.create_stream(scope, "stream", settings)
        client.scale_stream(
            scope, "stream", sealed=[0], ranges=[(0.0, 0.5), (0.5, 1.0)], timeout=60.0
        )
        self.segments = [
            item.segment_id for item in client.current_segments(scope, "stream").ranges
        ]
        for segment in self.segments:
            self.fill(segment, 10)
        configuration = pb.ReaderGroupConfiguration(
            scope=scope,
            readerGroupName="group",
            readerGroupId=str(ID),
            groupRefreshTimeMillis=3000,
            automaticCheckpointIntervalMillis=-1,
            maxOutstandingCheckpointRequest=3,
            startingStreamCuts=[pb.StreamCut(streamInfo=info(scope, "stream"))],
            endingStreamCuts=[pb.StreamCut(streamInfo=info(scope, "stream"))],
        )
        client._call("createReaderGroup", configuration, pb.CreateReaderGroupResponse, scope)

    def begin(self) -> None:
        """Let an official client begin the group."""
        with self.open() as log:
            append(
                log,
                begins(self.stream, segments=self.segments),
                comes("one"),
                acquires("one", self.segment(0)),
            )

    def open(self) -> SegmentLog:
        return open_state(self.client, self.scope, "group", purpose=Purpose.READ_WRITE)

    def segment(self, number: int) -> str:
        return name_segment(self.stream, self.segments[number])

    def fill(self, segment: int, count: int) -> None:
        address = self.client.segment_address(self.scope, "stream", segment)
        access = self.client.store_access(self.scope, "stream", Purpose.WRITE)
        name = name_segment(self.stream, segment)
        with access.connect(*address, timeout=60.0) as connection:
            writer = bytes(16)
            setup = connection.call(wire.SetupAppend(1, writer, name, ""))
            assert isinstance(setup, wire.AppendSetup)
            info = connection.call(wire.GetStreamSegmentInfo(2, name, ""))
            assert isinstance(info, wire.StreamSegmentInfo)
            offset = info.write_offset
            first = max(0, setup.last_event_number) + 1
            for number in range(count):
                reply = connection.call(
                    wire.ConditionalAppend(writer, first + number, offset, EVENT, 3 + number)
                )
                assert isinstance(reply, wire.DataAppended), reply
                offset += 100


def info(scope: str, stream: str) -> pb.StreamInfo:
    return pb.StreamInfo(scope=scope, stream=stream)


@pytest.fixture
def group(client: ControllerClient, scope: str) -> Group:
    return Group(client, scope)


def test_a_group_that_no_client_has_begun_is_told(command: Command, group: Group) -> None:
    assert "no client has begun" in command("group", "show", group.name, code=6)
    assert "no client has begun" in command("group", "lag", group.name, code=6)
    assert command("group", "lag", group.scope) == []
    for verb in ("show", "lag"):
        said = command("group", verb, f"{group.name}x", code=3)
        assert said == f"segstore: reader group {group.name}x does not exist\n"


def test_groups_of_all_scopes_are_listed(command: Command, group: Group) -> None:
    row = {"scope": group.scope, "group": "group"}
    assert command("group", "list", group.scope) == [row]
    assert row in command("group", "list")


def test_positions_and_lag_are_shown_by_segment(command: Command, group: Group) -> None:
    group.begin()
    with group.open() as log:
        append(log, tells("one", group.segment(0), 300), comes("two"))
    shown = command("group", "show", group.name)
    rows = shown.pop("segments")
    assert shown == {
        "scope": group.scope,
        "group": "group",
        "generation": 0,
        "updating": False,
        "readers": ["one", "two"],
        "readers_without_segment": ["two"],
        "lag_bytes": 1700,
        "lag_seconds": None,
    }
    common = {"stream": group.stream, "resumes_at": 0, "end": 1000, "lag_seconds": None}
    first, second = group.segments
    assert rows == [
        {**common, "reader": "one", "segment": first, "position": 300, "lag_bytes": 700},
        {**common, "reader": None, "segment": second, "position": 0, "lag_bytes": 1000},
    ]
    (row,) = command("group", "lag", group.name)
    assert (row["readers"], row["segments"], row["lag_bytes"]) == (1, 2, 1700)


def test_segments_behind_those_that_are_read_count(command: Command, group: Group) -> None:
    group.begin()
    group.client.scale_stream(
        group.scope, "stream", sealed=group.segments, ranges=[(0.0, 1.0)], timeout=60.0
    )
    (last,) = group.client.current_segments(group.scope, "stream").ranges
    group.fill(last.segment_id, 3)
    rows = command("group", "show", group.name)["segments"]
    assert [row["lag_bytes"] for row in rows] == [1000, 1000, 300]
    assert rows[-1]["reader"] is None


def test_bytes_that_are_truncated_are_no_lag(group: Group) -> None:
    group.begin()
    group.client.truncate_stream(
        group.scope, "stream", dict(zip(group.segments, (400, 1000), strict=True))
    )
    lags = find_lags(group.client, find_state(group.client, group.scope, "group"))
    assert [each.unread for each in lags] == [600, 0]


def test_the_lag_in_time_is_by_the_times_of_writers(command: Command, group: Group) -> None:
    group.begin()
    with SegmentLog(
        group.client, group.scope, mark_stream("stream"), purpose=Purpose.READ_WRITE
    ) as log:
        for number in range(1, 5):
            cut = {SegmentWithRange(segment, 0.0, 1.0): 200 * number for segment in group.segments}
            append(log, encode_watermark(Watermark(number * 60_000, number * 60_000 + 7, cut)))
    with group.open() as log:
        append(
            log,
            tells("one", group.segment(0), 500),
            acquires("one", group.segment(1)),
            tells("one", group.segment(1), 1000),
        )
    rows = command("group", "show", group.name)["segments"]
    assert [row["lag_seconds"] for row in rows] == [120.0, 0.0]
    (row,) = command("group", "lag", group.name)
    assert row["lag_seconds"] == 120.0
    # A time is a cut.
    rows = command("group", "seek", group.name, "--to", "1970-01-01T00:02:30Z", "--dry-run")
    assert [row["offset"] for row in rows] == [400, 400]
    rows = command("group", "seek", group.name, "--to", "5", "--dry-run")
    assert [(row["segment"], row["offset"]) for row in rows] == [(0, 0)]


@pytest.mark.parametrize("place", ["cut", "official"])
def test_a_group_is_moved_to_a_cut(command: Command, group: Group, place: str) -> None:
    group.begin()
    cut = dict(zip(group.segments, (300, 700), strict=True))
    text = ",".join(f"{segment}:{offset}" for segment, offset in cut.items())
    text = text if place == "cut" else encode_cut_text(group.stream, cut)
    found = command("group", "seek", group.name, "--to", text)
    assert found["generation"] == 1
    state = find_state(group.client, group.scope, "group")
    assert state.readers == []
    assert not state.is_updating
    assert list(state.positions().values()) == [300, 700]
    settings = group.client.group_settings(group.scope, "group")
    assert dict(settings.startingStreamCuts[0].cut) == cut
    assert (settings.generation, settings.automaticCheckpointIntervalMillis) == (1, -1)


def test_a_group_is_moved_to_an_end(command: Command, group: Group) -> None:
    group.begin()
    command("group", "seek", group.name, "--to", "tail")
    (row,) = command("group", "lag", group.name)
    assert (row["lag_bytes"], row["lag_seconds"]) == (0, 0.0)
    command("group", "seek", group.name, "--to", "head")
    assert list(find_state(group.client, group.scope, "group").positions()) == [
        f"{group.stream}/0.#epoch.0"
    ]
    group.client.seal_stream(group.scope, "stream")
    assert "is sealed" in command("group", "seek", group.name, "--to", "tail", code=6)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--to", "0:700"], "this is no stream cut of"),
        (["--to", "yesterday"], "--to is head, tail, a time"),
        (["--to", "2026-13-01"], "--to is a time such as"),
        (["--to", "-15m"], "has no watermarks"),
        (["--to", "head", "--stream", "other/stream"], "does not read other/stream"),
        (["--to", encode_cut_text("other/stream", {0: 1})], "does not read other/stream"),
    ],
    ids=str,
)
def test_a_place_that_the_group_cannot_have_is_refused(
    command: Command, group: Group, arguments: list[str], sentence: str
) -> None:
    group.begin()
    assert sentence in command("group", "seek", group.name, *arguments, code=2)
    state = find_state(group.client, group.scope, "group")
    assert state.readers == ["one"]
    assert not state.is_updating


def test_a_seek_that_was_cut_off_is_done_by_the_next(
    command: Command, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.begin()
    with group.open() as log:
        append(log, encode_changes([UpdateBegun()]))
    assert command("group", "show", group.name)["updating"] is True
    command("group", "seek", group.name, "--to", "tail")
    assert command("group", "show", group.name)["updating"] is False

    def die(*_: object, **__: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patches:
        patches.setattr(group_seek, "begin_group", die)
        with pytest.raises(KeyboardInterrupt):
            seek_group(group.client, group.scope, "group", {group.stream: {0: 0}})
    shown = command("group", "show", group.name)
    assert (shown["updating"], shown["generation"]) == (True, 1)
    found = command("group", "seek", group.name, "--to", "tail")
    shown = command("group", "show", group.name)
    assert (shown["updating"], shown["generation"]) == (False, found["generation"])
    assert found["generation"] == 3


def test_a_seek_among_changes_of_readers_is_done(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.begin()
    read = group_seek.read_state
    changes = iter([comes("two"), b"", comes("three"), comes("four")])

    def change_behind(log: SegmentLog) -> Any:
        state = read(log)
        if revision := next(changes, b""):
            with group.open() as other:
                append(other, revision)
        return state

    monkeypatch.setattr(group_seek, "read_state", change_behind)
    seek_group(group.client, group.scope, "group", {group.stream: {0: 0}})
    assert next(changes, None) is None
    state = find_state(group.client, group.scope, "group")
    assert (state.readers, state.generation) == ([], 1)


# ---- The log -------------------------------------------------------------------------------------


@pytest.fixture
def log(client: ControllerClient, scope: str) -> Iterator[SegmentLog]:
    client.create_stream(scope, reader_group_stream("log"), StreamSettings())
    with open_state(client, scope, "log", purpose=Purpose.READ_WRITE) as log:
        yield log


def test_an_event_is_appended_only_behind_what_was_read(
    log: SegmentLog, client: ControllerClient, scope: str
) -> None:
    assert log.read() == []
    with open_state(client, scope, "log", purpose=Purpose.READ_WRITE) as other:
        append(other, b"one")
    assert not log.append(b"lost")
    assert log.read() == [b"one"]
    assert log.append(b"two")
    assert log.read() == [b"one", b"two"]


def test_a_log_that_is_truncated_meanwhile_is_read_anew(
    log: SegmentLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_log, "READ_BYTES", 5)
    append(log, b"one", b"two", b"three")
    mark = len(b"one") + 8

    def truncate() -> None:
        connection, segment = log._connection, segment_name(*log.name.split("/"), 0)
        connection.call(
            wire.UpdateSegmentAttribute(901, segment, REVISION_MARK, mark, -(2**63), "")
        )
        connection.call(wire.TruncateSegment(902, segment, mark, ""))

    read = LogSession._read_piece
    calls = itertools.count()

    def truncate_and_read(self: LogSession, offset: int, end: int) -> Steps[bytes]:
        if next(calls) == 0:
            truncate()
        return read(self, offset, end)

    monkeypatch.setattr(LogSession, "_read_piece", truncate_and_read)
    assert log.read() == [b"two", b"three"]
    assert log.read(whole=True) == [b"two", b"three"]


def test_what_is_no_state_is_told(log: SegmentLog, command: Command, scope: str) -> None:
    append(log, b"\0\0\0\7")
    assert "has no state of a reader group" in command("group", "show", f"{scope}/log", code=1)
