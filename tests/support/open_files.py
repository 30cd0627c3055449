"""The files that this process has open in one place.

Their number in all says less: garbage of another test may be collected at any moment, and close
sockets.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def list_open_files(folder: Path) -> list[str]:
    """Return the paths of the open files in a folder and below, and of the folder itself."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        # The one by which they are listed is closed by now.
        with suppress(FileNotFoundError):
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if Path(path).is_relative_to(folder):
                found.append(path)
    return sorted(found)
