"""Looks at other processes."""

from __future__ import annotations

from pathlib import Path


def is_running(pid: int) -> bool:
    """Return whether a process runs: a zombie that nobody has waited for does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        # It may also end between the opening of the file and the reading.
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
