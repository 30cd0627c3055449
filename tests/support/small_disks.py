"""Small disks for tests, which are skipped where none can be mounted.

Owns: ``small_disk``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from segstore.testing.faults.small_disk import mounted_disk


@contextmanager
def small_disk(path: Path, *, size_bytes: int, inodes_max: int | None = None) -> Iterator[Path]:
    """Make the directory ``path``, with an empty disk of its own, for the block."""
    with mounted_disk(path, size_bytes=size_bytes, inodes_max=inodes_max) as is_mounted:
        if not is_mounted:
            pytest.skip("mounting needs root")
        yield path
