"""Finds the files of chunks.

Owns: the walk through the directories that can hold chunks with a given prefix.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from segstore.tiers.chunk_paths import SearchedDirectory, name_of

Found = tuple[str, str, "os.DirEntry[str]"]
"""A chunk's name, the path of its file relative to the root, and the directory entry of the
file."""


def files_of_chunks(root: str, prefix: str) -> Iterator[Found]:
    """Yield the files of the chunks whose names begin with ``prefix``."""
    yield from _walk(root, SearchedDirectory.of_prefix(prefix), prefix)


def _walk(root: str, directory: SearchedDirectory, prefix: str) -> Iterator[Found]:
    """Yield the matching chunks in ``directory`` and below it."""
    try:
        with os.scandir(f"{root}/{directory.path}") as scan:
            entries = list(scan)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            below = directory.below(entry.name)
            if below is not None:
                yield from _walk(root, below, prefix)
        else:
            path = directory.join(entry.name)
            name = name_of(path)
            if name is not None and name.startswith(prefix):
                yield name, path, entry
