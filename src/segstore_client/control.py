"""Calls that block, by which a program manages scopes, streams, tables and groups.

Owns: the names ``SCOPE/STREAM`` of callers, and what they leave out, such as who they are.

Both faces of the client have these calls: the blocking one as they are, the async one in threads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime

from pravega_wire.sessions.time_limits import call_within
from segstore_client.access.settings import AccessSettings, build_access, read_environment
from segstore_client.access.words import ENVIRONMENT, AccessWords
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.scaling import plan_replacement
from segstore_client.controller.stream_settings import Retention, Scaling, StreamSettings
from segstore_client.cuts.bounds import make_place
from segstore_client.cuts.places import find_cut
from segstore_client.errors import AlreadyExistsError, UsageError
from segstore_client.positions import End

SCALE_SECONDS_MAX = 60.0
FIRST_SECONDS = 5.0
"""Time, in seconds, for which the first call is repeated by a program that says no other: the store
may be starting, and a wrong address is to be told soon."""
WORDS = AccessWords(
    f"user= and password= of connect(), or {ENVIRONMENT.login}",
    f"password= of connect(), or {ENVIRONMENT.password}",
    f"ca= of connect(), or {ENVIRONMENT.ca}",
)
"""The words by which a program that uses this package says who calls, and whom to trust."""


class Control:
    """Creates, lists, changes and deletes what is in a store."""

    def __init__(self, controller: ControllerClient, *, patience: float) -> None:
        self._controller = controller
        self._patient = controller.with_patience(patience)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._controller.address}>"

    # ---- Scopes ----------------------------------------------------------------------------------

    def create_scope(self, scope: str, *, exist_ok: bool = False) -> None:
        """Create a scope. Raises ``AlreadyExistsError`` unless ``exist_ok``."""
        create = self._patient.ensure_scope if exist_ok else self._patient.create_scope
        create(scope)

    def delete_scope(self, scope: str, *, recursive: bool = False) -> None:
        """Delete an empty scope; with ``recursive`` also one with contents."""
        self._patient.delete_scope(scope, recursive=recursive)

    def list_scopes(self) -> list[str]:
        """Return the names of all scopes that the caller may see."""
        return list(self._patient.list_scopes())

    # ---- Streams ---------------------------------------------------------------------------------

    def create_stream(
        self,
        stream: str,
        *,
        segments: int = 1,
        scaling: Scaling | None = None,
        retention: Retention | None = None,
        tags: Sequence[str] = (),
        exist_ok: bool = False,
    ) -> None:
        """Create a stream of so many segments, or one that scales.

        Raises ``AlreadyExistsError`` unless ``exist_ok``; the existing one keeps its settings.
        """
        settings = StreamSettings(
            scaling=scaling or Scaling(segment_count_min=segments),
            retention=retention or Retention(),
            tags=tuple(tags),
        )
        create = self._patient.ensure_stream if exist_ok else self._patient.create_stream
        create(*split_name(stream), settings)

    def stream_settings(self, stream: str) -> StreamSettings:
        """Return a stream's settings."""
        return self._patient.stream_settings(*split_name(stream))

    def update_stream(self, stream: str, settings: StreamSettings) -> None:
        """Replace a stream's settings."""
        self._patient.update_stream(*split_name(stream), settings)

    def scale_stream(
        self, stream: str, segments: int, *, timeout: float = SCALE_SECONDS_MAX
    ) -> None:
        """Replace all segments of a stream by new ones of equal width, and wait until that is done.

        Raises ``ConflictError`` for a sealed stream or fewer segments than the stream's policy
        wants, and ``TimedOutError`` after ``timeout`` seconds; it may be done later then.
        """
        scope, name = split_name(stream)

        def scale() -> None:
            plan = plan_replacement(self._patient.current_segments(scope, name).ranges, segments)
            self._patient.scale_stream(
                scope, name, sealed=plan.sealed, ranges=plan.ranges, timeout=timeout
            )

        call_within(timeout, scale)

    def stream_cut(self, stream: str, at: End | datetime) -> dict[int, int]:
        """Return the stream cut at an end of a stream, or before the events of a time: offsets by
        segment id.

        Raises ``ConflictError`` for the tail of a sealed stream, and ``UsageError`` for a time if
        the writers of the stream record none.
        """
        return find_cut(self._patient, *split_name(stream), make_place(at))

    def seal_stream(self, stream: str) -> None:
        """Seal a stream, which then accepts no more events; sealing it twice is no error."""
        self._patient.seal_stream(*split_name(stream))

    def delete_stream(self, stream: str) -> None:
        """Delete a sealed stream."""
        self._patient.delete_stream(*split_name(stream))

    def truncate_stream(self, stream: str, cut: Mapping[int, int]) -> None:
        """Delete a stream's events before a stream cut: offsets by segment id."""
        self._patient.truncate_stream(*split_name(stream), cut)

    def list_streams(self, scope: str, *, tag: str | None = None) -> list[str]:
        """Return the names of a scope's streams, ``SCOPE/STREAM``, those of the system left out."""
        found = self._patient.list_streams(scope, tag=tag)
        return [f"{scope}/{each}" for each in found if not each.startswith("_")]

    # ---- Key-value tables ------------------------------------------------------------------------

    def create_table(
        self,
        table: str,
        *,
        primary_key_bytes: int,
        secondary_key_bytes: int = 0,
        partitions: int = 1,
        exist_ok: bool = False,
    ) -> None:
        """Create a key-value table; all of its keys have the given lengths, in bytes.

        Raises ``AlreadyExistsError`` unless ``exist_ok``; the existing one keeps its settings.
        """
        try:
            self._patient.create_table(
                *split_name(table),
                partitions=partitions,
                primary_key=primary_key_bytes,
                secondary_key=secondary_key_bytes,
            )
        except AlreadyExistsError:
            if not exist_ok:
                raise

    def delete_table(self, table: str) -> None:
        """Delete a key-value table with everything in it."""
        self._patient.delete_table(*split_name(table))

    def list_tables(self, scope: str) -> list[str]:
        """Return the names of a scope's key-value tables, ``SCOPE/TABLE``."""
        return [f"{scope}/{each}" for each in self._patient.list_tables(scope)]

    # ---- Reader groups ---------------------------------------------------------------------------

    def list_groups(self, scope: str) -> list[str]:
        """Return the names of a scope's reader groups, ``SCOPE/GROUP``."""
        return [f"{scope}/{each}" for each in self._patient.list_groups(scope)]

    def delete_group(self, group: str) -> None:
        """Delete a reader group. Its readers fail, and retention keeps nothing for it any more."""
        self._patient.delete_group(*split_name(group))


def split_name(name: str) -> tuple[str, str]:
    """Return scope and stream of ``SCOPE/STREAM``; ``UsageError`` for anything else."""
    scope, delimiter, stream = name.partition("/")
    if not delimiter or not scope or not stream:
        raise UsageError(f"{name!r} is not the name of a stream: write SCOPE/STREAM")
    return scope, stream


def open_controller(
    address: str, named: AccessSettings, *, patience: float | None
) -> ControllerClient:
    """Return a client of a controller. What is not named, such as the user, is taken from the
    environment, as the command line does. Without a patience the first call is repeated for
    ``FIRST_SECONDS``."""
    access = build_access([named, read_environment(os.environ)], words=WORDS)
    first = FIRST_SECONDS if patience is None else None
    return ControllerClient(address, first_patience=first, access=access)
