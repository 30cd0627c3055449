"""``segstore export`` and ``segstore import`` against a running store."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from foreign_servers.deadlines import scale
from typer.testing import CliRunner

from pravega_admin.verbs import app
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.cuts.segment_info import segment_sizes
from support.exported_streams import events_by_range
from support.small_disks import small_disk

if TYPE_CHECKING:
    from ..conftest import Standalone

NUMBERS = itertools.count()
SECONDS_MAX = scale(120.0)
NO_ROOM = 75
KILLS = 2
COUNT = 3000
"""Number of events before the stream is scaled, and after it, for an import that is killed."""
DISK_BYTES = 4 * 1024 * 1024


class Command:
    """Runs the command line against the store, in this process."""

    def __init__(self, controller: str) -> None:
        self.controller = controller
        self.stderr = ""

    def __call__(self, *arguments: str, input: bytes | None = None, code: int = 0) -> str:
        environment = {"SEGSTORE_CONTROLLER": self.controller}
        result = CliRunner().invoke(app, list(arguments), env=environment, input=input)
        assert result.exit_code == code, result.output
        self.stderr = result.stderr
        return result.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "-o", "json"))


@pytest.fixture
def command(store: Standalone) -> Command:
    return Command(store.controller)


@pytest.fixture
def stream(command: Command) -> str:
    """A stream of two segments that was scaled to three, with 40 events of JSON."""
    scope = f"exports{next(NUMBERS)}"
    command("scope", "create", scope)
    command("stream", "create", f"{scope}/a", "--segments", "2", "--tag", "blue")
    for first in (0, 20):
        lines = b"".join(
            b'{"user": "u%d", "number": %d}\n' % (number % 5, number)
            for number in range(first, first + 20)
        )
        command("write", f"{scope}/a", "--key-field", "2", "--delimiter", '"', input=lines)
        command("stream", "scale", f"{scope}/a", "--segments", "3")
    return f"{scope}/a"


def start(store: Standalone, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pravega_admin", *arguments, "--controller", store.controller]
    return subprocess.Popen(command, stderr=subprocess.PIPE, **options)


def content(store: Standalone, stream: str) -> list[tuple[tuple[float, float], list[bytes]]]:
    """Return the segments that have events, with these."""
    scope, _, name = stream.partition("/")
    with ControllerClient(store.controller) as client:
        return [each for each in events_by_range(client, scope, name) if each[1]]


def test_a_stream_comes_back_from_its_file(
    store: Standalone, command: Command, stream: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "a.avro")
    told = command.json("export", stream, file)
    assert told == {
        "stream": stream,
        "file": file,
        "events": 40,
        "bytes": 40 * 8
        + len(b"".join(event for _, all in content(store, stream) for event in all)),
        "seconds": told["seconds"],
    }
    checked = command.json("import", f"{stream}-copy", file, "--dry-run")
    assert (checked["stream"], checked["events"], checked["segments"]) == (stream, 40, 8)
    told = command.json("import", f"{stream}-copy", file)
    assert (told["events"], told["stored"]) == (40, 40)
    assert {each["exported"] for each in told["segments"]} >= {0, 1}
    assert content(store, f"{stream}-copy") == content(store, stream)
    assert command.json("stream", "describe", f"{stream}-copy")["tags"] == ["blue"]
    assert command.json("import", f"{stream}-copy", file)["stored"] == 0
    assert content(store, f"{stream}-copy") == content(store, stream)


@pytest.mark.proof
def test_pipes_take_and_give_exports(store: Standalone, command: Command, stream: str) -> None:
    piped = subprocess.run(
        [*(sys.executable, "-m", "pravega_admin", "export", stream, "-"), "-c", store.controller],
        capture_output=True,
        check=True,
    )
    assert b"40 events" in piped.stderr
    for option in ((), ("--key-from", "json:/user"), ("--key", "one")):
        name = f"{stream}-{len(option) and option[0][2:]}"
        with start(
            store, "import", name, "-", *option, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            _, told = process.communicate(piped.stdout, timeout=SECONDS_MAX)
        assert process.returncode == 0, told
        assert sum(len(events) for _, events in content(store, name)) == 40


def test_a_part_of_a_stream_is_exported(
    store: Standalone, command: Command, stream: str, tmp_path: Path
) -> None:
    tail = command.json("stream", "describe", stream)["segments"]
    command("write", stream, input=b'{"user": "late"}\n{"user": "later"}\n')
    file = str(tmp_path / "part.avro")
    cut = ",".join(f"{each['id']}:{each['length']}" for each in tail)
    assert command.json("export", stream, file, "--from", cut)["events"] == 2
    command("import", f"{stream}-part", file)
    found = sorted(event for _, events in content(store, f"{stream}-part") for event in events)
    assert found == [b'{"user": "late"}', b'{"user": "later"}']
    before = str(tmp_path / "before.avro")
    told = command.json("export", stream, before, "--to", cut, "--compression", "none")
    assert told["events"] == 40
    assert b'"user": "u1"' in Path(before).read_bytes()
    assert b'"user": "u1"' not in Path(file).read_bytes()


def test_wrong_options_are_told(command: Command, stream: str, tmp_path: Path) -> None:
    file = tmp_path / "a.avro"
    command("export", stream, str(file))
    for arguments, code, sentence in (
        (("export", stream, str(file)), 4, "exists already"),
        (("export", stream, str(tmp_path / "none" / "a.avro")), 1, "No such file"),
        (("export", f"{stream}x", str(tmp_path / "b.avro")), 3, "does not exist"),
        (("import", stream, str(tmp_path / "none")), 3, "no file"),
        (("import", stream, str(file)), 4, "--key-from"),
        (("import", f"{stream}x", str(file), "--segments", "2"), 2, "--key-from"),
        (("import", f"{stream}x", str(file), "--again", "x"), 2, "--key-from"),
        (("import", f"{stream}x", str(file), "--key", "a", "--key-from", "json:/a"), 2, "both"),
        (("import", f"{stream}x", str(file), "--key-from", "user"), 2, "json:/POINTER"),
        (("import", f"{stream}x", str(file), "--key-from", ""), 2, "json:/POINTER"),
        (("import", f"{stream}x", __file__), 2, "no export"),
        (("import", f"{stream}x", str(tmp_path)), 1, "Is a directory"),
    ):
        command(*arguments, code=code)
        assert sentence in command.stderr, (arguments, command.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["a.avro"]


def test_a_damaged_file_is_refused_before_anything_is_written(
    command: Command, stream: str, tmp_path: Path
) -> None:
    file, broken = tmp_path / "a.avro", tmp_path / "broken.avro"
    command("export", stream, str(file))
    data = file.read_bytes()
    scope = stream.partition("/")[0]
    before = command.json("stream", "list", scope)
    damaged = bytearray(data)
    damaged[-40] ^= 1
    for content_, sentence in (
        (data[:-1], "cut off"),
        (data[: data.rindex(data[-16:], 0, -16) + 16], "missing"),
        (bytes(damaged), "damaged from byte"),
        (data + b"x", "cut off"),
    ):
        broken.write_bytes(content_)
        command("import", f"{stream}-broken", str(broken), code=8)
        assert sentence in command.stderr
        assert str(broken) in command.stderr
        command("import", f"{stream}-broken", str(broken), "--dry-run", code=8)
    assert command.json("stream", "list", scope) == before


@pytest.mark.timeout(300)
def test_an_import_that_is_killed_goes_on_without_loss_or_duplicates(
    store: Standalone, command: Command, tmp_path: Path
) -> None:
    """Each attempt gets a part of the file, and is killed when it has stored some of it."""
    scope = f"exports{next(NUMBERS)}"
    command("scope", "create", scope)
    command("stream", "create", f"{scope}/a")
    lines = b"".join(b'{"key": %d, "pad": "%s"}\n' % (n % 7, b"x" * 800) for n in range(COUNT))
    for number in (1, 2):
        command("write", f"{scope}/a", "--key-field", "3", "--delimiter", '"', input=lines)
        command("stream", "scale", f"{scope}/a", "--segments", str(number + 1))
    file = tmp_path / "a.avro"
    command("export", f"{scope}/a", str(file), "--compression", "none")
    data = file.read_bytes()

    for name, options in (("copy", ()), ("keyed", ("--key-from", "json:/key", "--segments", "2"))):
        stream = f"{scope}/{name}"
        for attempt in range(1, KILLS + 1):
            with start(store, "import", stream, "-", *options, stdin=subprocess.PIPE) as process:
                assert process.stdin is not None
                assert process.stderr is not None
                # A process that is killed leaves an append in the socket, which may still come.
                process.stdin.write(data[: len(data) * attempt // (KILLS + 1)])
                process.stdin.flush()
                wait_for_bytes(store, stream, len(data) * (attempt - 1) // (KILLS + 1) // 2 + 1)
                process.kill()
                process.communicate()
        told = command.json("import", stream, str(file), *options)
        assert told["events"] == 2 * COUNT
        assert 0 < told["stored"] < 2 * COUNT
        assert command.json("import", stream, str(file), *options)["stored"] == 0
        found = content(store, stream)
        if name == "copy":
            assert found == content(store, f"{scope}/a")
        else:
            everything = lines.splitlines() * 2
            assert sorted(event for _, events in found for event in events) == sorted(everything)


def wait_for_bytes(store: Standalone, stream: str, least: int) -> None:
    """Wait until a stream exists, and has at least so many bytes."""
    scope, _, name = stream.partition("/")
    deadline = time.monotonic() + SECONDS_MAX
    with ControllerClient(store.controller) as client:
        while time.monotonic() < deadline:
            if name in list(client.list_streams(scope)):
                head = client.head_segments(scope, name).offsets
                segments = {*head, *client.segments_between(scope, name, head, {})}
                sizes = segment_sizes(client, scope, name, segments)
                if sum(each.end for each in sizes.values()) >= least:
                    return
            time.sleep(0.02)
    raise AssertionError(f"{stream} has not got {least} bytes")


def test_an_export_whose_reader_has_gone_is_a_failure(
    store: Standalone, command: Command, stream: str
) -> None:
    noise = os.urandom(400_000).hex().encode()
    command("write", stream, input=noise + b"\n")
    reading, writing = os.pipe()
    fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, 4096)
    with start(store, "export", stream, "-", "--compression", "none", stdout=writing) as process:
        os.close(writing)
        assert os.read(reading, 4) == b"Obj\x01"
        os.close(reading)
        _, told = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 1
    assert b"the export is not complete: its reader has gone" in told


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    with small_disk(path, size_bytes=DISK_BYTES):
        yield path


def test_an_export_on_a_full_disk_is_told_and_goes_on(
    store: Standalone, command: Command, stream: str, disk: Path
) -> None:
    for _ in range(4):
        command("write", stream, input=os.urandom(100_000).hex().encode() + b"\n")
    other = disk / "other"
    other.write_bytes(bytes(DISK_BYTES - 500_000))
    file = str(disk / "a.avro")
    arguments = ("export", stream, file, "--compression", "none")
    command(*arguments, code=NO_ROOM)
    assert "No space left" in command.stderr
    assert "goes on when there is room" in command.stderr
    assert [path.name for path in sorted(disk.iterdir())] == ["a.avro.part", "other"]
    other.unlink()
    command(*arguments)
    assert "going on with" in command.stderr
    assert command.json("import", f"{stream}-again", file)["events"] == 44
    assert content(store, f"{stream}-again") == content(store, stream)
