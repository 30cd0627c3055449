"""Finding the files of chunks.

Owns: which directories can hold chunks whose names begin alike.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from segstore.tiers.files.chunk_paths import (
    CHUNK_SUFFIX,
    directory_pieces,
    encoded,
    is_continued,
    name_of,
)

Found = tuple[str, str, "os.DirEntry[str]"]
"""A chunk's name, its file's path below the root, and the file."""


def files_of_chunks(root: str, prefix: str) -> Iterator[Found]:
    """Look through the directories that can hold chunks of the prefix."""
    *complete, partial = prefix.split("/")
    pieces = [piece for directory in complete for piece in directory_pieces(directory)]
    yield from _walk(root, "/".join(pieces), "", encoded(partial), prefix)


def _walk(root: str, directory: str, so_far: str, wanted: str, prefix: str) -> Iterator[Found]:
    """Yield the chunks below ``directory``. ``so_far`` is the part of the component after the
    prefix's last slash that continued directories hold; it must agree with ``wanted``."""
    try:
        with os.scandir(f"{root}/{directory}") as scan:
            entries = list(scan)
    except FileNotFoundError:
        return
    for entry in entries:
        path = f"{directory}/{entry.name}" if directory else entry.name
        if entry.is_dir(follow_symlinks=False):
            continued = is_continued(entry.name)
            part = so_far + (entry.name[:-1] if continued else entry.name)
            if not continued and part.endswith("%2Echunk") and part != "%2Echunk":
                part = part.removesuffix("%2Echunk") + CHUNK_SUFFIX
            if not (part.startswith(wanted) or (continued and wanted.startswith(part))):
                continue
            if continued:
                yield from _walk(root, path, part, wanted, prefix)
            else:
                yield from _walk(root, path, "", "", prefix)
        else:
            name = name_of(path)
            if name is not None and name.startswith(prefix):
                yield name, path, entry
