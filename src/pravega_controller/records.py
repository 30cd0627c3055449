"""What the controller stores: one class per stored value, and its bytes.

Owns: the formats of docs/formats/controller-metadata.md. Every value is a JSON object whose member
``format`` numbers its layout, so that a later controller can read what an earlier one wrote.

Invariants:
1. ``decode(encode(record)) == record``, doubles bit for bit.
2. A record's ``pending`` member is the whole of a workflow in progress: whoever reads it can finish
   the work, knowing nothing else.
"""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import msgspec

from pravega_controller.errors import CorruptMetadataError
from pravega_controller.history import Epoch
from pravega_controller.streams import StreamConfiguration


class ScopeRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """A scope. ``scope_id`` names its tables, so that a scope made anew starts with empty ones."""

    scope_id: str
    phase: str
    """``creating``, ``active`` or ``deleting``."""


# ---- Workflows in progress on a stream -----------------------------------------------------------


class Create(msgspec.Struct, frozen=True, tag_field="workflow", tag="create"):
    """The stream's first segments are being made."""

    first: Epoch


class Scale(msgspec.Struct, frozen=True, tag_field="workflow", tag="scale"):
    """Segments are being replaced by those of the next epoch."""

    epoch: Epoch


class Truncate(msgspec.Struct, frozen=True, tag_field="workflow", tag="truncate"):
    """The head has moved to the record's ``head``; bytes before it are being dropped."""

    deleted: tuple[int, ...]
    """The segments that lie wholly between the previous head and the new one."""


class Update(msgspec.Struct, frozen=True, tag_field="workflow", tag="update"):
    """Another configuration is being told to the segments."""

    configuration: StreamConfiguration


class Seal(msgspec.Struct, frozen=True, tag_field="workflow", tag="seal"):
    """Every segment is being sealed for good."""


class Delete(msgspec.Struct, frozen=True, tag_field="workflow", tag="delete"):
    """The stream and everything that belongs to it is being removed."""


StreamWorkflow: TypeAlias = Create | Scale | Truncate | Update | Seal | Delete


class StreamRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """A stream's state, apart from its epochs, which have a record each."""

    configuration: StreamConfiguration
    created_ms: int
    epoch: int
    """The active epoch. One more may be recorded while a scale is in progress."""
    epoch_count: int
    head: dict[int, int] = {}
    """The stream cut that the stream begins at; empty for its very beginning."""
    is_sealed: bool = False
    pending: StreamWorkflow | None = None


class EpochRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """One epoch of a stream."""

    epoch: Epoch


class NumberRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """The first segment number a stream of this name may use."""

    next_number: int


# ---- Reader groups -------------------------------------------------------------------------------


class NamedCut(msgspec.Struct, frozen=True):
    """A cut of one stream; empty means no bound."""

    scope: str
    stream: str
    cut: dict[int, int]


class ReaderGroupConfiguration(msgspec.Struct, frozen=True):
    """Everything a user says about a reader group; handed back exactly as it came."""

    refresh_ms: int
    checkpoint_interval_ms: int
    outstanding_checkpoints_max: int
    retention_type: int
    starting_cuts: tuple[NamedCut, ...]
    ending_cuts: tuple[NamedCut, ...]
    rollover_bytes: int = 0

    @property
    def streams(self) -> frozenset[tuple[str, str]]:
        """The scope and name of every stream the group reads."""
        return frozenset((c.scope, c.stream) for c in (*self.starting_cuts, *self.ending_cuts))

    @property
    def subscribed(self) -> frozenset[tuple[str, str]]:
        """The streams whose retention waits for this group."""
        return self.streams if self.retention_type else frozenset()


class CreateGroup(msgspec.Struct, frozen=True, tag_field="workflow", tag="create"):
    """The group's stream and subscriptions are being made."""


class UpdateGroup(msgspec.Struct, frozen=True, tag_field="workflow", tag="update"):
    """Subscriptions are being changed to those of another configuration."""

    configuration: ReaderGroupConfiguration


class DeleteGroup(msgspec.Struct, frozen=True, tag_field="workflow", tag="delete"):
    """The group's stream and subscriptions are being removed."""


GroupWorkflow: TypeAlias = CreateGroup | UpdateGroup | DeleteGroup


class ReaderGroupRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """A reader group."""

    group_id: str
    generation: int
    configuration: ReaderGroupConfiguration
    pending: GroupWorkflow | None = None


class Subscriber(msgspec.Struct, frozen=True):
    """How far a reader group has released a stream."""

    generation: int
    cut: dict[int, int]


class SubscribersRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """The reader groups, as ``scope/name``, that a stream's retention waits for."""

    subscribers: dict[str, Subscriber]


class IntentRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """Says that something may have a workflow to finish."""

    kind: str
    """``scope``, ``stream``, ``group`` or ``key-value-table``."""
    scope: str
    name: str = ""


R = TypeVar("R", bound=msgspec.Struct)

_encoder = msgspec.json.Encoder()
_decoders: dict[type[msgspec.Struct], msgspec.json.Decoder[msgspec.Struct]] = {}


def encode(record: msgspec.Struct) -> bytes:
    """The bytes of a record."""
    return _encoder.encode(record)


def decode(value: bytes, kind: type[R]) -> R:
    """The record that the bytes are. Raises ``CorruptMetadataError`` for anything else."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        record = decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptMetadataError(f"not a {kind.__name__}: {error}") from error
    assert isinstance(record, kind)
    return record
