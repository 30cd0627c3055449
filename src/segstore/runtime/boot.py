"""Identifies the present start of the machine.

What a process has written and not synced is in the kernel as long as the machine runs, whatever
becomes of the process. Of what was written on an earlier start nobody knows.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

_PATH: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id(path: Path = _PATH) -> str:
    """Return the kernel's id of this start; a new id at every call where the kernel has none."""
    try:
        return str(uuid.UUID(path.read_text("ascii").strip()))
    except (OSError, ValueError):
        return str(uuid.uuid4())
