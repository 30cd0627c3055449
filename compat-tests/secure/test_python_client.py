"""The Python client of this package over TLS, as users who have just the rights that they need."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

import anyio
import pytest
from compat_harness.secure import SecureServer
from foreign_servers.deadlines import scale

import segstore_client
from segstore_client import (
    NoPermissionError,
    Position,
    Store,
    UntrustedServerError,
    blocking,
)

SCOPE = "prn::/scope:own-client"
SECONDS_MAX = scale(120.0)
EVENTS = [b"event %d" % number for number in range(50)]

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def store(secure_server: SecureServer) -> SecureServer:
    """The store with a scope, one user who may change all in it, and one who may read it."""
    names = ("SEGSTORE_USER", "SEGSTORE_PASSWORD", "SEGSTORE_CA", "SEGSTORE_CONTROLLER")
    assert not any(name in os.environ for name in names)
    assert secure_server.run_as("admin", "scope", "create", "own-client").returncode == 0
    secure_server.add_user("changer", (SCOPE, "READ_UPDATE"), (f"{SCOPE}/*", "READ_UPDATE"))
    secure_server.add_user("looker", (SCOPE, "READ"), (f"{SCOPE}/*", "READ"))
    return secure_server


def connect_as(server: SecureServer, user: str) -> AbstractContextManager[blocking.BlockingStore]:
    return blocking.connect(
        server.controller_uri, user=user, password=server.passwords[user], ca=str(server.ca)
    )


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_user_does_over_tls_what_others_do_without(store: SecureServer, backend: str) -> None:
    async def use(name: str) -> None:
        async with segstore_client.connect(
            store.controller_uri,
            user="changer",
            password=store.passwords["changer"],
            ca=str(store.ca),
        ) as client:
            with anyio.fail_after(SECONDS_MAX):
                await use_all(client, name)

    anyio.run(use, f"own-client/{backend}", backend=backend)


async def use_all(client: Store, name: str) -> None:
    """Use each kind of thing: streams, transactions, groups, states, bytes and tables."""
    await client.create_stream(f"{name}-events", segments=2)
    async with client.writer(f"{name}-events") as writer:
        for event in EVENTS:
            await writer.submit(event, key=event.decode())
    async with client.transaction(f"{name}-events") as transaction:
        await transaction.write(b"the end")
    await client.scale_stream(f"{name}-events", 3)
    await client.create_group(f"{name}-group", [f"{name}-events"])
    async with client.group(f"{name}-group").reader("one") as reader:
        found = [(await anext(reader)).data for _ in range(len(EVENTS) + 1)]
    assert sorted(found) == sorted([*EVENTS, b"the end"])
    await client.create_stream(f"{name}-state")
    async with client.synchronizer(
        f"{name}-state", load=bytes, apply=lambda state, update: state + update
    ) as state:
        await state.begin(b"a")
        await state.change(lambda _: [b"b"])
        assert await state.read() == b"ab"
    await client.create_stream(f"{name}-bytes")
    async with client.byte_writer(f"{name}-bytes") as file:
        await file.write(b"some bytes")
    async with client.byte_reader(f"{name}-bytes") as file:
        assert await file.read(100) == b"some bytes"
    await client.create_table(f"{name}-table", primary_key_bytes=3)
    table = await client.table(f"{name}-table")
    await table.put(b"key", b"value")
    entry = await table.get(b"key")
    assert entry is not None
    assert entry.value == b"value"


def test_a_user_who_may_read_reads_and_changes_nothing(store: SecureServer) -> None:
    with connect_as(store, "changer") as client:
        client.create_stream("own-client/read")
        with client.writer("own-client/read") as writer:
            for event in EVENTS:
                writer.submit(event)
    with connect_as(store, "looker") as client:
        with client.reader("own-client/read", end=Position.TAIL) as reader:
            assert [event.data for event in reader] == EVENTS
        with pytest.raises(NoPermissionError), client.writer("own-client/read") as writer:
            writer.write(b"refused")
        for change in (client.seal_stream, client.delete_stream):
            with pytest.raises(NoPermissionError):
                change("own-client/read")
        with pytest.raises(NoPermissionError):
            client.create_stream("own-client/refused")


def test_a_wrong_password_and_a_foreign_authority_are_refused(
    store: SecureServer, tmp_path: Path
) -> None:
    wrong = "not-" + store.passwords["looker"]
    with (
        pytest.raises(NoPermissionError) as refused,
        blocking.connect(
            store.controller_uri, user="looker", password=wrong, ca=str(store.ca)
        ) as client,
    ):
        client.list_scopes()
    assert wrong not in str(refused.value)
    # Without the authority, that of no public server signed the certificate.
    with (
        pytest.raises(UntrustedServerError),
        blocking.connect(
            store.controller_uri, user="looker", password=store.passwords["looker"]
        ) as client,
    ):
        client.list_scopes()
