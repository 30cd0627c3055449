"""The first thing that a program that blocks gets: a store, with its scopes and streams.

Owns: one controller client, and who calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TypeVar

from pravega_blocking.access.settings import AccessSettings
from pravega_blocking.addresses import DEFAULT_CONTROLLER
from pravega_blocking.byte_streams.byte_reader import ByteReader
from pravega_blocking.byte_streams.byte_writer import ByteWriter
from pravega_blocking.controller_client import ControllerClient
from pravega_blocking.delays import OnDelay
from pravega_blocking.event_reader import EventReader
from pravega_blocking.event_writer import EventWriter
from pravega_blocking.groups.group_operations import (
    CHECKPOINT_SECONDS,
    REFRESH_SECONDS,
    build_settings,
)
from pravega_blocking.groups.reader_group import ReaderGroup
from pravega_blocking.positions import Start
from pravega_blocking.states.revision_log import RevisionLog
from pravega_blocking.states.synchronizer import Synchronizer
from pravega_blocking.tables.table import Table
from pravega_wire.reader_groups.settings import Cut
from segstore_client.blocking.control import Control, open_controller, split_name
from segstore_client.blocking.transaction import BlockingTransaction
from segstore_client.buffered_writer import PATIENCE_SECONDS
from segstore_client.transaction import LEASE_SECONDS

S = TypeVar("S")


class BlockingStore(Control):
    """A store that was connected to. Names of streams are ``SCOPE/STREAM``.

    All threads may use it; each has writers, readers and other objects of its own.
    """

    def __init__(self, controller: ControllerClient, *, patience: float) -> None:
        super().__init__(controller)
        self._patience = patience

    def writer(self, stream: str, *, on_delay: OnDelay | None = None) -> EventWriter:
        """Return a writer of events, to be used in a ``with`` block.

        An event over 8 MiB is written in pieces, which readers see together. ``on_delay`` is called
        with the reason why a store does not answer now.
        """
        return EventWriter(
            self._controller, *split_name(stream), patience=self._patience, on_delay=on_delay
        )

    def transaction(
        self, stream: str, *, lease: float = LEASE_SECONDS, on_delay: OnDelay | None = None
    ) -> BlockingTransaction:
        """Begin a transaction, to be used in a ``with`` block, which commits it.

        The calls on it renew its lease. If none comes for ``lease`` seconds, the controller aborts
        it.
        """
        return BlockingTransaction(
            self._controller,
            *split_name(stream),
            lease=lease,
            patience=self._patience,
            on_delay=on_delay,
        )

    def reader(
        self,
        stream: str,
        *,
        start: Start | Mapping[int, int] = Start.HEAD,
        stop_at_tail: bool = False,
    ) -> EventReader:
        """Return a reader of all events, to be used in a ``with`` block.

        It begins at an end of the stream, or at a stream cut. It goes on until the stream is
        sealed, or with ``stop_at_tail`` at the end that the stream has now.
        """
        return EventReader(
            self._controller,
            *split_name(stream),
            start=start,
            stop_at_tail=stop_at_tail,
            patience=self._patience,
        )

    def byte_writer(self, stream: str, *, on_delay: OnDelay | None = None) -> ByteWriter:
        """Return a writer of bytes without events, a raw file, to be used in a ``with`` block.

        The stream has one segment. The arguments are those of ``writer``.
        """
        return ByteWriter(
            self._controller, *split_name(stream), patience=self._patience, on_delay=on_delay
        )

    def byte_reader(self, stream: str, *, offset: int | Start = Start.HEAD) -> ByteReader:
        """Return a reader of a byte stream, a raw file, to be used in a ``with`` block.

        It begins at an offset, or at an end of the stream.
        """
        return ByteReader(
            self._controller, *split_name(stream), offset=offset, patience=self._patience
        )

    def table(self, table: str) -> Table:
        """Return the entries of a key-value table. Raises ``NotFoundError``."""
        return Table(self._controller, *split_name(table), patience=self._patience)

    def create_group(
        self,
        group: str,
        streams: Sequence[str],
        *,
        starts: Mapping[str, Cut] | None = None,
        ends: Mapping[str, Cut] | None = None,
        checkpoint_seconds: float | None = CHECKPOINT_SECONDS,
        refresh_seconds: float = REFRESH_SECONDS,
        retains: bool = False,
        exist_ok: bool = False,
    ) -> None:
        """Create a reader group; the arguments and errors are those of ``Store.create_group``."""
        for name in streams:
            split_name(name)
        settings = build_settings(
            streams,
            starts=starts,
            ends=ends,
            checkpoint_seconds=checkpoint_seconds,
            refresh_seconds=refresh_seconds,
            retains=retains,
        )
        self.group(group).create(settings, exist_ok=exist_ok)

    def group(self, group: str) -> ReaderGroup:
        """Return a reader group; ``create_group`` has to be called once for it, by any client."""
        return ReaderGroup(self._controller, *split_name(group), patience=self._patience)

    def synchronizer(
        self,
        stream: str,
        *,
        load: Callable[[bytes], S],
        apply: Callable[[S, bytes], S],
    ) -> Synchronizer[S]:
        """Return a state that programs share by a stream of one segment, to be used in a ``with``
        block.

        ``load`` makes a state of the bytes of a whole one, ``apply`` returns the state after the
        bytes of an update.
        """
        log = RevisionLog(self._controller, *split_name(stream), patience=self._patience)
        return Synchronizer(log, name=stream, load=load, apply=apply)


@contextmanager
def connect(
    controller: str = DEFAULT_CONTROLLER,
    *,
    user: str = "",
    password: str = "",
    token: str = "",
    ca: str = "",
    patience: float = PATIENCE_SECONDS,
) -> Iterator[BlockingStore]:
    """Connect to a store; the arguments are those of ``segstore_client.connect``."""
    named = AccessSettings(user=user, password=password, token=token, ca=ca)
    with closing(open_controller(controller, named)) as client:
        yield BlockingStore(client, patience=patience)
