"""``segstore_client.blocking`` beside the official Java client: each reads what the other wrote."""

from __future__ import annotations

import os
import uuid
from collections import defaultdict
from contextlib import suppress
from random import Random

import pytest
from compat_harness.group_steps import open_group, open_program
from compat_harness.java import NEWEST, JavaClient, JavaError
from compat_harness.server import TARGET_VARIABLE, Server
from foreign_servers.deadlines import scale

from segstore_client import Position, blocking

pytestmark = [
    pytest.mark.compat,
    pytest.mark.timeout(600),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="kills its own server"),
]

KEYS = 7
EVENTS = 3_000
SECONDS_MAX = scale(180.0)


def key_of(number: int) -> str:
    """Return the key that ``GroupSteps`` gives the event, too."""
    return f"key-{number % KEYS}"


def event_of(number: int) -> bytes:
    return b"event-%d" % number


def write_among_kills(server: Server, stream: str) -> None:
    """Write events; kill store and controller when the last kill's first event was stored."""
    victims = {500: server.kill_segment_store, 1_500: server.kill_controller}
    with blocking.connect(server.controller_uri) as store, store.writer(stream) as writer:
        for number in range(EVENTS):
            if (kill := victims.get(number)) is None:
                writer.submit(event_of(number), key=key_of(number))
            else:
                writer.write(event_of(number), key=key_of(number))
                kill()


def write_transactions(server: Server, stream: str, first: int) -> None:
    """Commit a transaction of ten events among a kill, and abort another one of ten."""
    with blocking.connect(server.controller_uri) as store:
        with store.transaction(stream) as transaction:
            for number in range(first, first + 10):
                transaction.write(event_of(number), key=key_of(number))
                if number == first + 5:
                    server.kill_segment_store()
        with suppress(ZeroDivisionError), store.transaction(stream) as transaction:
            for number in range(10):
                transaction.write(event_of(number), key=key_of(number))
            _ = 1 / 0


def read_all(server: Server, stream: str) -> list[int]:
    """Return the numbers of the events up to the present end, in the order of reading."""
    numbers = []
    with (
        blocking.connect(server.controller_uri) as store,
        store.reader(stream, end=Position.TAIL) as reader,
    ):
        for event in reader:
            numbers.append(int(event.data.removeprefix(b"event-")))
            if len(numbers) == 1_000:
                server.kill_segment_store()
    return numbers


def build_client() -> JavaClient:
    try:
        return JavaClient.build(NEWEST)
    except JavaError as error:
        pytest.fail(str(error), pytrace=False)


def test_events_go_to_and_fro_between_it_and_the_java_client(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    client = build_client()
    scope = f"blocking-{uuid.uuid4().hex[:8]}"
    stream = f"{scope}/stream"
    with (
        Server(tmp_path_factory.mktemp("blocking")) as server,
        open_group(client, server.controller_uri, scope, segments=3) as group,
    ):
        write_among_kills(server, stream)
        assert group.step(f"write {EVENTS} 100 0") == "written"
        write_transactions(server, stream, EVENTS + 100)
        total = EVENTS + 110
        assert group.read(total) == list(range(total))
        numbers = read_all(server, stream)
    by_key = defaultdict(list)
    for number in numbers:
        by_key[key_of(number)].append(number)
    assert sorted(numbers) == list(range(total))
    assert all(each == sorted(each) for each in by_key.values())


@pytest.mark.proof
def test_long_events_go_to_and_fro_between_it_and_the_java_client(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("files")
    theirs = Random(6).randbytes(9_000_001)
    (directory / "theirs").write_bytes(theirs)
    ours = [b"event-6", b"event-7" + b" " * 17_000_000, b"event-8"]
    client = build_client()
    with (
        Server(tmp_path_factory.mktemp("blocking")) as server,
        open_group(client, server.controller_uri, "long", segments=2) as group,
        blocking.connect(server.controller_uri) as store,
    ):
        with store.writer("long/stream") as writer:
            for event in ours:
                writer.write(event, key="key")
        assert group.read(3) == [6, 7, 8]
        client.run_program(
            "compat.FileCopies",
            "event",
            "long",
            "stream",
            str(directory / "theirs"),
            seconds_max=SECONDS_MAX,
            controller=server.controller_uri,
        )
        with store.reader("long/stream", end=Position.TAIL) as reader:
            found = [event.data for event in reader]
    assert sorted(found) == sorted([*ours, theirs])


def write_bytes_among_kills(server: Server, stream: str, data: bytes) -> None:
    """Append bytes to a new stream; kill the store while they are under way."""
    third = len(data) // 3
    with blocking.connect(server.controller_uri) as store:
        store.create_scope(stream.partition("/")[0], exist_ok=True)
        store.create_stream(stream)
        with store.byte_writer(stream) as file:
            file.write(data[:third])
            file.flush()
            file.write(data[third : 2 * third])
            server.kill_segment_store()
            file.write(data[2 * third :])
            assert file.tell() == len(data)


def read_bytes(server: Server, stream: str) -> bytes:
    """Return all bytes of a sealed stream; kill the store after the first."""
    with blocking.connect(server.controller_uri) as store, store.byte_reader(stream) as file:
        found = file.read(1000)
        server.kill_segment_store()
        return found + file.readall()


@pytest.mark.proof
def test_bytes_go_to_and_fro_between_it_and_the_java_client(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("files")
    draw = Random(5)
    ours, theirs = draw.randbytes(20_000_003), draw.randbytes(9_000_001)
    (directory / "theirs").write_bytes(theirs)
    client = build_client()

    def copy(how: str, stream: str, name: str) -> None:
        client.run_program(
            "compat.FileCopies",
            how,
            *stream.split("/"),
            str(directory / name),
            seconds_max=SECONDS_MAX,
            controller=server.controller_uri,
        )

    with Server(tmp_path_factory.mktemp("blocking")) as server:
        # Each stream gets bytes of both; one client seals it, and both read it.
        write_bytes_among_kills(server, "bytes/one", ours)
        copy("seal", "bytes/one", "theirs")
        write_bytes_among_kills(server, "bytes/two", ours)
        copy("write", "bytes/two", "theirs")
        with (
            blocking.connect(server.controller_uri) as store,
            store.byte_writer("bytes/two") as file,
        ):
            file.truncate_before(1_000_000)
            file.seal()
        for stream, expected in (
            ("bytes/one", ours + theirs),
            ("bytes/two", (ours + theirs)[1_000_000:]),
        ):
            copy("read", stream, "copy")
            assert (directory / "copy").read_bytes() == expected
            assert read_bytes(server, stream) == expected


def test_a_state_is_shared_with_the_java_client(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Both change it, and each compacts it for the other."""
    client = build_client()
    scope = f"blocking-{uuid.uuid4().hex[:8]}"
    with (
        Server(tmp_path_factory.mktemp("shared")) as server,
        open_program(
            client, server.controller_uri, "compat.SharedNames", scope, "names", "java"
        ) as java,
        blocking.connect(server.controller_uri) as store,
        store.synchronizer(
            f"{scope}/names",
            load=lambda data: data.decode().split(),
            apply=lambda names, update: [*names, update.decode()],
        ) as names,
    ):
        assert not names.begin(b"too late")
        assert names.read() == ["java"]
        names.change(lambda _: [b"one", b"two"])
        assert java.step("names") == "java one two"
        assert java.step("add three") == "added"
        names.change(lambda state: [str(len(state)).encode()])
        expected = ["java", "one", "two", "three", "4"]
        assert names.read() == expected
        for _ in range(3):
            assert names.compact(lambda state: " ".join(state).encode())
            assert java.step("names").split() == expected
            assert java.step("compact") == "compacted"
            assert java.step("add more") == "added"
            expected = [*expected, "more"]
            assert names.read() == expected
