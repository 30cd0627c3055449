"""Each kind of request with each kind of token, over a real connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from pravega_security.delegation_tokens import (
    AUDIENCE,
    CLOCKS_APART_SECONDS,
    SUBJECT,
    TokenMinter,
    TokenVerifier,
    encode_token,
)
from pravega_security.resources import Level, stream_resource
from pravega_wire import commands as wire
from pravega_wire.codec import slots_of
from pravega_wire.fields import Fixed, Prefixed
from pravega_wire.names import transaction_segment_name
from segstore.network.connection import HANDLERS
from segstore.network.token_checks import CHECK_FAILED, EXPIRED, LOOK_SECONDS_MAX
from segstore.testing.wire_client import WireClient
from support.models.memory_store import MemoryStore, memory_store

NOW = 1_764_266_400
SECONDS = 600
SEGMENT, OTHER, SYSTEM = "s/t/0.#epoch.0", "s/tt/0.#epoch.0", "_system/_tables/a"
SOURCE = transaction_segment_name(SEGMENT, bytes(16))
WRITER, WRITER_2 = bytes(range(16)), bytes(range(1, 17))
STREAM = stream_resource("s", "t")
WITHOUT_TOKEN = {wire.Hello, wire.KeepAlive, wire.AskDelays}
MASTER_ALONE = {wire.FlushToStorage, wire.AskMetrics}
NOT_SERVED = {wire.LocateOffset, wire.ListStorageChunks, wire.FlushToStorage}
READS = {
    wire.ReadSegment,
    wire.GetStreamSegmentInfo,
    wire.GetSegmentAttribute,
    wire.GetTableSegmentInfo,
    wire.ReadTable,
    wire.ReadTableKeys,
    wire.ReadTableEntries,
    wire.ReadTableEntriesDelta,
    wire.PlanScan,
    wire.HoldChunks,
    wire.LocateOffset,
    wire.ListStorageChunks,
    wire.AskMetrics,
}
"""The requests that change nothing. All others need ``READ_UPDATE``."""
REQUESTS: list[type[wire.Request]] = [
    kind
    for kind in wire.COMMANDS.values()
    if issubclass(kind, wire.Request) and (kind in HANDLERS or kind is wire.ReadSegment)
]


class Keys:
    """One key."""

    current = b"k" * 86
    all_valid = (current,)

    def look(self) -> None:
        """Notice no other key."""


KEYS = Keys()


class RunningClock:
    """A clock that begins at ``NOW`` and runs with trio's."""

    def __init__(self) -> None:
        self._began: float | None = None

    def __call__(self) -> int:
        if self._began is None:
            self._began = trio.current_time()
        return NOW + int(trio.current_time() - self._began)


@pytest.fixture
def verifier() -> TokenVerifier:
    return TokenVerifier(KEYS, RunningClock())


@pytest.fixture
async def store(verifier: TokenVerifier) -> AsyncIterator[MemoryStore]:
    async with memory_store(tokens=verifier) as store:
        for segment in (SEGMENT, OTHER, SOURCE):
            await store.container.create_segment(segment)
        await store.container.append(SEGMENT, b"events")
        yield store


@pytest.fixture
async def client(store: MemoryStore) -> WireClient:
    return store.connect()


def mint(resource: str = STREAM, level: Level = Level.READ_UPDATE, *, minted: int = NOW) -> str:
    return TokenMinter(KEYS, SECONDS, lambda: minted).mint(resource, level)


def master(minted: int = NOW) -> str:
    return TokenMinter(KEYS, SECONDS, lambda: minted).mint_master()


def value_of(name: str, kind: Any) -> Any:
    """Return a value of a field of a request about ``SEGMENT``."""
    match kind:
        case Fixed("?"):
            return True
        case Fixed("16s"):
            return WRITER
        case Fixed():
            return 1
        case Prefixed(_, text=True):
            return SOURCE if name in ("source", "sources") else SEGMENT
        case [item]:
            return (value_of(name, item),)
        case type() if issubclass(kind, msgspec.Struct):
            return kind(*[value_of(slot.name, slot.kind) for slot in slots_of(kind)])
    return b"some bytes"


def make(kind: type[wire.Request], token: str, segment: str = SEGMENT) -> wire.Request:
    request = kind(*[value_of(slot.name, slot.kind) for slot in slots_of(kind)])
    changes: dict[str, Any] = {"request_id": 77, "delegation_token": token}
    for field in ("segment", "target", "parent_segment"):
        if hasattr(request, field):
            changes[field] = segment
    return msgspec.structs.replace(request, **changes)


def refusal(code: int) -> wire.AuthTokenCheckFailed:
    return wire.AuthTokenCheckFailed(77, "", code)


def bad_tokens(kind: type[wire.Request]) -> Iterator[tuple[str, str, int]]:
    """Return tokens that do not do, each with what it is and the code of the refusal."""
    yield "no token", "", CHECK_FAILED
    yield "nonsense", "a.b.c", CHECK_FAILED
    yield "another signature", mint()[:-4] + "AAAA", CHECK_FAILED
    yield "expired", mint(minted=NOW - SECONDS), EXPIRED
    yield "expired, of our own", master(NOW - SECONDS), EXPIRED
    yield "another stream", mint(stream_resource("s", "tt")), CHECK_FAILED
    yield "another scope", mint(stream_resource("ss", "t")), CHECK_FAILED
    yield "no level", mint(level=Level.NONE), CHECK_FAILED
    if kind not in READS:
        yield "for reading", mint(level=Level.READ), CHECK_FAILED
    if kind in MASTER_ALONE:
        yield "for a stream alone", mint(), CHECK_FAILED
        yield "for a stream alone, with READ", mint(level=Level.READ), CHECK_FAILED


# ---- The table -----------------------------------------------------------------------------------


def test_each_handler_declares_the_level_of_its_requests() -> None:
    assert len(REQUESTS) > 20
    for kind, handler in HANDLERS.items():
        has_token = "delegation_token" in kind.__struct_fields__
        assert has_token == (kind not in WITHOUT_TOKEN)
        if not has_token:
            assert handler.level is Level.NONE
        else:
            assert handler.level is (Level.READ if kind in READS else Level.READ_UPDATE), kind
    served = set(REQUESTS) | {wire.Hello, wire.KeepAlive}
    with_token = {
        kind for kind in wire.COMMANDS.values() if "delegation_token" in kind.__struct_fields__
    }
    assert with_token <= served


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
async def test_what_a_token_does_not_allow_is_refused(
    store: MemoryStore, client: WireClient, kind: type[wire.Request]
) -> None:
    if kind in WITHOUT_TOKEN:
        assert isinstance(await client.call(wire.AskDelays(77)), wire.DelaysTold)
        return
    before = await store.container.find_info(SEGMENT)
    for what, token, code in bad_tokens(kind):
        assert await client.call(make(kind, token)) == refusal(code), what
    allowed = mint()
    assert await client.call(make(kind, allowed, OTHER)) == refusal(CHECK_FAILED) or (
        kind in MASTER_ALONE
    )
    assert await client.call(make(kind, allowed, SYSTEM)) == refusal(CHECK_FAILED) or (
        kind in MASTER_ALONE
    )
    assert await store.container.find_info(SEGMENT) == before
    assert await store.container.find_info(SOURCE)
    # The connection is still there.
    assert await client.call(wire.KeepAlive()) == wire.KeepAlive()


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
async def test_what_a_token_allows_is_served(store: MemoryStore, kind: type[wire.Request]) -> None:
    if kind in WITHOUT_TOKEN:
        return
    level = Level.READ if kind in READS else Level.READ_UPDATE
    tokens = [master()] if kind in MASTER_ALONE else [mint(level=level), master()]
    for token in tokens:
        client = store.connect()
        reply = await client.call(make(kind, token))
        assert not isinstance(reply, wire.AuthTokenCheckFailed)
        assert isinstance(reply, wire.OperationUnsupported) == (
            kind in NOT_SERVED or kind is wire.PlanScan
        )


async def test_an_expired_token_is_refused_with_its_own_code(
    client: WireClient, autojump_clock: trio.testing.MockClock
) -> None:
    token = mint()
    setup = wire.SetupAppend(77, WRITER, SEGMENT, token)
    read = wire.ReadSegment(SEGMENT, 0, 100, token, 77)
    assert isinstance(await client.call(read), wire.SegmentRead)
    await trio.sleep(SECONDS)
    assert await client.call(read) == refusal(EXPIRED)
    assert await client.call(setup) == refusal(EXPIRED)
    renewed = mint(minted=NOW + SECONDS)
    again = msgspec.structs.replace(setup, delegation_token=renewed)
    assert isinstance(await client.call(again), wire.AppendSetup)


async def test_a_token_that_does_not_count_yet_is_refused_with_that_code(
    client: WireClient, autojump_clock: trio.testing.MockClock
) -> None:
    begins = NOW + 100
    claims = {"sub": SUBJECT, "aud": AUDIENCE, "nbf": begins, "exp": begins + SECONDS}
    token = encode_token({**claims, STREAM: "READ_UPDATE"}, KEYS.current)
    setup = wire.SetupAppend(77, WRITER, SEGMENT, token)
    read = wire.ReadSegment(SEGMENT, 0, 100, token, 77)
    assert await client.call(read) == refusal(EXPIRED)
    assert await client.call(setup) == refusal(EXPIRED)
    await trio.sleep(100 - CLOCKS_APART_SECONDS)
    assert isinstance(await client.call(read), wire.SegmentRead)
    assert isinstance(await client.call(setup), wire.AppendSetup)


async def test_each_segment_of_a_merge_needs_the_level(
    store: MemoryStore, client: WireClient
) -> None:
    mine, foreign = mint(), mint(stream_resource("s", "tt"))
    for target, source, token in (
        (SEGMENT, OTHER, mine),
        (OTHER, SEGMENT, mine),
        (SEGMENT, OTHER, foreign),
        (OTHER, SEGMENT, foreign),
    ):
        merge = wire.MergeSegments(77, target, source, token)
        assert await client.call(merge) == refusal(CHECK_FAILED)
        sources = (*(f"{target}x" for _ in range(100)), source)
        batch = wire.MergeSegmentsBatch(77, target, sources, token)
        assert await client.call(batch) == refusal(CHECK_FAILED)
    many = wire.MergeSegmentsBatch(77, SEGMENT, (SOURCE,) * 1000, mine)
    assert isinstance(await client.call(many), wire.ErrorMessage)
    assert await client.call(wire.MergeSegmentsBatch(77, SEGMENT, (OTHER,) * 1000, mine)) == (
        refusal(CHECK_FAILED)
    )


async def test_a_refused_request_is_logged_once_and_without_its_token(
    store: MemoryStore, client: WireClient
) -> None:
    token = mint(level=Level.READ)
    with capture_logs() as logs:
        for _ in range(3):
            await client.call(wire.SealSegment(77, SEGMENT, token))
        await client.call(wire.SealSegment(77, SEGMENT, "nonsense"))
    [log] = [log for log in logs if log["event"] == "request refused"]
    assert log["request"] == "SealSegment"
    assert log["reason"] == f"the token does not allow READ_UPDATE of {SEGMENT!r}"
    assert token not in str(logs)


# ---- Appends -------------------------------------------------------------------------------------


async def test_appends_of_a_refused_writer_end_the_connection(
    store: MemoryStore, client: WireClient
) -> None:
    setup = wire.SetupAppend(77, WRITER, SEGMENT, mint(level=Level.READ))
    assert await client.call(setup) == refusal(CHECK_FAILED)
    await client.append(WRITER, b"data", number=0)
    await client.expect_close()
    assert (await store.container.find_info(SEGMENT)).length == 6


async def test_a_writers_token_expires_with_its_connection(
    store: MemoryStore, client: WireClient, autojump_clock: trio.testing.MockClock
) -> None:
    early, late = mint(), mint(minted=NOW + 100)
    await client.call(wire.SetupAppend(1, WRITER, SEGMENT, early))
    await client.call(wire.SetupAppend(2, WRITER_2, SEGMENT, late))
    await client.send(wire.ReadSegment(SEGMENT, 6, 100, late, 77))
    await trio.sleep(SECONDS - 1)
    await client.append(WRITER, b"data", number=0)
    kinds = {type(await client.receive()) for _ in range(2)}
    assert kinds == {wire.DataAppended, wire.SegmentRead}
    began = trio.current_time()
    await client.expect_close()
    assert trio.current_time() - began == pytest.approx(1, abs=0.5)
    # It comes back with another token, and learns what was stored.
    client = store.connect()
    setup = wire.SetupAppend(1, WRITER, SEGMENT, mint(minted=NOW + SECONDS))
    assert await client.call(setup) == wire.AppendSetup(1, SEGMENT, WRITER, 0)


async def test_a_newer_token_of_a_writer_takes_the_place_of_the_former(
    client: WireClient, autojump_clock: trio.testing.MockClock
) -> None:
    await client.call(wire.SetupAppend(1, WRITER, SEGMENT, mint()))
    await trio.sleep(SECONDS - 10)
    renewed = mint(minted=NOW + SECONDS - 10)
    await client.call(wire.SetupAppend(2, WRITER, SEGMENT, renewed))
    await trio.sleep(SECONDS - 1)
    await client.append(WRITER, b"data", number=0)
    assert isinstance(await client.receive(), wire.DataAppended)
    await trio.sleep(2)
    await client.expect_close()


async def test_an_older_token_of_a_later_writer_expires_at_its_own_time(
    client: WireClient, autojump_clock: trio.testing.MockClock
) -> None:
    older = mint(minted=NOW - SECONDS + 10)
    await client.call(wire.SetupAppend(1, WRITER, SEGMENT, mint()))
    await trio.sleep(1)
    await client.call(wire.SetupAppend(2, WRITER_2, SEGMENT, older))
    began = trio.current_time()
    await client.expect_close()
    assert trio.current_time() - began == pytest.approx(9, abs=1)


async def test_a_token_for_everything_closes_no_connection(
    client: WireClient, autojump_clock: trio.testing.MockClock
) -> None:
    await client.call(wire.SetupAppend(1, WRITER, SEGMENT, master()))
    await trio.sleep(3 * SECONDS)
    await client.append(WRITER, b"data", number=0)
    assert isinstance(await client.receive(), wire.DataAppended)


async def test_a_setup_that_fails_leaves_nothing_to_expire(
    client: WireClient, autojump_clock: trio.testing.MockClock
) -> None:
    missing = wire.SetupAppend(1, WRITER, f"{SEGMENT[:-1]}9", mint())
    assert isinstance(await client.call(missing), wire.NoSuchSegment)
    await trio.sleep(2 * SECONDS)
    assert await client.call(wire.KeepAlive()) == wire.KeepAlive()


async def test_a_clock_that_is_set_ahead_ends_the_connection_soon(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ahead = 0
    verifier = TokenVerifier(KEYS, lambda: NOW + ahead)
    async with memory_store(tokens=verifier) as store:
        await store.container.create_segment(SEGMENT)
        client = store.connect()
        await client.call(wire.SetupAppend(1, WRITER, SEGMENT, mint()))
        await trio.sleep(1)
        ahead = SECONDS
        began = trio.current_time()
        await client.expect_close()
        assert trio.current_time() - began <= LOOK_SECONDS_MAX


async def test_without_keys_no_token_is_looked_at() -> None:
    async with memory_store() as store:
        await store.container.create_segment(SEGMENT)
        await store.container.append(SEGMENT, b"events")
        client = store.connect()
        for token in ("", "nonsense", mint(minted=1)):
            read = await client.call(wire.ReadSegment(SEGMENT, 0, 100, token, 77))
            assert isinstance(read, wire.SegmentRead)
            setup = await client.call(wire.SetupAppend(77, WRITER, SEGMENT, token))
            assert isinstance(setup, wire.AppendSetup)
