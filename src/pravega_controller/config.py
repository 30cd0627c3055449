"""What a controller is told when it starts.

Owns: the configuration's fields, their defaults, and what is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_PORT = 9090
DEFAULT_SEGMENT_STORE_PORT = 12345


class ConfigurationError(ValueError):
    """The configuration cannot be served."""


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """A controller's configuration. Times are in seconds.

    ``segment_stores`` are the addresses at which the controller itself reaches the segment stores;
    container ``c`` lives on the store at index ``c % len(segment_stores)``. Clients are sent to the
    port of a segment's store at the host they dialled the controller at, or at
    ``published_address`` if there is one.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    segment_stores: tuple[tuple[str, int], ...] = (("127.0.0.1", DEFAULT_SEGMENT_STORE_PORT),)
    container_count: int = 4
    published_address: str | None = None
    """The host that clients are sent to, for controller and segment stores alike."""
    startup_seconds_max: float = 60.0
    """How long to wait at the start for the segment stores to answer."""
    reply_seconds_max: float = 20.0
    """How long one request to a segment store may take."""
    retry_seconds_max: float = 30.0
    """How long a request is retried while its segment store is away."""
    drain_seconds: float = 5.0
    """How long calls under way may go on once the controller is told to stop."""
    heartbeat_seconds: float = 1.0
    """So often a controller shows that it lives; one silent for six times as long counts as dead.
    The same for all controllers of a store."""
    request_poll_seconds: float = 1.0
    """So often it is looked whether segment stores ask for scaling; 0 for never."""
    scale_event_seconds_max: float = 600.0
    """Requests for scaling that are older are dropped."""
    idle_segment_seconds: float = 600.0
    """For so long a segment counts as idle after it was reported to be."""
    idle_sweep_seconds: float = 3600.0
    """So often marks of segments that do not exist any more are removed."""
    watermark_period_seconds: float = 10.0
    """The pause between two rounds of watermarks; 0 for none."""
    retention_period_seconds: float = 1800.0
    """Once in this time each stream with a retention policy is looked at; 0 for never."""

    def __post_init__(self) -> None:
        if not self.segment_stores:
            raise ConfigurationError("a controller needs at least one segment store")
        if self.container_count < 1:
            raise ConfigurationError(f"there cannot be {self.container_count} containers")
        for host, port in (*self.segment_stores, (self.host, self.port)):
            if not host or not 0 <= port <= 65535:
                raise ConfigurationError(f"{host!r}:{port} is not an address")
        if self.published_address is not None and not self.published_address:
            raise ConfigurationError("the published address is empty")
        for name in ("request_poll", "watermark_period", "retention_period"):
            # Not a number is no time either.
            if not getattr(self, f"{name}_seconds") >= 0:
                raise ConfigurationError(f"{name}_seconds has to be 0 or more")
        for name in (
            "heartbeat_seconds",
            "scale_event_seconds_max",
            "idle_segment_seconds",
            "idle_sweep_seconds",
        ):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} has to be more than 0")
