"""Chunks in a real HDFS: what every chunk storage does, and what happens when requests fail."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trio
from foreign_servers.deadlines import scale
from foreign_servers.hdfs import USER, HdfsCluster
from tests.segstore.tiers import test_chunk_storage_behaviors as behaviors

from segstore.errors import StorageError
from segstore.tiers.api import Buffer, ChunkStorage
from segstore.tiers.hdfs.http import HttpAnswer, PooledRequests
from segstore.tiers.hdfs.location import HdfsLocation
from segstore.tiers.hdfs.opening import SYNC_SETTING, OpenedHdfs, connect
from segstore.tiers.hdfs.settings import HdfsSettings
from segstore.tiers.hdfs.storage import HdfsChunkStorage, file_path
from segstore.tiers.hdfs.webhdfs import RepeatLimits, WebHdfs

pytestmark = [pytest.mark.proof, pytest.mark.timeout(240), pytest.mark.xdist_group("hdfs")]

NAME = "scope/stream/0.#epoch.0.S-7$00000000000000000000.E1.1"
SETTINGS = HdfsSettings(user=USER)
CLOSED_SECONDS_MAX = scale(150.0)

globals().update({name: test for name, test in vars(behaviors).items() if name.startswith("test_")})
"""The suite of every chunk storage, with the fixtures of this module."""


class FaultyRequests:
    """A client that fails as told: after a request was done, or in the middle of its body."""

    def __init__(self) -> None:
        self._requests = PooledRequests(connections_max=8)
        self.lost_answers = 0
        self.cut_bodies: list[int] = []
        self.sent: list[str] = []

    def send(self, method: str, url: str, body: Sequence[Buffer] | None = None) -> HttpAnswer:
        if body is None:
            return self._requests.send(method, url)
        self.sent.append(method)
        if self.cut_bodies:
            send_part(method, url, b"".join(body), self.cut_bodies.pop())
            raise ConnectionResetError("the test has cut the connection")
        answer = self._requests.send(method, url, body)
        if self.lost_answers:
            self.lost_answers -= 1
            raise ConnectionResetError("the test has lost the answer")
        return answer

    def close(self) -> None:
        self._requests.close()


def send_part(method: str, url: str, body: bytes, length: int) -> None:
    """Send the first bytes of a body, and go away when the server has begun to answer."""
    with begun_request(method, url, body, length):
        pass


def begun_request(method: str, url: str, body: bytes, length: int) -> socket.socket:
    """Send the first bytes of a body; the connection, when the server has opened the file."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = socket.create_connection((parts.hostname, parts.port or 80), timeout=30.0)
    head = f"{method} {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
    head += f"Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body[:length])
    connection.recv(1)  # of "100 Continue", which comes before the file is opened
    return connection


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    cluster = HdfsCluster(Path(tmp_path_factory.mktemp("hdfs")) / "cluster")
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def new_place(cluster: HdfsCluster) -> Callable[[], HdfsLocation]:
    numbers = itertools.count()
    return lambda: HdfsLocation.parse(cluster.location(f"place-{next(numbers)}"))


@pytest.fixture
def requests() -> Iterator[FaultyRequests]:
    with closing(FaultyRequests()) as requests:
        yield requests


@pytest.fixture
def webhdfs(new_place: Callable[[], HdfsLocation], requests: FaultyRequests) -> WebHdfs:
    return connect(new_place(), SETTINGS, http=requests)


@pytest.fixture
def storage(webhdfs: WebHdfs) -> ChunkStorage:
    numbers = itertools.count()
    return HdfsChunkStorage(
        webhdfs, random_bytes=lambda count: next(numbers).to_bytes(count, "big")
    )


@pytest.fixture
def forgetful(storage: ChunkStorage) -> ChunkStorage:
    return storage


async def test_a_new_store_can_use_it_and_its_datanode_syncs(
    new_place: Callable[[], HdfsLocation],
) -> None:
    location = new_place()
    hdfs = connect(location, SETTINGS)
    opened = OpenedHdfs(hdfs, location, SETTINGS)
    with closing(opened):
        await opened.look()
        await opened.try_everything()
        await opened.open()
        writer = urlsplit(await hdfs.locate_writer("x"))
        answer = await hdfs.look(f"http://{writer.netloc}/conf?name={SYNC_SETTING}")
    assert json.loads(answer.body)["property"]["value"] == "true"


async def test_an_answer_that_is_lost_appends_nothing_twice(
    storage: ChunkStorage, requests: FaultyRequests
) -> None:
    requests.lost_answers = 1
    await storage.write(NAME, offset=0, data=[b"first,"])
    requests.lost_answers = 1
    await storage.write(NAME, offset=6, data=[b"second,"])
    await storage.write(NAME, offset=13, data=[b"third"])
    assert await storage.read(NAME, offset=0, length=18) == b"first,second,third"
    assert (await storage.info(NAME)).length == 18
    # The chunk is made again, since its name was not known to be whole; then there are the append
    # without an answer, one of nothing that has it synced, and the last one.
    assert requests.sent == ["PUT", "PUT", "POST", "POST", "POST"]


@pytest.mark.parametrize("length", [0, 5, 100_000])
async def test_a_part_of_an_append_is_completed(
    storage: ChunkStorage, requests: FaultyRequests, length: int
) -> None:
    """Unless a slow DataNode opens the file only when the rest is there: then its part lies behind
    or between, and the write is refused. The store goes on in a new chunk."""
    body = bytes(index % 251 for index in range(300_000))
    await storage.write(NAME, offset=0, data=[body])
    written = len(body)
    refusal = ""
    requests.cut_bodies = [length]
    try:
        for part in (body, b"end"):
            await storage.write(NAME, offset=written, data=[part])
            written += len(part)
    except StorageError as error:
        refusal = str(error)
    assert not refusal or "has other bytes" in refusal
    assert await storage.read(NAME, offset=0, length=written) == (body + body + b"end")[:written]


async def test_a_chunk_that_got_a_part_of_its_first_bytes_does_not_exist(
    webhdfs: WebHdfs, storage: ChunkStorage, requests: FaultyRequests
) -> None:
    requests.cut_bodies = [100_000, 5]
    await storage.write(NAME, offset=0, data=[b"x" * 300_000])
    assert [each.length for each in await storage.list_chunks("")] == [300_000]


async def test_what_others_appended_is_found_and_nothing_is_overwritten(
    webhdfs: WebHdfs, storage: ChunkStorage
) -> None:
    await storage.write(NAME, offset=0, data=[b"first,"])
    await webhdfs.append(file_path(NAME), [b"other"])
    with pytest.raises(StorageError, match="has other bytes from 6 on"):
        await storage.write(NAME, offset=6, data=[b"second"])
    assert await storage.read(NAME, offset=0, length=11) == b"first,other"


async def test_two_at_once_have_one_file_open_one_after_the_other(
    webhdfs: WebHdfs, storage: ChunkStorage
) -> None:
    """While a request has the file open, an append fails, and is repeated."""
    await storage.write(NAME, offset=0, data=[b"first,"])
    answer = await webhdfs._ask("POST", "APPEND", file_path(NAME))
    assert answer.location is not None
    with begun_request("POST", answer.location, b"second,third", 7):
        await trio.sleep(1.0)
        quick = webhdfs.with_limits(RepeatLimits(retry_seconds_max=0.0))
        other = HdfsChunkStorage(quick, random_bytes=bytes)
        with pytest.raises(StorageError, match="AlreadyBeingCreated"):
            await other.write(NAME, offset=6, data=[b"second,third"])
    # The connection is closed, and with it the file: what came stays. Who knew the length before
    # may append behind that, and then is told of other bytes; another asks for the length.
    later = HdfsChunkStorage(webhdfs, random_bytes=bytes)
    with trio.fail_after(60):
        while (await storage.info(NAME)).length < 13:  # noqa: ASYNC110 - no event tells it
            await trio.sleep(0.1)
    await later.write(NAME, offset=6, data=[b"second,third"])
    assert await storage.read(NAME, offset=0, length=18) == b"first,second,third"


async def test_chunks_outlive_a_kill_of_each_server(
    cluster: HdfsCluster, webhdfs: WebHdfs, storage: ChunkStorage
) -> None:
    await storage.write(NAME, offset=0, data=[b"first,"])
    cluster.kill("namenode-0")
    impatient = webhdfs.with_limits(RepeatLimits(retry_seconds_max=1.0))
    with pytest.raises(StorageError, match="cannot look up"):
        await HdfsChunkStorage(impatient, random_bytes=bytes).info(NAME)
    cluster.start_namenode()
    cluster.wait_until_ready()
    await storage.write(NAME, offset=6, data=[b"second,"])
    cluster.kill("datanode")
    cluster.start_datanode()
    await storage.write(NAME, offset=13, data=[b"third"])
    assert await storage.read(NAME, offset=0, length=18) == b"first,second,third"


async def test_a_file_that_a_dying_datanode_was_writing_can_be_read_again(
    cluster: HdfsCluster, webhdfs: WebHdfs, storage: ChunkStorage
) -> None:
    """Its only copy was being appended to. HDFS closes it for the next one who asks, after the
    minute for which it waits for the writer."""
    await storage.write(NAME, offset=0, data=[b"first,"])
    answer = await webhdfs._ask("POST", "APPEND", file_path(NAME))
    assert answer.location is not None
    with begun_request("POST", answer.location, b"x" * 1_000_000, 200_000):
        await trio.sleep(1.0)
        cluster.kill("datanode")
    cluster.start_datanode()
    with trio.fail_after(CLOSED_SECONDS_MAX):
        while True:
            try:
                assert await storage.read(NAME, offset=0, length=6) == b"first,"
                break
            except StorageError:
                await trio.sleep(1.0)
    # What was never acknowledged may be there; no chunk of the store counts it.
    assert (await storage.info(NAME)).length >= 6
