"""Chunks in HDFS when requests fail halfway, answers are lost, and others write, too."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import msgspec
import pytest
import trio
from urllib3.exceptions import SSLError

from segstore.errors import ChunkNotFoundError, StorageError, StorageFullError
from segstore.tiers.api import ChunkInfo
from segstore.tiers.hdfs import lost_datanodes
from segstore.tiers.hdfs.failures import HdfsFailureKind, failure_of_answer, failure_of_error
from segstore.tiers.hdfs.http import PooledRequests
from segstore.tiers.hdfs.location import HdfsLocation
from segstore.tiers.hdfs.opening import connect
from segstore.tiers.hdfs.settings import HdfsSettings
from segstore.tiers.hdfs.storage import (
    UNFINISHED_DIRECTORY,
    HdfsChunkStorage,
    file_path,
    remove_old_unfinished,
)
from segstore.tiers.hdfs.webhdfs import RepeatLimits, WebHdfs
from support.faults.fake_hdfs import (
    LOST_ADDRESS,
    LOST_HOST,
    STANDBY,
    FakeHdfs,
    Refusal,
    RequestFault,
    dead_address,
    fake_hdfs,
    frozen_address,
)

NAME = "scope/stream/0.#epoch.0.S-7$00000000000000000000.E1.1"
FILE = f"/root/{file_path(NAME)}"
QUICK = RepeatLimits(retry_seconds_max=1.0, pause_seconds_min=0.005, pause_seconds_max=0.02)
LOST = RequestFault()
Storages = Callable[..., HdfsChunkStorage]


@pytest.fixture
def hdfs() -> Iterator[FakeHdfs]:
    with fake_hdfs() as hdfs:
        yield hdfs


@pytest.fixture
def connected() -> Iterator[Callable[..., WebHdfs]]:
    with ExitStack() as stack:

        def make(
            hdfs: FakeHdfs,
            *,
            namenodes: list[str] | None = None,
            connect_seconds: float = 1.0,
            silent_seconds: float = 1.0,
        ) -> WebHdfs:
            hosts = ",".join(namenodes or hdfs.namenodes)
            http = PooledRequests(
                connections_max=4,
                connect_seconds_max=connect_seconds,
                read_seconds_max=silent_seconds,
            )
            stack.enter_context(closing(http))
            location = HdfsLocation.parse(f"webhdfs://{hosts}/root")
            return connect(location, HdfsSettings(user="somebody"), http=http, limits=QUICK)

        yield make


@pytest.fixture
def storage_of(connected: Callable[..., WebHdfs]) -> Storages:
    numbers = itertools.count()

    def make(hdfs: FakeHdfs, **options: Any) -> HdfsChunkStorage:
        def next_bytes(count: int) -> bytes:
            return next(numbers).to_bytes(count, "big")

        return HdfsChunkStorage(connected(hdfs, **options), random_bytes=next_bytes)

    return make


@pytest.fixture
def storage(hdfs: FakeHdfs, storage_of: Storages) -> HdfsChunkStorage:
    return storage_of(hdfs)


# ---- Appends -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bytes_done", [None, 5, 0])
async def test_an_append_whose_answer_is_lost_is_never_made_twice(
    hdfs: FakeHdfs, storage: HdfsChunkStorage, bytes_done: int | None
) -> None:
    await storage.write(NAME, offset=0, data=[b"first,"])
    hdfs.plan("APPEND", RequestFault(bytes_done=bytes_done))
    await storage.write(NAME, offset=6, data=[b"sec", b"ond"])
    await storage.write(NAME, offset=12, data=[b",third"])
    assert hdfs.files[FILE] == b"first,second,third"
    assert await storage.info(NAME) == ChunkInfo(NAME, 18)


@pytest.mark.parametrize("looks", [1, 2, 3, 5])
@pytest.mark.parametrize("bytes_done", [None, 3, 0])
async def test_bytes_that_count_only_when_hdfs_has_closed_the_file_are_appended_once(
    hdfs: FakeHdfs, storage: HdfsChunkStorage, bytes_done: int | None, looks: int
) -> None:
    """The length is the old one for a while, the file is refused, and then the length jumps."""
    await storage.write(NAME, offset=0, data=[b"first,"])
    hdfs.plan("APPEND", RequestFault(bytes_done=bytes_done, closes_after=looks))
    await storage.write(NAME, offset=6, data=[b"sec", b"ond,"])
    assert hdfs.count("APPEND") > 2 or looks == 1
    await storage.write(NAME, offset=13, data=[b"third"])
    assert hdfs.files[FILE] == b"first,second,third"


async def test_what_was_appended_without_an_answer_is_synced_before_it_counts(
    hdfs: FakeHdfs, storage: HdfsChunkStorage
) -> None:
    await storage.write(NAME, offset=0, data=[b"first"])
    hdfs.plan("APPEND", LOST)
    await storage.write(NAME, offset=5, data=[b"second"])
    # The file was opened and closed once more.
    assert hdfs.count("APPEND") == 2
    assert hdfs.files[FILE] == b"firstsecond"


@pytest.mark.parametrize("bytes_done", [None, 2, 0])
async def test_a_chunk_whose_making_gets_no_answer_is_made_once(
    hdfs: FakeHdfs, storage: HdfsChunkStorage, bytes_done: int | None
) -> None:
    hdfs.plan("CREATE", RequestFault(bytes_done=bytes_done))
    await storage.write(NAME, offset=0, data=[b"whole"])
    assert hdfs.files == {FILE: b"whole"}


async def test_a_chunk_whose_naming_gets_no_answer_is_made_once(
    hdfs: FakeHdfs, storage: HdfsChunkStorage
) -> None:
    hdfs.plan("RENAME", LOST)
    await storage.write(NAME, offset=0, data=[b"whole"])
    assert hdfs.files == {FILE: b"whole"}


async def test_a_chunk_is_never_seen_with_a_part_of_its_first_bytes(
    hdfs: FakeHdfs, storage: HdfsChunkStorage
) -> None:
    hdfs.plan("CREATE", *[RequestFault(bytes_done=2)] * 1000)
    with pytest.raises(StorageError, match=f"cannot write {NAME[:5]}"):
        await storage.write(NAME, offset=0, data=[b"whole"])
    assert await storage.list_chunks("") == []
    with pytest.raises(ChunkNotFoundError):
        await storage.info(NAME)


async def test_an_append_that_another_request_overtook_fails_and_loses_nothing(
    hdfs: FakeHdfs, storage: HdfsChunkStorage
) -> None:
    """A request of an earlier attempt, which a server had not begun yet, comes late."""
    await storage.write(NAME, offset=0, data=[b"first,"])
    hdfs.plan(
        "APPEND",
        RequestFault(first=lambda: hdfs.files[FILE].extend(b"late,"), is_answered=True),
    )
    with pytest.raises(StorageError, match="has other bytes from 6 on"):
        await storage.write(NAME, offset=6, data=[b"second"])
    assert await storage.read(NAME, offset=0, length=6) == b"first,"
    with pytest.raises(StorageError, match="has other bytes from 6 on"):
        await storage.write(NAME, offset=6, data=[b"second"])


async def test_a_late_request_behind_an_append_is_found_by_the_next_one(
    hdfs: FakeHdfs, storage: HdfsChunkStorage
) -> None:
    await storage.write(NAME, offset=0, data=[b"first,"])
    hdfs.files[FILE] += b"late"
    with pytest.raises(StorageError, match="has other bytes from 6 on"):
        await storage.write(NAME, offset=6, data=[b"second"])
    assert await storage.read(NAME, offset=0, length=6) == b"first,"


async def test_a_write_that_another_process_made_is_completed(
    hdfs: FakeHdfs, storage_of: Storages
) -> None:
    await storage_of(hdfs).write(NAME, offset=0, data=[b"0123"])
    storage = storage_of(hdfs)
    await storage.write(NAME, offset=2, data=[b"2", b"345"])
    assert hdfs.files[FILE] == b"012345"
    with pytest.raises(StorageError, match="has other bytes from 4 on"):
        await storage.write(NAME, offset=4, data=[b"xyz"])
    assert hdfs.files[FILE] == b"012345"


async def test_an_append_waits_until_hdfs_has_closed_the_file(
    hdfs: FakeHdfs, storage: HdfsChunkStorage
) -> None:
    await storage.write(NAME, offset=0, data=[b"first,"])
    hdfs.being_written.add(FILE)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def close() -> None:
            await trio.sleep(0.05)
            hdfs.being_written.clear()

        await storage.write(NAME, offset=6, data=[b"second"])
    assert hdfs.files[FILE] == b"first,second"


async def test_an_append_to_a_file_that_stays_open_fails_in_time(
    hdfs: FakeHdfs, storage: HdfsChunkStorage
) -> None:
    await storage.write(NAME, offset=0, data=[b"first,"])
    hdfs.being_written.add(FILE)
    with pytest.raises(StorageError, match="AlreadyBeingCreatedException"):
        await storage.write(NAME, offset=6, data=[b"second"])


# ---- Reads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [LOST, RequestFault(bytes_done=3), RequestFault(refusal=Refusal("IOException"))]
)
async def test_a_read_that_fails_or_is_short_is_repeated(
    hdfs: FakeHdfs, storage: HdfsChunkStorage, fault: RequestFault
) -> None:
    await storage.write(NAME, offset=0, data=[b"0123456789"])
    hdfs.plan("OPEN", fault)
    assert await storage.read(NAME, offset=2, length=6) == b"234567"


async def test_a_file_whose_writer_died_is_closed_for_a_reader(
    hdfs: FakeHdfs, storage: HdfsChunkStorage
) -> None:
    await storage.write(NAME, offset=0, data=[b"0123456789"])
    hdfs.unreadable.add(FILE)
    assert await storage.read(NAME, offset=2, length=6) == b"234567"
    assert hdfs.files[FILE] == b"0123456789"


# ---- Servers -------------------------------------------------------------------------------------


def operation(storage: HdfsChunkStorage, name: str) -> Callable[[], Awaitable[object]]:
    """Return a call that needs a DataNode for an operation of WebHDFS."""
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "CREATE": lambda: storage.write("other", offset=0, data=[b"other"]),
        "APPEND": lambda: storage.write(NAME, offset=5, data=[b"56789"]),
        "OPEN": lambda: storage.read(NAME, offset=0, length=5),
    }
    return calls[name]


@pytest.mark.parametrize("name", ["CREATE", "APPEND", "OPEN"])
async def test_a_datanode_that_is_dead_is_not_named_again(
    hdfs: FakeHdfs, storage: HdfsChunkStorage, name: str
) -> None:
    """The NameNode does not know that it died, and knows it by address alone."""
    await storage.write(NAME, offset=0, data=[b"01234"])
    hdfs.lost_datanode = dead_address(LOST_HOST)
    await operation(storage, name)()
    asked = [query for query in hdfs.queries if query["op"] == name]
    assert [query.get("excludedatanodes") for query in asked][-2:] == [None, LOST_ADDRESS]


@pytest.mark.parametrize("name", ["CREATE", "APPEND", "OPEN"])
async def test_a_datanode_that_never_answers_is_not_named_again(
    hdfs: FakeHdfs, storage_of: Storages, name: str
) -> None:
    await storage_of(hdfs).write(NAME, offset=0, data=[b"01234"])
    storage = storage_of(hdfs, silent_seconds=0.5)
    with frozen_address() as hdfs.lost_datanode:
        await operation(storage, name)()
    asked = [query for query in hdfs.queries if query["op"] == name]
    assert asked[-1].get("excludedatanodes") == LOST_ADDRESS


async def test_all_requests_share_what_is_known_of_lost_datanodes(
    hdfs: FakeHdfs, storage: HdfsChunkStorage
) -> None:
    await storage.write(NAME, offset=0, data=[b"01234"])
    hdfs.lost_datanode = dead_address(LOST_HOST)
    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(lambda: storage.read(NAME, offset=0, length=5))
    hdfs.queries.clear()
    for _ in range(3):
        await storage.read(NAME, offset=0, length=5)
    asked = [query.get("excludedatanodes") for query in hdfs.queries if query["op"] == "OPEN"]
    assert asked == [LOST_ADDRESS] * 3


async def test_a_lost_datanode_is_named_again_after_a_while(
    hdfs: FakeHdfs, storage: HdfsChunkStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_datanodes, "LOST_SECONDS", 0.2)
    await storage.write(NAME, offset=0, data=[b"01234"])
    hdfs.plan("OPEN", RequestFault(redirect=dead_address(LOST_HOST)))
    await storage.read(NAME, offset=0, length=5)
    await trio.sleep(0.3)
    await storage.read(NAME, offset=0, length=5)
    assert hdfs.queries[-1]["op"] == "OPEN"
    assert "excludedatanodes" not in hdfs.queries[-1]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.3"])
async def test_no_datanode_is_excluded_where_the_namenode_cannot_do_without(
    hdfs: FakeHdfs, storage: HdfsChunkStorage, host: str
) -> None:
    """The only one that has the bytes, and one that the NameNode knows by another address."""
    await storage.write(NAME, offset=0, data=[b"01234"])
    hdfs.plan("OPEN", RequestFault(redirect=dead_address(host)))
    assert await storage.read(NAME, offset=0, length=5) == b"01234"
    asked = [query.get("excludedatanodes") for query in hdfs.queries if query["op"] == "OPEN"]
    assert asked == [None, host, None]


async def test_a_datanode_that_stands_still_within_a_body_is_waited_for(
    hdfs: FakeHdfs, storage_of: Storages
) -> None:
    """A DataNode that replaces another one of its pipeline does this."""
    storage = storage_of(hdfs, connect_seconds=0.3, silent_seconds=10.0)
    hdfs.pause_seconds = 0.6
    body = bytes(8 << 20)
    await storage.write(NAME, offset=0, data=[body])
    assert hdfs.files[FILE] == body
    assert hdfs.count("CREATE") == 1


@pytest.mark.proof
async def test_a_slow_datanode_has_the_time_limit_for_each_part_of_a_body(
    hdfs: FakeHdfs, storage_of: Storages
) -> None:
    storage = storage_of(hdfs, silent_seconds=1.5)
    hdfs.pause_seconds = 0.5
    body = bytes(24 << 20)  # which takes 3 s
    await storage.write(NAME, offset=0, data=[body])
    assert hdfs.files[FILE] == body
    assert hdfs.count("CREATE") == 1


async def test_a_datanode_that_stands_still_too_long_within_a_body_is_given_up(
    hdfs: FakeHdfs, storage_of: Storages
) -> None:
    storage = storage_of(hdfs, silent_seconds=0.3)
    hdfs.pause_seconds = 2.0
    with pytest.raises(StorageError, match="cannot write"):
        await storage.write(NAME, offset=0, data=[bytes(16 << 20)])


async def test_the_other_namenode_is_asked_when_one_is_on_standby(storage_of: Storages) -> None:
    with fake_hdfs(namenodes=2) as hdfs:
        storage = storage_of(hdfs)
        await storage.write(NAME, offset=0, data=[b"first,"])
        hdfs.active = 1
        await storage.write(NAME, offset=6, data=[b"second"])
        assert await storage.read(NAME, offset=0, length=12) == b"first,second"
        hdfs.active = 0
        assert await storage.info(NAME) == ChunkInfo(NAME, 12)


async def test_the_other_namenode_is_asked_when_one_is_dead(
    hdfs: FakeHdfs, storage_of: Storages
) -> None:
    storage = storage_of(hdfs, namenodes=[dead_address(), *hdfs.namenodes])
    await storage.write(NAME, offset=0, data=[b"first,"])
    assert await storage.list_chunks("scope/") == [ChunkInfo(NAME, 6)]


async def test_each_namenode_is_asked_however_long_one_takes(
    hdfs: FakeHdfs, connected: Callable[..., WebHdfs]
) -> None:
    webhdfs = connected(hdfs, namenodes=[dead_address(), *hdfs.namenodes])
    impatient = webhdfs.with_limits(RepeatLimits(retry_seconds_max=-1.0))
    assert await HdfsChunkStorage(impatient, random_bytes=bytes).list_chunks("") == []


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal("RetriableException", "NameNode still not started"),
        Refusal("SafeModeException", "Name node is in safe mode."),
        Refusal("NullPointerException", status=500),
    ],
)
async def test_a_namenode_that_asks_to_wait_is_asked_again(
    hdfs: FakeHdfs, storage: HdfsChunkStorage, refusal: Refusal
) -> None:
    hdfs.plan("RENAME", *[RequestFault(refusal=refusal)] * 2)
    await storage.write(NAME, offset=0, data=[b"whole"])
    assert hdfs.files == {FILE: b"whole"}


async def test_what_cannot_succeed_is_not_repeated(
    hdfs: FakeHdfs, storage: HdfsChunkStorage
) -> None:
    hdfs.plan(
        "CREATE", RequestFault(refusal=Refusal("AccessControlException", "Permission denied"))
    )
    with pytest.raises(StorageError, match=r"cannot write .*: AccessControlException: Permission"):
        await storage.write(NAME, offset=0, data=[b"whole"])
    assert hdfs.count("CREATE") == 1


async def test_a_call_that_changes_nothing_is_cancelled_at_once(
    hdfs: FakeHdfs, storage_of: Storages
) -> None:
    storage = storage_of(hdfs, silent_seconds=30.0)
    await storage.write(NAME, offset=0, data=[b"01234"])
    is_over = threading.Event()
    hdfs.plan("GETFILESTATUS", RequestFault(first=lambda: is_over.wait(20.0) and None))
    hdfs.plan("LISTSTATUS", RequestFault(first=lambda: is_over.wait(20.0) and None))
    began = trio.current_time()
    for call in (
        lambda: storage.info(NAME),
        lambda: storage.list_chunks(""),
        lambda: storage.read(NAME, offset=0, length=5),
    ):
        with trio.move_on_after(0.2):
            await call()
    took = trio.current_time() - began
    is_over.set()
    assert took < 10.0


@pytest.mark.proof
async def test_a_silent_namenode_delays_the_end_of_a_cancelled_write_by_one_request(
    hdfs: FakeHdfs, storage_of: Storages
) -> None:
    """The unfinished rest of the write is not waited for."""
    storage = storage_of(hdfs, silent_seconds=3.0)
    is_over = threading.Event()
    # The lock is held meanwhile: nothing else is answered either.
    hdfs.plan("MKDIRS", RequestFault(first=lambda: is_over.wait(20.0) and None))
    began = trio.current_time()
    with trio.move_on_after(0.2), suppress(StorageError):
        await storage.write(NAME, offset=0, data=[b"01234"])
    took = trio.current_time() - began
    is_over.set()
    assert took < 5.5


async def test_a_namenode_that_is_away_is_an_error_in_time(storage_of: Storages) -> None:
    storage = storage_of(FakeHdfs(), namenodes=[dead_address()])
    with pytest.raises(StorageError, match=r"cannot look up .* tries"):
        await storage.info(NAME)


async def test_a_quota_that_is_used_up_is_told_at_once_with_its_place(
    hdfs: FakeHdfs, storage: HdfsChunkStorage
) -> None:
    refusal = Refusal("DSQuotaExceededException", "The DiskSpace quota of / is exceeded")
    hdfs.plan("CREATE", RequestFault(refusal=refusal))
    with pytest.raises(StorageFullError, match="cannot") as caught:
        await storage.write(NAME, offset=0, data=[b"01234"])
    assert caught.value.reason.endswith(
        "is full: DSQuotaExceededException: The DiskSpace quota of / is exceeded"
    )
    assert caught.value.reason.startswith("tier 2 in webhdfs://")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"RemoteException": {"exception": "QuotaExceededException"}}', HdfsFailureKind.FULL),
        (
            b'{"RemoteException": {"exception": "RemoteException", "message":'
            b' "org.apache.hadoop.ipc.StandbyException: state standby"}}',
            HdfsFailureKind.STANDBY,
        ),
        (
            b'{"RemoteException": {"exception": "IOException", "message": null,'
            b' "javaClassName": "java.io.IOException"}}',
            HdfsFailureKind.TRY_AGAIN,
        ),
        (b"<html>", HdfsFailureKind.FORBIDDEN),
        (b'{"RemoteException": {"exception": "\xff\xfe"}}', HdfsFailureKind.FORBIDDEN),
    ],
)
def test_an_exception_says_what_to_do(body: bytes, kind: HdfsFailureKind) -> None:
    assert failure_of_answer(403, body).kind is kind


@pytest.mark.parametrize(
    "class_name",
    [
        "java.net.SocketException",
        "java.net.UnknownHostException",
        "java.nio.channels.ClosedChannelException",
        "java.io.InterruptedIOException",
        "org.apache.hadoop.net.ConnectTimeoutException",
        "org.apache.hadoop.hdfs.server.namenode.SafeModeException",
        "org.apache.hadoop.hdfs.server.datanode.ReplicaNotFoundException",
        "org.apache.hadoop.fs.ChecksumException",
        "org.apache.hadoop.util.DiskChecker$DiskOutOfSpaceException",
    ],
)
async def test_an_error_of_disks_and_networks_below_a_datanode_is_passing(
    hdfs: FakeHdfs, storage: HdfsChunkStorage, class_name: str
) -> None:
    await storage.write(NAME, offset=0, data=[b"01234"])
    package, _, exception = class_name.replace("$", ".").rpartition(".")
    hdfs.plan("OPEN", RequestFault(refusal=Refusal(exception, "Broken pipe", package=package)))
    assert await storage.read(NAME, offset=0, length=5) == b"01234"


@pytest.mark.parametrize(
    "class_name",
    [
        "org.apache.hadoop.fs.ParentNotDirectoryException",
        "org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException",
        "org.apache.hadoop.HadoopIllegalArgumentException",
        "java.lang.IllegalArgumentException",
        "com.sun.jersey.api.ParamException",
    ],
)
def test_an_exception_that_a_request_itself_causes_is_final(class_name: str) -> None:
    exception = class_name.replace("$", ".").rpartition(".")[2]
    remote = {"exception": exception, "javaClassName": class_name, "message": "no"}
    failure = failure_of_answer(403, msgspec.json.encode({"RemoteException": remote}))
    assert not failure.is_worth_another_try


def test_a_server_that_ends_within_a_tls_handshake_may_be_there_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def end() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1)
                connection.shutdown(socket.SHUT_RDWR)

        thread = threading.Thread(target=end)
        thread.start()
        with closing(PooledRequests(connections_max=1)) as http, pytest.raises(SSLError) as caught:
            http.send("GET", f"https://127.0.0.1:{listener.getsockname()[1]}/")
        thread.join()
    assert failure_of_error(caught.value).is_worth_another_try


async def test_a_refusal_by_the_active_namenode_is_no_reason_to_ask_the_other(
    storage_of: Storages,
) -> None:
    with fake_hdfs(namenodes=2) as hdfs:
        storage = storage_of(hdfs)
        hdfs.plan("RENAME", *[RequestFault(refusal=Refusal("IOException", "no DataNodes"))] * 2)
        await storage.write(NAME, offset=0, data=[b"whole"])
        assert hdfs.count("RENAME") == 3
        assert hdfs.count(STANDBY) == 0


# ---- Files and directories -----------------------------------------------------------------------


async def test_a_directory_that_is_removed_while_a_chunk_is_made_is_made_again(
    hdfs: FakeHdfs, storage: HdfsChunkStorage
) -> None:
    await storage.write(f"{NAME}.other", offset=0, data=[b"x"])
    hdfs.plan(
        "RENAME",
        RequestFault(
            first=lambda: hdfs.directories.discard("/root/scope/stream"), is_answered=True
        ),
    )
    await storage.write(NAME, offset=0, data=[b"whole"])
    assert hdfs.files[FILE] == b"whole"


async def test_directories_go_with_their_last_chunk(
    hdfs: FakeHdfs, storage: HdfsChunkStorage
) -> None:
    await storage.write("a/b/c", offset=0, data=[b"x"])
    await storage.write("a/d", offset=0, data=[b"x"])
    await storage.delete("a/b/c")
    assert {"/root/a/b", "/root/a"} & hdfs.directories == {"/root/a"}
    await storage.delete("a/d")
    assert "/root/a" not in hdfs.directories
    assert "/root" in hdfs.directories


async def test_what_killed_processes_left_unfinished_is_removed_later(
    hdfs: FakeHdfs, connected: Callable[..., WebHdfs]
) -> None:
    for number in range(3):
        hdfs.create(f"/root/{UNFINISHED_DIRECTORY}/{number}", b"half")
    # The clock of the fake goes on by a millisecond with each look.
    webhdfs = connected(hdfs)
    assert await remove_old_unfinished(webhdfs, older_than_seconds=1.0) == 0
    assert await remove_old_unfinished(webhdfs, older_than_seconds=0.001) == 1
    assert len(hdfs.files) == 2


async def test_paths_have_no_character_that_webhdfs_decodes_twice(
    hdfs: FakeHdfs, storage: HdfsChunkStorage
) -> None:
    name = "100%/a b+c;d:e?f&g=h/ü"
    await storage.write(name, offset=0, data=[b"x"])
    assert await storage.list_chunks("100%/a b") == [ChunkInfo(name, 1)]
    assert not set("%+;:?& ") & set("".join(hdfs.files))
