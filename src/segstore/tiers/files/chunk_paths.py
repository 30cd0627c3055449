"""Paths of the files that hold chunks.

Owns: the mapping between chunk names and paths, which docs/formats/chunks.md describes.

Invariants:
1. It is one to one, and no name leads out of the root, whatever bytes it has.
2. No file is where another chunk needs a directory.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

PIECE_BYTES_MAX: Final = 240
SAFE_CHARACTERS: Final = "#$"  # besides letters, digits and _.-
CHUNK_SUFFIX: Final = ".chunk"
UNFINISHED_SUFFIX: Final = ".chunk%new"


def path_of(name: str) -> str:
    """The path, relative to the root, of the file that holds a chunk."""
    *directories, last = name.split("/")
    pieces = [piece for directory in directories for piece in directory_pieces(directory)]
    *continued, end = _pieces(encoded(last))
    return "/".join([*pieces, *(f"{piece}%" for piece in continued), end + CHUNK_SUFFIX])


def name_of(path: str) -> str | None:
    """The chunk whose file has this relative path, or None when it is no chunk's."""
    *directories, last = path.split("/")
    if not last.endswith(CHUNK_SUFFIX):
        return None
    joined = ""
    for directory in directories:
        joined += directory[:-1] if is_continued(directory) else directory + "/"
    return "/".join(
        "" if component == "%" else unquote(component, errors="surrogatepass")
        for component in (joined + last.removesuffix(CHUNK_SUFFIX)).split("/")
    )


def encoded(component: str) -> str:
    """A component of a chunk name as a file name; the encoding of a prefix is a prefix of it."""
    text = quote(component, safe=SAFE_CHARACTERS, errors="surrogatepass").replace("~", "%7E")
    if text.startswith("."):
        return "%2E" + text[1:]
    return text


def directory_pieces(component: str) -> list[str]:
    *continued, end = _pieces(encoded(component) or "%")
    if end.endswith(CHUNK_SUFFIX):
        end = end.removesuffix(CHUNK_SUFFIX) + "%2Echunk"
    return [*(f"{piece}%" for piece in continued), end]


def _pieces(encoded: str) -> list[str]:
    """Split a name that is too long for a file name; all pieces but the last get a final ``%``."""
    starts = range(0, max(len(encoded), 1), PIECE_BYTES_MAX)
    return [encoded[start : start + PIECE_BYTES_MAX] for start in starts]


def is_continued(directory: str) -> bool:
    return len(directory) > 1 and directory.endswith("%")
