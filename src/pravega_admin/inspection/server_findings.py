"""Checks of servers and stores: ports, certificates, a data directory, and its tier 2.

Owns: the sentences about them. The check of tier 2 writes a chunk, reads it back, and deletes it;
no store reads chunks of such a name.

Invariants:
1. When the check of tier 2 fails at any step, its chunk is deleted if that is possible. Held by
   ``test_the_probe_of_tier_2_leaves_nothing``.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pravega_admin.inspection.findings import Finding, Severity
from pravega_security.certificates import CertificateFacts, describe_chain, describe_der
from pravega_security.tls import CertificateError
from segstore_client.addresses import format_host_port
from segstore_client.errors import PravegaError, UntrustedServerError

if TYPE_CHECKING:
    from pravega_admin.inspection.cluster_state import ClusterState
    from segstore.ownership.data_directory import DataDirectory
    from segstore.tiers.api import ChunkStorage
    from segstore_client.access.tls import ClientTls

ANSWER_SECONDS = 5.0
PROBE_BYTES = 64 * 1024
PROBE_SECONDS_MAX = 60.0
PROBE_MS_WARNING = 2_000.0
"""Time, in milliseconds, for which a small chunk may be written, read and deleted."""
DAYS_WARNING = 30.0
"""Number of days before its end at which a certificate is warned of."""
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def check_server(
    kind: str, host: str, port: int, ask: Callable[[str, int], object], tls: ClientTls | None
) -> Iterator[Finding]:
    """Yield whether a server serves, or its port is free, and when its certificate ends.

    ``ask`` raises ``PravegaError`` if it does not serve.
    """
    where = format_host_port(host, port)
    try:
        ask(host, port)
    except UntrustedServerError as error:
        yield Finding(kind, Severity.FAULT, str(error), "give the --ca of the server, or tls://")
    except PravegaError as error:
        if host not in LOCAL:
            mend = "look at its log, and at the firewall between"
            yield Finding(kind, Severity.FAULT, str(error), mend)
        elif is_free(host, port):
            yield Finding(kind, Severity.NOTE, f"none runs at {where}; the port is free")
        else:
            yield Finding(
                kind,
                Severity.FAULT,
                f"{where} is taken by something that does not serve: {error}",
                f"see what has it (ss -ltnp 'sport = :{port}'), or use another port",
            )
    else:
        yield Finding(kind, Severity.OK, f"{where} serves")
    if tls is not None:
        yield check_certificate_of(host, port)


def is_free(host: str, port: int) -> bool:
    """Return whether this process could listen on a port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError:
            return False
    return True


def check_certificate_of(host: str, port: int) -> Finding:
    """Return the finding about the certificate that a server shows."""
    from pravega_admin.inspection.served_certificates import fetch_certificate

    where = format_host_port(host, port)
    try:
        der = fetch_certificate(host, port, seconds_max=ANSWER_SECONDS)
        return judge_certificate(where, describe_der(der))
    except (PravegaError, CertificateError) as error:
        return Finding("certificate", Severity.NOTE, str(error))


def check_certificates_in(directory: Path) -> Iterator[Finding]:
    """Yield the findings about the certificates of a secure store's files."""
    for name in ("ca.pem", "server.pem"):
        path = directory / name
        if not path.exists():
            continue
        try:
            yield judge_certificate(str(path), describe_chain(path.read_bytes(), str(path))[0])
        except (OSError, CertificateError) as error:
            mend = f"segstore certificate create {directory}"
            yield Finding("certificate", Severity.FAULT, f"{path}: {error}", mend)


def judge_certificate(where: str, facts: CertificateFacts) -> Finding:
    """Return the finding about the time of a certificate."""
    now = time.time()
    days = (facts.not_after - now) / 86_400
    mend = "segstore certificate create DIR --renew"
    if now < facts.not_before:
        mend = "set the clock of this machine, or make the certificate anew"
        sentence = f"{where}: the certificate is not valid yet"
        return Finding("certificate", Severity.FAULT, sentence, mend)
    if days < 0:
        sentence = f"{where}: the certificate ended {-days:.0f} days ago"
        return Finding("certificate", Severity.FAULT, sentence, mend)
    sentence = f"{where}: the certificate ends in {days:.0f} days"
    if days < DAYS_WARNING:
        return Finding("certificate", Severity.WARNING, sentence, mend)
    return Finding("certificate", Severity.OK, sentence)


def check_cluster(read: Callable[[], ClusterState], bookies_min: int) -> Iterator[Finding]:
    """Yield the findings about ZooKeeper, the members of a cluster, and its bookies."""
    from pravega_admin.inspection.cluster_state import BOOKIE, SERVES

    try:
        state = read()
    except PravegaError as error:
        mend = "start the ZooKeeper servers, or correct --zookeeper"
        yield Finding("zookeeper", Severity.FAULT, str(error), mend)
        return
    yield Finding("zookeeper", Severity.OK, "it answers")
    bookies = state.count(BOOKIE, SERVES)
    said = f"{bookies} serve, {bookies_min} are needed for each log"
    if bookies < bookies_min:
        yield Finding("bookies", Severity.FAULT, said, "start more bookies: no log can be written")
    elif state.absent_bookies:
        absent = ", ".join(state.absent_bookies)
        mend = "start them again, or decommission them"
        yield Finding("bookies", Severity.WARNING, f"{said}; silent: {absent}", mend)
    else:
        yield Finding("bookies", Severity.OK, said)
    for each in state.missing(bookies=0):
        yield Finding("cluster", Severity.FAULT, each, "segstore cluster status tells of each")
    for member in state.members:
        if member.delays:
            yield Finding("delays", Severity.WARNING, f"{member.address}: {member.delays}")


def check_store(data_dir: Path, sections: dict[str, Any]) -> Iterator[Finding]:
    """Yield the findings about a data directory and its tier 2, into which a chunk is written.

    ``sections`` are the tables of vendors in a settings file.
    """
    import msgspec
    import trio

    from segstore.errors import (
        DataDirectoryError,
        SegmentStoreError,
        StorageConfigurationError,
    )
    from segstore.ownership.data_directory import DataDirectory
    from segstore.process.tier_two_vendors import VendorSettings

    if not data_dir.exists():
        yield Finding("data directory", Severity.NOTE, f"{data_dir} does not exist yet")
        return
    try:
        directory = DataDirectory.read(data_dir)
        if not os.access(data_dir, os.W_OK):
            raise DataDirectoryError(f"{data_dir} cannot be written by the user {os.getuid()}")
    except DataDirectoryError as error:
        mend = "give the --data-dir of a store, and run as its user"
        yield Finding("data directory", Severity.FAULT, str(error), mend)
        return
    yield Finding("data directory", Severity.OK, f"{data_dir} has store {directory.store_id}")
    where = directory.tier_2 or str(directory.storage_path)
    try:
        settings = msgspec.convert(sections, VendorSettings)
        taken = trio.run(_probe, directory, settings)
    except (StorageConfigurationError, msgspec.ValidationError) as error:
        mend = "mount it, or give the settings of the store (--config, --s3-endpoint)"
        yield Finding("tier 2", Severity.FAULT, str(error), mend)
    except (SegmentStoreError, trio.TooSlowError, OSError) as error:
        reason = str(error) or f"no answer within {PROBE_SECONDS_MAX:g} s"
        mend = "segstore buffers for as long as its journal has room: mend tier 2 before that"
        yield Finding("tier 2", Severity.FAULT, f"{where} cannot be used: {reason}", mend)
    else:
        said = f"{where}: a chunk was written, read back and deleted in {taken:.0f} ms"
        slow = taken > PROBE_MS_WARNING
        mend = "look at the network and the load of tier 2" if slow else ""
        yield Finding("tier 2", Severity.WARNING if slow else Severity.OK, said, mend)


async def _probe(directory: DataDirectory, settings: Any) -> float:
    """Return how long, in milliseconds, it took to write, read and delete a chunk in tier 2."""
    import trio

    from segstore.repair.scrub_store import open_to_look

    with trio.fail_after(PROBE_SECONDS_MAX):
        async with open_to_look(directory, settings) as chunks:
            began = time.monotonic()
            await probe_chunks(chunks)
            return (time.monotonic() - began) * 1000


async def probe_chunks(chunks: ChunkStorage) -> None:
    """Write a chunk, read it back, and delete it. Raises ``StorageError`` if one of these fails."""
    import trio

    from segstore.errors import StorageError
    from segstore.ownership.tier_two_identity import STORE_PREFIX

    name, data = f"{STORE_PREFIX}doctor-{uuid.uuid4().hex}", os.urandom(PROBE_BYTES)
    try:
        await chunks.write(name, offset=0, data=[data])
        found = bytes(await chunks.read(name, offset=0, length=PROBE_BYTES))
    except BaseException:
        with trio.move_on_after(ANSWER_SECONDS, shield=True), suppress(StorageError, OSError):
            await chunks.delete(name)
        raise
    await chunks.delete(name)
    if found != data:
        raise StorageError("other bytes were read than were written")
