"""S3 as tier 2 behind a network that loses, delays and damages what is sent."""

from __future__ import annotations

import datetime
import math
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from typing import Any

import boto3
import pytest
import trio
import trio.testing
from botocore.exceptions import ClientError

from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.errors import ChunkNotFoundError, StorageError, StorageFullError
from segstore.tiers.api import ChunkInfo
from segstore.tiers.s3.failures import FailureKind, failure_of
from segstore.tiers.s3.objects import FoundObject, ObjectStore, RetryLimits, S3Client
from segstore.tiers.s3.opening import boto3_client
from segstore.tiers.s3.pieces import MIB, PieceSizes
from segstore.tiers.s3.settings import S3Settings
from segstore.tiers.s3.storage import S3ChunkStorage, S3Tier
from support.faults.faulty_http import FaultyHttpProxy, HttpFault, HttpRequest
from support.rare_parameters import mark_rare
from support.simulated.simulated_objects import SimulatedBucket

NAME = "scope/stream/0.#epoch.0#1$00000000000000000000"
QUICK = RetryLimits(attempts_max=4, pause_seconds_min=0.005, pause_seconds_max=0.02)
ONCE = RetryLimits(attempts_max=1)
CONTENT = random.Random(1).randbytes(4 * MIB)


class CountedClient:
    """A client that notes its requests, each with the bytes of objects in it."""

    def __init__(self, client: S3Client) -> None:
        self._client = client
        self._requests: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(self._client, name)

        def noted(**arguments: Any) -> Any:
            first, _, last = (
                arguments.get("Range", "bytes=0--1").removeprefix("bytes=").partition("-")
            )
            length = len(arguments.get("Body", b"")) or int(last) + 1 - int(first)
            self._requests.append((name, length))
            return call(**arguments)

        return call if name == "close" else noted

    def count(self, *names: str) -> int:
        """Return how many requests of these kinds there were."""
        return sum(name in names for name, _ in self._requests)

    def byte_count(self, name: str) -> int:
        """Return the bytes in requests of this kind."""
        return sum(length for kind, length in self._requests if kind == name)


class Bucket:
    """A bucket of a real server, reached directly or through a proxy."""

    def __init__(self, endpoint: str, name: str) -> None:
        self.name = name
        self.proxy = FaultyHttpProxy(endpoint)
        self._endpoint = endpoint
        self._clients: dict[S3Tier, CountedClient] = {}
        self.client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")

    def tier(
        self,
        endpoint: str | None = None,
        *,
        limits: RetryLimits = QUICK,
        sizes: PieceSizes = PieceSizes(),  # noqa: B008
        page_objects_max: int = 1000,
        read_seconds_max: float = 15.0,
    ) -> S3Tier:
        """Open a process's view of the bucket."""
        settings = S3Settings(endpoint_url=endpoint or self._endpoint)
        client = CountedClient(boto3_client(settings, read_seconds_max=read_seconds_max))
        objects = ObjectStore(
            client,
            bucket=self.name,
            prefix="store/",
            random=random.Random(1).random,
            limits=limits,
            page_objects_max=page_objects_max,
        )
        tier = S3Tier(objects, sizes=sizes)
        self._clients[tier] = client
        return tier

    def requests(self, tier: S3Tier) -> CountedClient:
        """Return the client that notes a process's requests."""
        return self._clients[tier]

    def owner(self, epoch: int = 1, endpoint: str | None = None) -> S3ChunkStorage:
        """Return a new process's chunks."""
        return self.tier(endpoint).owned_by(lambda: epoch)

    def objects(self) -> dict[str, int]:
        """Return all objects and their lengths."""
        found = self.client.list_objects_v2(Bucket=self.name).get("Contents", [])
        return {each["Key"]: each["Size"] for each in found}

    def close(self) -> None:
        for tier in self._clients:
            tier.close()
        self.client.close()


@pytest.fixture(params=["versitygw", pytest.param("moto", marks=pytest.mark.proof)])
def bucket(request: pytest.FixtureRequest, new_bucket: Callable[[str], str]) -> Iterator[Bucket]:
    endpoint = request.getfixturevalue(request.param)
    bucket = Bucket(endpoint, new_bucket(endpoint))
    yield bucket
    bucket.close()


@asynccontextmanager
async def proxied(bucket: Bucket) -> AsyncIterator[str]:
    """Run the bucket's proxy; its URL."""
    async with trio.open_nursery() as nursery:
        yield await nursery.start(bucket.proxy.run)
        await bucket.proxy.wait_settled()
        nursery.cancel_scope.cancel()


def on_puts(*faults: HttpFault) -> Callable[[HttpRequest], HttpFault]:
    """Return these faults for the first puts, one each."""
    left = list(faults)
    return lambda request: left.pop(0) if request.method == "PUT" and left else HttpFault.NONE


FAULTS = sorted(
    {*HttpFault} - {HttpFault.NONE, HttpFault.BAD_KEY, HttpFault.FORBIDDEN, HttpFault.SKEWED},
    key=lambda fault: fault.value,
)


def every_fifth(rng: random.Random) -> Callable[[HttpRequest], HttpFault]:
    """Return a fault at every fifth request: all kinds in turn, in a random order."""
    usual = [HttpFault.NONE] * 4
    kinds = rng.sample(FAULTS, len(FAULTS))
    faults = cycle([each for kind in kinds for each in (*usual, kind)])
    return lambda _: next(faults)


class Progress:
    """The known state of a segment's bytes, which are those of ``CONTENT``."""

    def __init__(self) -> None:
        self.acked = 0
        self.attempted = 0
        self.checked = 0


SEGMENT = "scope/stream/0.#epoch.0#1"
TOTAL_BYTES = 200_000
ROLLOVER_BYTES = 50_000


def segments_of(tier: S3Tier, epoch: int) -> ChunkedSegmentStorage:
    return ChunkedSegmentStorage(tier.owned_by(lambda: epoch), epoch=lambda: epoch)


async def append(storage: ChunkedSegmentStorage, progress: Progress, rng: random.Random) -> None:
    """Append as a storage writer does: it repeats what failed."""
    while True:
        try:
            stored = await storage.stored_length(SEGMENT)
            break
        except StorageError:
            await trio.sleep(0.01)
    assert progress.acked <= stored <= progress.attempted
    while (offset := progress.acked) < TOTAL_BYTES:
        data = CONTENT[offset : offset + rng.choice([1, 100, 3_000, 20_000])]
        progress.attempted = max(progress.attempted, offset + len(data))
        while True:
            try:
                await storage.write(
                    SEGMENT, offset=offset, data=[data], rollover_bytes=ROLLOVER_BYTES
                )
                break
            except StorageError:
                await trio.sleep(0.01)
        progress.acked = offset + len(data)


async def look(storage: ChunkedSegmentStorage, progress: Progress, rng: random.Random) -> None:
    """Read what was acknowledged, anywhere."""
    while True:
        await trio.sleep(0.02)
        if progress.acked == 0:
            continue
        offset = rng.randrange(progress.acked)
        length = min(progress.acked - offset, 30_000)
        try:
            data = await storage.read(SEGMENT, offset=offset, length=length)
        except StorageError:
            continue
        assert data == CONTENT[offset : offset + len(data)]
        progress.checked += len(data)


async def content_of(storage: ChunkedSegmentStorage, length: int) -> bytes:
    content = b""
    while len(content) < length:
        content += await storage.read(
            SEGMENT, offset=len(content), length=min(length - len(content), 100_000)
        )
    return content


@pytest.mark.parametrize("seed", mark_rare(range(3), 1))
@pytest.mark.timeout(240)
async def test_nothing_is_lost_and_nothing_doubled(bucket: Bucket, seed: int) -> None:
    """A segment is written through faults by owners that die, each followed by another."""
    rng = random.Random(seed)
    bucket.proxy.next_fault = every_fifth(rng)
    bucket.proxy.next_delay = lambda _: rng.random() * 0.01
    progress, epoch = Progress(), 0
    async with proxied(bucket) as endpoint:
        while progress.acked < TOTAL_BYTES:
            epoch += 1
            tier = bucket.tier(endpoint, sizes=PieceSizes(small_bytes=16 * 1024))
            storage = segments_of(tier, epoch)
            # Dies at some time, perhaps in the middle of a write or a recovery.
            with trio.move_on_after(rng.uniform(0.3, 3.0)):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(look, storage, progress, rng)
                    await append(storage, progress, rng)
                    nursery.cancel_scope.cancel()
    assert len({fault for _, fault in bucket.proxy.requests}) > len(FAULTS) // 2
    storage = segments_of(bucket.tier(), epoch + 1)
    stored = await storage.stored_length(SEGMENT)
    assert progress.acked <= stored <= progress.attempted
    assert await content_of(storage, stored) == CONTENT[:stored]
    assert progress.checked > 0
    await storage.delete(SEGMENT)
    await storage.collect()
    system = "store/_system/chunks-0$"
    assert [key for key in bucket.objects() if not key.startswith(system)] == []


async def test_a_late_put_into_a_chunk_that_was_truncated_away_changes_nothing(
    bucket: Bucket,
) -> None:
    async with proxied(bucket) as endpoint:
        early = segments_of(bucket.tier(endpoint, limits=ONCE), 1)
        await early.write(SEGMENT, offset=0, data=[CONTENT[:100]], rollover_bytes=0)
        bucket.proxy.next_fault = on_puts(HttpFault.LATE)
        bucket.proxy.late_seconds = math.inf
        with pytest.raises(StorageError):
            await early.write(SEGMENT, offset=100, data=[CONTENT[100:200]], rollover_bytes=0)
        owner = segments_of(bucket.tier(), 2)
        assert await owner.stored_length(SEGMENT) == 100
        await owner.write(SEGMENT, offset=100, data=[CONTENT[100:150]], rollover_bytes=0)
        await owner.truncate(SEGMENT, offset=120)
        await owner.collect()
        assert [key for key in bucket.objects() if ".E1.1.chunk/p" in key] == []
    assert [key for key in bucket.objects() if ".E1.1.chunk/p" in key] != [], "it was put late"
    await owner.write(SEGMENT, offset=150, data=[CONTENT[150:180]], rollover_bytes=0)
    for storage in (owner, segments_of(bucket.tier(), 3)):
        assert await storage.stored_length(SEGMENT) == 180
        assert await storage.read(SEGMENT, offset=100, length=80) == CONTENT[100:180]
        with pytest.raises(StorageError):
            await storage.read(SEGMENT, offset=99, length=1)


def puts_lists_gets(bucket: Bucket, tier: S3Tier) -> tuple[int, int, int]:
    """Return how many requests of each kind a process has sent."""
    client = bucket.requests(tier)
    return (
        client.count("put_object"),
        client.count("list_objects_v2"),
        client.count("get_object"),
    )


async def test_what_flushes_cost_in_requests(bucket: Bucket) -> None:
    tier = bucket.tier()
    storage = segments_of(tier, 1)
    await storage.write(SEGMENT, offset=0, data=[CONTENT[:100]], rollover_bytes=1000)
    for offset in range(100, 1000, 100):
        before = puts_lists_gets(bucket, tier)
        await storage.write(
            SEGMENT, offset=offset, data=[CONTENT[offset : offset + 100]], rollover_bytes=1000
        )
        assert puts_lists_gets(bucket, tier) == (before[0] + 1, before[1], before[2])
    before = puts_lists_gets(bucket, tier)
    await storage.write(SEGMENT, offset=1000, data=[CONTENT[1000:1100]], rollover_bytes=1000)
    assert puts_lists_gets(bucket, tier) == (before[0] + 2, before[1] + 1, before[2])


@pytest.mark.parametrize(
    "fault", [HttpFault.REPLY_LOST, HttpFault.ERROR_AFTER, HttpFault.SLOW_DOWN, HttpFault.NOT_SENT]
)
async def test_a_put_that_is_tried_again_is_there_once(bucket: Bucket, fault: HttpFault) -> None:
    bucket.proxy.next_fault = on_puts(fault, fault)
    async with proxied(bucket) as endpoint:
        tier = bucket.tier(endpoint)
        await tier.owned_by(lambda: 1).write(NAME, offset=0, data=[b"hello"])
    assert bucket.requests(tier).count("put_object") == 3
    assert list(bucket.objects().values()) == [5]
    assert await bucket.owner(2).read(NAME, offset=0, length=5) == b"hello"


@pytest.mark.proof
async def test_a_put_that_takes_too_long_is_there_once(bucket: Bucket) -> None:
    delays = [1.5, 1.5]
    bucket.proxy.next_delay = lambda request: (
        delays.pop() if request.method == "PUT" and delays else 0.0
    )
    async with proxied(bucket) as endpoint:
        tier = bucket.tier(endpoint, read_seconds_max=0.5)
        await tier.owned_by(lambda: 1).write(NAME, offset=0, data=[b"hello"])
        assert bucket.requests(tier).count("put_object") >= 3
        await trio.sleep(1.5)  # until the server has had them all
    assert list(bucket.objects().values()) == [5]
    assert await bucket.owner(2).read(NAME, offset=0, length=5) == b"hello"


async def test_a_request_is_tried_only_so_often(bucket: Bucket) -> None:
    bucket.proxy.next_fault = lambda _: HttpFault.SLOW_DOWN
    async with proxied(bucket) as endpoint:
        tier = bucket.tier(endpoint)
        with pytest.raises(StorageError, match=r"cannot list .* \(4 tries\): SlowDown: injected"):
            await tier.owned_by(lambda: 1).info(NAME)
    assert bucket.requests(tier).count("list_objects_v2") == 4


async def test_a_full_bucket_is_told_at_once_with_its_name(bucket: Bucket) -> None:
    bucket.proxy.next_fault = on_puts(HttpFault.FULL)
    async with proxied(bucket) as endpoint:
        tier = bucket.tier(endpoint)
        with pytest.raises(StorageFullError, match="cannot put") as caught:
            await tier.owned_by(lambda: 1).write(NAME, offset=0, data=[b"hello"])
        assert bucket.requests(tier).count("put_object") == 1
        assert re.fullmatch(
            r"tier 2 in s3://\S+ is full: QuotaExceeded: injected", caught.value.reason
        )
        await tier.owned_by(lambda: 1).write(NAME, offset=0, data=[b"hello"])


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (507, "InsufficientStorage"),
        (507, "XMinioStorageFull"),
        (400, "XMinioAdminBucketQuotaExceeded"),
        (403, "QuotaExceeded"),
        (507, "AnotherVendorsCode"),
    ],
)
def test_vendors_say_in_many_words_that_they_are_full(status: int, code: str) -> None:
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    assert failure_of(ClientError(answer, "PutObject")).kind is FailureKind.FULL  # type: ignore[arg-type]


async def test_owners_that_need_a_listing_at_the_same_time_share_one(bucket: Bucket) -> None:
    tier = bucket.tier()
    names = [f"scope/stream/{number}.#epoch.0#1$" + "0" * 20 for number in range(70)]
    owners = [tier.owned_by(lambda: 1) for _ in range(6)]
    for name in names[:3]:
        await owners[0].write(name, offset=0, data=[name.encode()])
    expected = [len(name) for name in names[:3]] + [None] * 67
    client = bucket.requests(tier)
    lists = client.count("list_objects_v2")
    found: list[list[int | None]] = []

    async def look(owner: S3ChunkStorage) -> None:
        found.append(await owner.lengths(names))

    for _ in range(2):
        async with trio.open_nursery() as nursery:
            for owner in owners:
                nursery.start_soon(look, owner)
        assert client.count("list_objects_v2") == lists + 1
        lists += 1
    assert found == [expected] * 12
    # What was listed is remembered by each owner.
    assert await owners[5].read(names[2], offset=0, length=5) == b"scope"
    assert client.count("list_objects_v2") == lists


@pytest.mark.parametrize("first_fails", [False, True])
async def test_a_shared_listing_has_what_was_there_when_it_was_asked_for(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, first_fails: bool
) -> None:
    tier = bucket.tier()
    first, second = tier.owned_by(lambda: 1), tier.owned_by(lambda: 1)
    names = [f"scope/stream/{number}.#epoch.0#1$" + "0" * 20 for number in range(70)]
    listed, may_end = trio.Event(), trio.Event()
    found: dict[str, list[int | None]] = {}
    list_all = tier.objects.list_all

    async def list_slowly(prefix: str) -> list[FoundObject]:
        answer = await list_all(prefix)
        if not listed.is_set():
            listed.set()
            await may_end.wait()
            if first_fails:
                raise StorageError("the connection was lost")
        return answer

    async def look(key: str, owner: S3ChunkStorage) -> None:
        with suppress(StorageError):
            found[key] = await owner.lengths(names)

    await second.write(names[0], offset=0, data=[b"one"])
    monkeypatch.setattr(tier.objects, "list_all", list_slowly)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(look, "first", first)
        await listed.wait()
        await second.write(names[1], offset=0, data=[b"three"])
        nursery.start_soon(look, "second", second)
        await trio.testing.wait_all_tasks_blocked()
        may_end.set()
    assert found.get("first") == (None if first_fails else [3] + [None] * 69)
    assert found["second"] == [3, 5] + [None] * 68


async def test_a_late_put_of_an_earlier_owner_covers_nothing(bucket: Bucket) -> None:
    async with proxied(bucket) as endpoint:
        early = bucket.tier(endpoint, limits=ONCE).owned_by(lambda: 1)
        await early.write(NAME, offset=0, data=[b"a" * 100])
        bucket.proxy.next_fault = on_puts(HttpFault.LATE)
        bucket.proxy.late_seconds = math.inf
        with pytest.raises(StorageError):
            await early.write(NAME, offset=100, data=[b"z" * 100])
        owner = bucket.owner(2)
        assert await owner.info(NAME) == ChunkInfo(NAME, 100)
        await owner.write(NAME, offset=100, data=[b"b" * 50])
    assert any(
        name.endswith("0000000001.0000000002.000000000.0000000c8") for name in bucket.objects()
    )
    third = bucket.owner(3)
    assert await third.read(NAME, offset=0, length=150) == b"a" * 100 + b"b" * 50
    assert await owner.read(NAME, offset=0, length=150) == b"a" * 100 + b"b" * 50


async def test_a_late_put_of_an_abandoned_try_covers_nothing(bucket: Bucket) -> None:
    async with proxied(bucket) as endpoint:
        owner = bucket.tier(endpoint, limits=ONCE).owned_by(lambda: 1)
        bucket.proxy.next_fault = on_puts(HttpFault.LATE)
        bucket.proxy.late_seconds = math.inf
        with pytest.raises(StorageError):
            await owner.write(NAME, offset=0, data=[b"old"])
        await owner.write(NAME, offset=0, data=[b"new!"])
    assert len(bucket.objects()) == 2
    assert await bucket.owner(2).read(NAME, offset=0, length=4) == b"new!"


async def test_an_owner_that_was_followed_writes_no_more(bucket: Bucket) -> None:
    early = bucket.owner(1)
    await early.write(NAME, offset=0, data=[b"abc"])
    await bucket.owner(2).write(NAME, offset=3, data=[b"def"])
    late = bucket.owner(1)
    with pytest.raises(StorageError, match="epoch 2 of its container: this is epoch 1"):
        await late.write(NAME, offset=6, data=[b"ghi"])
    with pytest.raises(StorageError, match="writes no more"):
        await late.delete(NAME)
    # One that has not noticed keeps what the later owner wrote, too.
    await early.write(NAME, offset=3, data=[b"xyz"])
    assert await bucket.owner(3).read(NAME, offset=0, length=6) == b"abcdef"


async def test_two_owners_of_one_epoch_are_noticed(bucket: Bucket) -> None:
    first, second = bucket.owner(), bucket.owner()
    assert await second.list_chunks("") == []
    await first.write(NAME + "x", offset=0, data=[b"abc"])
    with pytest.raises(StorageError, match="written by another process"):
        await second.write(NAME + "x", offset=0, data=[b"abd"])


async def test_bytes_that_are_damaged_on_their_way_are_read_again(bucket: Bucket) -> None:
    await bucket.owner().write(NAME, offset=0, data=[CONTENT])
    faults = [HttpFault.TRUNCATED, HttpFault.CORRUPT, HttpFault.CORRUPT]
    bucket.proxy.next_fault = lambda request: (
        faults.pop() if request.reads_object and faults else HttpFault.NONE
    )
    async with proxied(bucket) as endpoint:
        tier = bucket.tier(endpoint)
        data = await tier.owned_by(lambda: 2).read(NAME, offset=1_000_000, length=700_000)
    assert data == CONTENT[1_000_000:1_700_000]
    assert bucket.requests(tier).count("get_object") == 4
    assert bucket.requests(tier).byte_count("get_object") == 4 * 3 * 512 * 1024


def overwrite(bucket: Bucket, damage: Callable[[bytes], bytes]) -> str:
    (key,) = bucket.objects()
    found = bucket.client.get_object(Bucket=bucket.name, Key=key)
    body = found["Body"].read()
    bucket.client.put_object(
        Bucket=bucket.name, Key=key, Body=damage(body), Metadata=found["Metadata"]
    )
    return key


async def test_a_damaged_object_is_named_and_not_read(bucket: Bucket) -> None:
    await bucket.owner().write(NAME, offset=0, data=[CONTENT])
    key = overwrite(bucket, lambda body: body[:-1] + bytes([body[-1] ^ 1]))
    owner = bucket.owner(2)
    with pytest.raises(StorageError) as caught:
        await owner.read(NAME, offset=4 * MIB - 1, length=1)
    assert key in str(caught.value)
    assert "do not match their checksum" in str(caught.value)
    assert await owner.read(NAME, offset=0, length=1) == CONTENT[:1]


async def test_an_object_of_another_length_is_damage(bucket: Bucket) -> None:
    await bucket.owner().write(NAME, offset=0, data=[b"hello"])
    reader = bucket.owner(2)
    assert await reader.info(NAME) == ChunkInfo(NAME, 5)
    overwrite(bucket, lambda body: body + b"!")
    with pytest.raises(StorageError, match="is damaged: it has 6 bytes"):
        await reader.read(NAME, offset=0, length=5)
    with pytest.raises(StorageError, match="is damaged: it has 6 bytes, not 5"):
        await bucket.owner(3).info(NAME)


@pytest.mark.proof
async def test_full_flushes_become_few_objects(bucket: Bucket) -> None:
    """The test counts the requests of 4 MiB flushes, and the objects in the bucket after them."""
    tier = bucket.tier(sizes=PieceSizes(joined_bytes=32 * MIB))
    owner = tier.owned_by(lambda: 1)
    for number in range(16):
        await owner.write(NAME, offset=number * 4 * MIB, data=[CONTENT])
    lengths = sorted(bucket.objects().values())
    assert lengths == [32 * MIB, 32 * MIB]
    assert puts_lists_gets(bucket, tier) == (16, 1, 0)
    client = bucket.requests(tier)
    assert client.count("upload_part_copy") == 2 * 4
    assert client.count("create_multipart_upload", "complete_multipart_upload") == 2 * 2
    assert client.byte_count("put_object") == 96 * MIB
    reader = bucket.tier()
    data = await reader.owned_by(lambda: 2).read(NAME, offset=28 * MIB - 5, length=8 * MIB)
    assert data == CONTENT[-5:] + CONTENT + CONTENT[: 4 * MIB - 5]
    assert bucket.client.list_multipart_uploads(Bucket=bucket.name).get("Uploads", []) == []


async def test_small_flushes_become_few_objects(bucket: Bucket) -> None:
    tier = bucket.tier()
    owner = tier.owned_by(lambda: 1)
    for number in range(64):
        await owner.write(NAME, offset=number * 100, data=[CONTENT[number * 100 :][:100]])
    assert puts_lists_gets(bucket, tier) == (64, 1, 0)
    assert len(bucket.objects()) <= 8 + 16
    assert await bucket.owner(2).read(NAME, offset=0, length=6_400) == CONTENT[:6_400]
    # An owner that remembers nothing reads back what it writes again.
    other = bucket.tier()
    await other.owned_by(lambda: 2).write(NAME, offset=6_400, data=[b"x" * 6_400])
    assert bucket.requests(other).count("get_object", "head_object") <= 2 * 9
    data = await bucket.owner(3).read(NAME, offset=0, length=12_800)
    assert data == CONTENT[:6_400] + b"x" * 6_400


async def test_a_join_that_fails_loses_nothing_and_leaves_no_upload(bucket: Bucket) -> None:
    sizes = PieceSizes(joined_bytes=16 * MIB)

    def next_fault(request: HttpRequest) -> HttpFault:
        fails = request.method == "POST" and "uploadId=" in request.target
        return HttpFault.ERROR if fails else HttpFault.NONE

    bucket.proxy.next_fault = next_fault
    async with proxied(bucket) as endpoint:
        owner = bucket.tier(endpoint, sizes=sizes).owned_by(lambda: 1)
        for number in range(4):
            await owner.write(NAME, offset=number * 4 * MIB, data=[CONTENT])
    assert bucket.client.list_multipart_uploads(Bucket=bucket.name).get("Uploads", []) == []
    reader = bucket.owner(2)
    assert await reader.info(NAME) == ChunkInfo(NAME, 16 * MIB)
    assert await reader.read(NAME, offset=9 * MIB, length=MIB) == CONTENT[MIB : 2 * MIB]


async def test_a_join_whose_reply_is_lost_is_done(bucket: Bucket) -> None:
    lost: list[HttpRequest] = []

    def next_fault(request: HttpRequest) -> HttpFault:
        if request.method == "POST" and "uploadId=" in request.target and not lost:
            lost.append(request)
            return HttpFault.REPLY_LOST
        return HttpFault.NONE

    bucket.proxy.next_fault = next_fault
    async with proxied(bucket) as endpoint:
        tier = bucket.tier(endpoint, sizes=PieceSizes(joined_bytes=16 * MIB))
        owner = tier.owned_by(lambda: 1)
        for number in range(4):
            await owner.write(NAME, offset=number * 4 * MIB, data=[CONTENT])
    assert lost
    assert list(bucket.objects().values()) == [16 * MIB]


async def test_what_a_killed_process_began_to_upload_is_aborted(bucket: Bucket) -> None:
    bucket.client.create_multipart_upload(Bucket=bucket.name, Key="store/a.chunk/p")
    bucket.client.create_multipart_upload(Bucket=bucket.name, Key="others/a")
    objects = bucket.tier().objects
    # Some servers say that every upload began in 2010.
    assert await objects.abort_old_uploads(older_than_seconds=50 * 365 * 86_400) == 0
    assert await objects.abort_old_uploads(older_than_seconds=-60) == 1
    (left,) = bucket.client.list_multipart_uploads(Bucket=bucket.name)["Uploads"]
    assert left["Key"] == "others/a"


@pytest.mark.parametrize("ahead_days", [-400, 2])
async def test_uploads_are_old_by_the_clock_of_the_server(ahead_days: int) -> None:
    ahead = datetime.timedelta(days=ahead_days)
    client = SimulatedBucket(lambda: datetime.datetime.now(datetime.UTC) + ahead)
    client.create_multipart_upload(Key="store/a", Metadata={})
    objects = ObjectStore(client, bucket="b", prefix="store/", random=random.random, limits=QUICK)
    assert await objects.abort_old_uploads(older_than_seconds=86_400) == 0
    assert await objects.abort_old_uploads(older_than_seconds=-86_400) == 1


async def test_a_deletion_that_is_cut_short_leaves_no_part_of_a_chunk(bucket: Bucket) -> None:
    owner = bucket.owner()
    for offset, length in [(0, 1000), (1000, 400), (1400, 100)]:
        await owner.write(NAME, offset=offset, data=[CONTENT[:length]])
    assert len(bucket.objects()) == 3
    left = [HttpFault.NONE, HttpFault.NONE]
    bucket.proxy.next_fault = lambda request: (
        HttpFault.NONE if request.method != "DELETE" else left.pop() if left else HttpFault.ERROR
    )
    async with proxied(bucket) as endpoint:
        with pytest.raises(StorageError, match="cannot delete"):
            await bucket.owner(2, endpoint).delete(NAME)
    assert len(bucket.objects()) == 2  # a piece, and the word that it is deleted
    following = bucket.owner(3)
    assert await following.list_chunks("") == []
    with pytest.raises(ChunkNotFoundError):
        await following.info(NAME)
    await following.write(NAME, offset=0, data=[b"new"])
    assert await bucket.owner(4).read(NAME, offset=0, length=3) == b"new"
    await following.delete(NAME)
    assert bucket.objects() == {}


async def test_late_pieces_of_a_deleted_chunk_do_not_come_back(bucket: Bucket) -> None:
    async with proxied(bucket) as endpoint:
        owner = bucket.tier(endpoint, limits=ONCE).owned_by(lambda: 1)
        await owner.write(NAME, offset=0, data=[b"a" * 1000])
        bucket.proxy.next_fault = on_puts(HttpFault.LATE)
        bucket.proxy.late_seconds = math.inf
        with pytest.raises(StorageError):
            await owner.write(NAME, offset=1000, data=[b"b" * 10])
        await owner.delete(NAME)
    assert len(bucket.objects()) == 1
    following = bucket.owner(2)
    assert await following.list_chunks("scope/") == []
    await following.write(NAME, offset=0, data=[b"c" * 2000])
    assert await following.info(NAME) == ChunkInfo(NAME, 2000)
    assert len(bucket.objects()) == 1
    assert await bucket.owner(3).read(NAME, offset=990, length=30) == b"c" * 30


async def test_many_objects_are_listed_page_by_page(bucket: Bucket) -> None:
    for number in range(10):
        key = f"store/a$0.chunk/p0000000001.{number:010d}.{number:09x}.000000001"
        bucket.client.put_object(Bucket=bucket.name, Key=key, Body=b"x")
    tier = bucket.tier(page_objects_max=3)
    assert await tier.owned_by(lambda: 1).list_chunks("a$") == [ChunkInfo("a$0", 10)]
    assert bucket.requests(tier).count("list_objects_v2") == 4
