"""Findings about servers, certificates and tier 2."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pravega_admin.inspection.findings import Severity
from pravega_admin.inspection.server_findings import check_certificates_in, probe_chunks
from pravega_security.certificates import make_server
from segstore.errors import StorageError
from segstore.tiers.memory import MemoryChunkStorage

DAY = 86_400.0


async def test_the_probe_of_tier_2_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = MemoryChunkStorage()
    await probe_chunks(chunks)
    assert await chunks.list_chunks("") == []

    async def lose(name: str, *, offset: int, length: int, check: object = None) -> bytes:
        raise StorageError("the network is gone")

    monkeypatch.setattr(chunks, "read", lose)
    with pytest.raises(StorageError, match="the network is gone"):
        await probe_chunks(chunks)
    assert await chunks.list_chunks("") == []

    async def damage(name: str, *, offset: int, length: int, check: object = None) -> bytes:
        return bytes(length)

    monkeypatch.setattr(chunks, "read", damage)
    with pytest.raises(StorageError, match="other bytes"):
        await probe_chunks(chunks)
    assert await chunks.list_chunks("") == []


@pytest.mark.parametrize(
    ("begin", "days", "severity"),
    [
        (0.0, 365, Severity.OK),
        (0.0, 10, Severity.WARNING),
        (-20.0, 10, Severity.FAULT),
        (20.0, 30, Severity.FAULT),
    ],
)
def test_the_end_of_a_certificate_is_told(
    begin: float, days: int, severity: Severity, tmp_path: Path
) -> None:
    make_server(tmp_path, now=time.time() + begin * DAY, names=(), days=days, renew=False)
    found = list(check_certificates_in(tmp_path))
    assert len(found) == 2
    assert found[1].severity is severity, found[1]


def test_a_file_that_is_no_certificate_is_a_fault(tmp_path: Path) -> None:
    assert list(check_certificates_in(tmp_path)) == []
    (tmp_path / "ca.pem").write_text("nothing")
    (found,) = check_certificates_in(tmp_path)
    assert found.severity is Severity.FAULT
