"""Identifies the present start of the machine.

The kernel keeps bytes that a process has written and not synced, also after the process has ended,
until the machine stops. Bytes that were written before the present start may be lost.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

_PATH: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id(path: Path = _PATH) -> str:
    """Return the kernel's id of this start, or a new id at each call if the kernel has none."""
    try:
        return str(uuid.UUID(path.read_text("ascii").strip()))
    except (OSError, ValueError):
        return str(uuid.uuid4())
