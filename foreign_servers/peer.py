"""The interface of a server that a benchmark measures.

1. A peer is started in an empty directory of its own and writes nowhere else.
2. It takes load on 127.0.0.1 only, on ports that were free when it started.
3. `start` returns as soon as the port that clients are given accepts; `stop` ends every process it
   started.
4. Whatever takes long and is not the server's work (building, resolving artifacts) is in `prepare`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from foreign_servers.process_tree import ProcessTree


class PeerFailedError(Exception):
    """A server could not be prepared or started, or ended by itself; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAccess:
    """What a client needs beside the address: nothing where the server lets everybody in."""

    trust_store: Path | None = None
    """The file with the certificate of the authority, for TLS."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The variables from which the official clients take a user and a password."""


OPEN = ClientAccess()
"""What a client needs where everybody is let in."""


@dataclass(frozen=True, slots=True)
class RunningPeer:
    """A started server: the address that clients are given, and the processes it consists of."""

    address: str
    processes: ProcessTree
    started_epoch: float
    access: ClientAccess = OPEN


class Peer(Protocol):
    """One kind of server. `start` and `stop` may be called again and again, each time anew."""

    @property
    def key(self) -> str:
        """Return one word for command lines and files."""

    @property
    def name(self) -> str:
        """Return a short name for tables."""

    @property
    def speaks_kafka(self) -> bool:
        """Return whether clients speak the Kafka protocol to it.

        Otherwise the scheme of its address tells: ``http`` is Pulsar's, all others are Pravega's.
        """

    @property
    def description(self) -> str:
        """Return version and settings, for reports."""

    def prepare(self) -> None:
        """Do once what a start must not wait for. Raises PeerFailedError."""

    def reserve(self) -> str:
        """Choose the ports of the next start; returns the address it will have."""

    def start(self, directory: Path) -> RunningPeer:
        """Start in this empty directory and wait for the port.

        Raises PeerFailedError.
        """

    def stop(self) -> None:
        """End every process of the server and wait for them."""


@contextmanager
def running(peer: Peer, directory: Path) -> Iterator[RunningPeer]:
    """Run the peer in `directory` (made here) for as long as the block runs."""
    directory.mkdir(parents=True)
    peer.reserve()
    try:
        yield peer.start(directory)
    finally:
        peer.stop()
