"""Fixtures: clients of controllers with an HTTP port, on a segment store in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_security.access_rules import parse_access_rules
from pravega_security.accounts_file import Account, change_accounts_file
from pravega_security.passwords import hash_password
from pravega_security.signing_keys import create_key_file
from support.http_controllers import HttpClient, serve_http


@pytest.fixture
async def client(memory_store: MemorySegmentStore, nursery: trio.Nursery) -> HttpClient:
    """A client of a controller whose segment store is in memory."""
    return await serve_http(memory_store, nursery)


@pytest.fixture
async def secure_client(
    memory_store: MemorySegmentStore, nursery: trio.Nursery, tmp_path: Path
) -> AsyncIterator[HttpClient]:
    """The same with three users: ``admin`` may do everything, ``reader`` reads the root, ``s`` and
    ``s/t``, ``writer`` writes ``s/t`` and has no right to the root."""
    accounts, keys = tmp_path / "passwd", tmp_path / "keys"
    create_key_file(keys, now=0)
    rules = {
        "admin": "prn::*,READ_UPDATE",
        "writer": "prn::/scope:s/stream:t,READ_UPDATE",
        "reader": "prn::/,READ;prn::/scope:s,READ;prn::/scope:s/stream:t,READ",
    }
    for user, text in rules.items():
        account = Account(user, hash_password(user, rounds=10), parse_access_rules(text))
        change_accounts_file(accounts, lambda file, account=account: file.put(account))
    audit = tmp_path / "audit.log"
    yield await serve_http(
        memory_store, nursery, accounts=accounts, token_keys=keys, audit_log=audit
    )
    nursery.cancel_scope.cancel()
