"""``segstore stream list`` with sizes, and the forms of output, against a running store."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import yaml
from typer.testing import CliRunner

from pravega_admin.commands import streams as streams_module
from pravega_admin.options import StreamName
from pravega_admin.verbs import app
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.blocking.stream_sizes import StreamSize
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.cuts.segment_info import SegmentSize

if TYPE_CHECKING:
    from ..conftest import Standalone

Command = Callable[..., str]
NUMBERS = itertools.count()


@pytest.fixture
def command(store: Standalone) -> Command:
    def run(*arguments: str, input: bytes | None = None) -> str:
        environment = {"SEGSTORE_CONTROLLER": store.controller}
        result = CliRunner().invoke(app, list(arguments), env=environment, input=input)
        assert result.exit_code == 0, result.output
        return result.stdout

    run.controller = store.controller  # type: ignore[attr-defined]
    return run


@pytest.fixture
def stream(command: Command) -> str:
    scope = f"sizes{next(NUMBERS)}"
    command("scope", "create", scope)
    command("stream", "create", f"{scope}/a", "--segments", "2")
    command("write", f"{scope}/a", "--key-field", "1", input=b"one\ntwo\nthree\nfour\n")
    return f"{scope}/a"


def test_streams_of_all_scopes_are_listed(command: Command, stream: str) -> None:
    scope = stream.partition("/")[0]
    row = {"scope": scope, "stream": "a"}
    assert row in json.loads(command("stream", "list", "-o", "json"))
    assert json.loads(command("stream", "list", scope, "-o", "json")) == [row]


def test_sizes_and_events_are_told_without_reading(command: Command, stream: str) -> None:
    scope = stream.partition("/")[0]
    command("stream", "scale", stream, "--segments", "3")
    command("write", stream, input=b"five\n")
    (row,) = json.loads(command("stream", "list", scope, "--long", "-o", "json"))
    size = sum(8 + len(each) for each in ("one", "two", "three", "four", "five"))
    assert row == {"scope": scope, "stream": "a", "segments": 3, "bytes": size, "events": 5}
    command("stream", "truncate", stream, "--tail")
    (row,) = json.loads(command("stream", "list", scope, "-l", "-o", "json"))
    assert (row["bytes"], row["events"]) == (0, 0)


def test_rates_are_measured(store: Standalone, command: Command, stream: str) -> None:
    scope = stream.partition("/")[0]
    ends = threading.Event()

    def write() -> None:
        with (
            ControllerClient(store.controller) as client,
            BlockingEventWriter(client, scope, "a") as writer,
        ):
            while not ends.wait(0.01):
                writer.submit(b"event", key=None)
                writer.flush()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(60):
            (row,) = json.loads(command("stream", "list", scope, "--rates", "1", "-o", "json"))
            if row["events_per_second"]:
                break
    finally:
        ends.set()
        writer.join()
    # A store is asked for bytes and events one after the other, and writing goes on.
    assert row["bytes_per_second"] == pytest.approx(row["events_per_second"] * 13, rel=0.2)


def test_top_shows_the_busiest_stream_first(
    store: Standalone, command: Command, stream: str
) -> None:
    scope = stream.partition("/")[0]
    command("stream", "create", f"{scope}/busy")
    with (
        ControllerClient(store.controller) as client,
        BlockingEventWriter(client, scope, "busy") as writer,
    ):
        ends = threading.Event()

        def write() -> None:
            while not ends.wait(0.01):
                writer.submit(b"event", key=None)
                writer.flush()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            looks = command("top", scope, "--interval", "1", "--count", "2", "-o", "csv")
        finally:
            ends.set()
            thread.join()
    lines = looks.splitlines()
    head = lines[0].split(",")
    for first in (1, len(lines) // 2 + 1):
        rows = [dict(zip(head, line.split(","), strict=True)) for line in lines[first : first + 2]]
        assert [row["stream"] for row in rows] == ["busy", "a"]
    assert float(rows[0]["bytes_per_second"]) > float(rows[1]["bytes_per_second"]) == 0


@pytest.mark.proof
def test_names_are_completed(store: Standalone, stream: str) -> None:
    """By a shell, as its script asks."""
    scope = stream.partition("/")[0]

    def complete(words: str, controller: str) -> list[str]:
        environment = {
            **os.environ,
            "SEGSTORE_CONTROLLER": controller,
            "_SEGSTORE_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        done = subprocess.run(
            [sys.executable, "-m", "pravega_admin"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        return done.stdout.split()

    assert complete(f"segstore stream describe {scope}/", store.controller) == [stream]
    assert f"{scope}/" in complete("segstore read siz", store.controller)
    assert complete(f"segstore stream list {scope}", store.controller) == [scope]
    assert complete("segstore read siz", "tcp://127.0.0.1:1") == []


def test_output_has_four_forms(command: Command, stream: str) -> None:
    scope = stream.partition("/")[0]
    rows = [{"scope": scope, "stream": "a"}]
    assert yaml.safe_load(command("stream", "list", scope, "-o", "yaml")) == rows
    assert list(csv.DictReader(io.StringIO(command("stream", "list", scope, "-o", "csv")))) == rows
    described = yaml.safe_load(command("stream", "describe", stream, "-o", "yaml"))
    assert described == json.loads(command("stream", "describe", stream, "-o", "json"))
    segments = list(csv.DictReader(io.StringIO(command("stream", "describe", stream, "-o", "csv"))))
    assert [each["id"] for each in segments] == ["0", "1"]
    events = yaml.safe_load(command("read", stream, "-o", "yaml"))
    assert {each["event"] for each in events} == {"one", "two", "three", "four"}
    lines = list(csv.DictReader(io.StringIO(command("read", stream, "-o", "csv"))))
    assert [each["event"] for each in lines] == [each["event"] for each in events]


def test_events_between_two_places_are_read(command: Command, stream: str) -> None:
    """A cut in the middle, one behind a scale, and the words for the ends."""
    scope, _, _ = stream.partition("/")
    name = f"{scope}/line"
    command("stream", "create", name)
    command("write", name, input=b"a\nb\nc\n")
    command("stream", "scale", name, "--segments", "2")
    command("write", name, "--key", "k", input=b"d\ne\n")
    successors = [
        row["id"]
        for row in json.loads(command("stream", "describe", name, "-o", "json"))["segments"]
    ]
    cut = ",".join(f"{segment}:0" for segment in successors)
    assert command("read", name, "--from", "0:9").split() == list("bcde")
    assert command("read", name, "--from", "0:9", "--to", "0:18").split() == ["b"]
    assert command("read", name, "--to", "0:-1").split() == list("abc")
    assert command("read", name, "--from", "0:9", "--to", cut).split() == list("bc")
    assert command("read", name, "--from", cut, "--to", "tail").split() == list("de")
    assert command("read", name, "--from", cut, "--to", cut) == ""
    for wrong in (["--to", "soon"], ["--from", "-1h"], ["--to", "tail", "--follow"]):
        environment = {"SEGSTORE_CONTROLLER": command.controller}  # type: ignore[attr-defined]
        assert CliRunner().invoke(app, ["read", name, *wrong], env=environment).exit_code == 2


def test_events_of_a_segment_that_is_cut_within_are_unknown() -> None:
    cut = StreamSize(1, {0: SegmentSize(30, 100, 10)})
    assert (cut.stored_bytes, cut.events) == (70, None)
    assert StreamSize(1, {0: SegmentSize(100, 100, 10), 1: SegmentSize(0, 50, 5)}).events == 5
    assert StreamSize(1, {0: SegmentSize(0, 50, None)}).events is None
    grown = StreamSize(1, {0: SegmentSize(30, 120, 12), 1: SegmentSize(0, 7, 1)})
    assert grown.growth_since(cut) == (27, 3)


def test_rates_are_columns_when_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def measure(_: object, names: list[StreamName]) -> dict[StreamName, StreamSize]:
        """Return what grows by 100 bytes and 5 events a second."""
        size = SegmentSize(0, 1000 + int(100 * now), 50 + int(5 * now))
        return dict.fromkeys(names, StreamSize(1, {0: size}))

    client = SimpleNamespace(list_streams=lambda scope, tag: ["a"])
    clock = SimpleNamespace(monotonic=lambda: now, sleep=sleep)
    monkeypatch.setattr(streams_module, "open_controller", lambda _: nullcontext(client))
    monkeypatch.setattr(streams_module, "measure_streams", measure)
    monkeypatch.setattr(streams_module, "time", clock)

    def show(*options: str) -> list[object]:
        result = CliRunner().invoke(app, ["stream", "list", "s", *options, "-o", "json"])
        assert result.exit_code == 0, result.output
        rows: list[object] = json.loads(result.stdout)
        return rows

    name = {"scope": "s", "stream": "a", "segments": 1}
    assert show("--long") == [{**name, "bytes": 1000, "events": 50}]
    rates = {"bytes_per_second": 100.0, "events_per_second": 5.0}
    assert show("--rates", "10") == [{**name, "bytes": 2000, "events": 100, **rates}]
