"""Names of the things that permissions are about, and the levels of permission.

Owns: the text form of a resource, which accounts files and delegation tokens have too. It is the
original's, so that its files and tokens mean the same here.

    prn::/                                 the root: the list of scopes, and making scopes
    prn::/scope:S                          the scope S: the lists in it, and making things in it
    prn::/scope:S/stream:T                 a stream
    prn::/scope:S/reader-group:G           a reader group
    prn::/scope:S/key-value-table:K        a key-value table

Invariants:
1. For the internal stream of a reader group the resource is the group; for the internal stream of
   watermarks, the stream whose watermarks it has. Held by
   ``test_a_stream_that_clients_keep_counts_as_what_it_is_kept_for``.
"""

from __future__ import annotations

import enum
from typing import Final

from pravega_wire.names import MARK_PREFIX, READER_GROUP_PREFIX

ROOT: Final = "prn::/"


class Level(enum.IntEnum):
    """The rights of a principal on a resource. A greater level includes the smaller ones."""

    NONE = 0
    READ = 1
    READ_UPDATE = 2


def scope_resource(scope: str) -> str:
    """Return the resource of a scope."""
    return f"{ROOT}scope:{scope}"


def stream_resource(scope: str, stream: str) -> str:
    """Return the resource of a stream under its own name."""
    return f"{scope_resource(scope)}/stream:{stream}"


def reader_group_resource(scope: str, group: str) -> str:
    """Return the resource of a reader group."""
    return f"{scope_resource(scope)}/reader-group:{group}"


def key_value_table_resource(scope: str, table: str) -> str:
    """Return the resource of a key-value table."""
    return f"{scope_resource(scope)}/key-value-table:{table}"


def resource_kept_for(scope: str, stream: str) -> str:
    """Return the resource that a stream belongs to: of ``_RGx`` the reader group ``x``, of
    ``_MARKx`` the stream ``x``, and of any other stream its own."""
    if stream.startswith(READER_GROUP_PREFIX):
        return reader_group_resource(scope, stream.removeprefix(READER_GROUP_PREFIX))
    return stream_resource(scope, stream.removeprefix(MARK_PREFIX))
