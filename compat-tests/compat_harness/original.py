"""Runs the original's standalone server for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from foreign_servers.original_standalone import OriginalStandalone


@contextmanager
def run_original(
    directory: Path,
    *,
    heap: str = "1g",
    jvm_options: tuple[str, ...] = (),
    properties: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Start the server in a directory, yield its controller's address, and kill it at the end."""
    peer = OriginalStandalone(heap=heap, jvm_options=jvm_options, properties=dict(properties or {}))
    peer.prepare()
    address = peer.reserve()
    try:
        peer.start(directory)
        yield address
    finally:
        peer.stop()
