"""Tests of the names that a program finds in the package, and of what it imports for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

import segstore_client


@pytest.mark.parametrize("name", segstore_client.__all__)
def test_every_public_name_is_there_when_it_is_used(name: str) -> None:
    assert getattr(segstore_client, name).__class__ is not None
    assert name in dir(segstore_client)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'connnect'"):
        segstore_client.connnect  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.processes
def test_a_program_that_blocks_imports_no_event_loop() -> None:
    program = "import sys, segstore_client.blocking; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert imported.isdisjoint({"anyio", "asyncio", "trio", "grpc"})
