"""Makes the paths of the files that hold chunks, in a directory and in HDFS.

Owns: the mapping between chunk names and paths, which docs/formats/chunks.md describes, and the
choice of the directories that can hold chunks with a given prefix. A name component that is too
long for a file name becomes several nested directories; all of them but the last end in ``%`` and
are called *continued*.

Invariants:
1. Whatever characters a chunk name has, its path has only valid file names, and the path gives the
   same name back. Held by ``test_a_name_comes_back_from_its_path``.
2. When a chunk name has ``..`` or begins with a slash, its file lies below the root all the same.
   Held by ``test_a_name_never_leaves_the_root``.
3. When one chunk's name is a directory in the name of another, their paths do not collide. Held by
   ``test_no_file_is_where_another_chunk_needs_a_directory``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

PIECE_BYTES_MAX: Final = 240
SAFE_CHARACTERS: Final = "#$"  # these, letters, digits and _.- are not escaped
CHUNK_SUFFIX: Final = ".chunk"
UNFINISHED_SUFFIX: Final = ".chunk%new"


@dataclass(frozen=True, slots=True)
class SearchedDirectory:
    """A directory that can hold chunks whose names begin with a given prefix."""

    path: str
    """Path relative to the root."""
    so_far: str
    """The text of the continued directories that lead here: the beginning of one encoded name
    component."""
    wanted: str
    """The encoded text with which the whole component must begin; empty if any component
    matches."""

    @classmethod
    def of_prefix(cls, prefix: str) -> SearchedDirectory:
        """Return the directory where a search for chunks of the prefix begins."""
        *complete, partial = prefix.split("/")
        pieces = [piece for directory in complete for piece in directory_pieces(directory)]
        return cls("/".join(pieces), "", encoded(partial))

    def join(self, entry: str) -> str:
        """Return the path of an entry of the directory."""
        return f"{self.path}/{entry}" if self.path else entry

    def below(self, entry: str) -> SearchedDirectory | None:
        """Return the search in a subdirectory; None if no chunk there can have the prefix."""
        continued = is_continued(entry)
        part = self.so_far + (entry[:-1] if continued else entry)
        if not continued and part.endswith("%2Echunk") and part != "%2Echunk":
            part = part.removesuffix("%2Echunk") + CHUNK_SUFFIX
        if not (part.startswith(self.wanted) or (continued and self.wanted.startswith(part))):
            return None
        path = self.join(entry)
        if continued:
            return SearchedDirectory(path, part, self.wanted)
        return SearchedDirectory(path, "", "")


def path_of(name: str) -> str:
    """Return the path, relative to the root, of the file that holds a chunk."""
    *directories, last = name.split("/")
    pieces = [piece for directory in directories for piece in directory_pieces(directory)]
    *continued, end = _pieces(encoded(last))
    return "/".join([*pieces, *(f"{piece}%" for piece in continued), end + CHUNK_SUFFIX])


def name_of(path: str) -> str | None:
    """Return the name of the chunk in the file with this relative path; None if it is not a
    chunk's."""
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
    """Return a component of a chunk name, escaped for a file name. The encoding of a prefix is a
    prefix of the encoding."""
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
    """Split an encoded component into parts that are short enough for file names; at least one."""
    starts = range(0, max(len(encoded), 1), PIECE_BYTES_MAX)
    return [encoded[start : start + PIECE_BYTES_MAX] for start in starts]


def is_continued(directory: str) -> bool:
    return len(directory) > 1 and directory.endswith("%")
