"""The servers that can be measured, by their keys."""

from collections.abc import Callable, Iterable

from foreign_servers.kafka_broker import KafkaBroker
from foreign_servers.original_durable import OriginalDurable
from foreign_servers.original_standalone import OriginalStandalone
from foreign_servers.peer import Peer, PeerFailedError
from foreign_servers.pulsar_standalone import PulsarStandalone

from benchmarks.peers.segstore_standalone import UNSTORED, AssembledStore, SegstoreStandalone
from benchmarks.streams import rows

RAM_PROPERTIES = {"pravegaservice.cache.size.max": str(2 * 2**30)}
"""By default acks stop when 128 MiB of cache are full: unthrottled rows would have no numbers."""


def server(key: str) -> Peer:
    """Return a server by its key: ours, or one of the peers."""
    makers: dict[str, Callable[[], Peer]] = {
        rows.OURS: SegstoreStandalone,
        rows.DURABLE: OriginalDurable,
        rows.RAM: lambda: OriginalStandalone(properties=RAM_PROPERTIES),
        rows.KAFKA: lambda: KafkaBroker(fsync=False),
        rows.KAFKA_FSYNC: lambda: KafkaBroker(fsync=True),
        rows.CEILING: lambda: AssembledStore(UNSTORED),
        rows.PULSAR: PulsarStandalone,
        rows.PULSAR_OFFLOAD: lambda: PulsarStandalone(offloads=True),
    }
    return makers[key]()


def secure_server(key: str) -> Peer:
    """Return the server with TLS, a user and tokens. Raises ``PeerFailedError`` where none has."""
    if key == rows.OURS:
        return SegstoreStandalone(secure=True)
    if key == rows.DURABLE:
        return OriginalDurable(secure=True)
    raise PeerFailedError(f"{key} is not measured with TLS")


def cached_server(key: str, cache_bytes: int) -> Peer:
    """Return the server with this size of its own cache, if it has one.

    Kafka's cache is the system's.
    """
    size = str(cache_bytes)
    if key == rows.OURS:
        return SegstoreStandalone(settings=f"[segment_store]\ncache_bytes_max = {size}\n")
    if key == rows.DURABLE:
        memory = f"-XX:MaxDirectMemorySize={cache_bytes // 2**20 + 2048}m"
        return OriginalDurable(
            segment_store_options=("-Xmx4g", memory),
            properties={"pravegaservice.cache.size.max": size},
        )
    return AssembledStore(UNSTORED, cache_bytes=cache_bytes) if key == rows.CEILING else server(key)


def servers(keys: Iterable[str]) -> dict[str, Peer]:
    """Return servers by their keys."""
    return {key: server(key) for key in keys}
