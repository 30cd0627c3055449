"""The records that the controller stores: one class per stored value, and its bytes.

Owns: the formats of docs/formats/controller-metadata.md. Every value is a JSON object whose member
``format`` numbers its layout, so that a later controller can read what an earlier one wrote.

Invariants:
1. ``decode(encode(record)) == record``, doubles bit for bit.
2. A record's ``pending`` member says which workflow is in progress; together with the records of
   the same stream it is all that is needed to finish the work.
3. No record grows with a stream's past. What grows with the number of its segments fits one table
   value at the greatest number there may be.
"""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import msgspec

from pravega_controller.errors import CorruptMetadataError
from pravega_controller.history import Epoch
from pravega_controller.streams import Segment, StreamConfiguration


class ScopeRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """A scope. ``scope_id`` names its tables, so that a scope that is created again starts with
    empty ones.
    """

    scope_id: str
    phase: str
    """``creating``, ``active`` or ``deleting``."""


# ---- Streams -------------------------------------------------------------------------------------


GONE = b'{"format":0}'
"""Value in place of a stream's record: no stream will ever have this id."""


class NameRecord(msgspec.Struct, frozen=True, tag_field="format", tag=2):
    """A stream's name, and what all its records are filed under."""

    stream_id: str
    """Drawn when the stream is made: a stream that is created again under the name has another."""


class Create(msgspec.Struct, frozen=True, tag_field="workflow", tag="create"):
    """The segments of epoch 0 are being made."""


class Scale(msgspec.Struct, frozen=True, tag_field="workflow", tag="scale"):
    """Segments are being replaced by those of the last epoch on record."""


class Truncate(msgspec.Struct, frozen=True, tag_field="workflow", tag="truncate"):
    """The head has moved; what lies between the head before and the new one is being dropped."""


class Update(msgspec.Struct, frozen=True, tag_field="workflow", tag="update"):
    """The next configuration is being told to the segments."""


class Seal(msgspec.Struct, frozen=True, tag_field="workflow", tag="seal"):
    """Every segment is being sealed for good."""


class Delete(msgspec.Struct, frozen=True, tag_field="workflow", tag="delete"):
    """The stream and everything that belongs to it is being removed."""

    has_segments: bool = True
    """True if there may be segments left, to be found by the epochs."""


StreamWorkflow: TypeAlias = Create | Scale | Truncate | Update | Seal | Delete


class Rolling(msgspec.Struct, frozen=True):
    """Transactions of an earlier epoch are being merged, by the last two epochs on record."""

    transactions: tuple[str, ...]
    """Their ids in hexadecimal, in the order of their commits."""


class Expiring(msgspec.Struct, frozen=True):
    """Epochs before a stream's head that no reader may rely on any more, and since when."""

    before: int
    """The first epoch that stays; it has a snapshot."""
    since_ms: int


class StreamRecord(msgspec.Struct, frozen=True, tag_field="format", tag=2):
    """A stream's state: small, whatever the stream's past, because every change writes it.

    All that may be large is in records of its own. Those that change carry the revision at which
    this record has them, so that this record alone tells whether what was read is still so.
    """

    created_ms: int
    epoch: int
    """The active epoch. More may be recorded while a scale is in progress."""
    epoch_count: int
    next_number: int
    """The first segment number that no segment of this stream ever had."""
    base: int = 0
    """The last epoch of which there is a snapshot."""
    changed_since_base: int = 0
    """The segments created and sealed by the epochs after it."""
    epoch_bytes_max: int = 0
    """The size of the largest record of an epoch."""
    configuration_revision: int = 0
    head_revision: int = 0
    """0 as long as the stream was never truncated."""
    is_sealed: bool = False
    first_epoch: int = 0
    """First epoch that readers can ask about; there is a snapshot of it unless it is 0."""
    removed_before: int = 0
    """First epoch that may have records; at most ``first_epoch``."""
    expiring: Expiring | None = None
    """The epochs that go next. No transaction can be begun on one of them."""
    pending: StreamWorkflow | None = None
    rolling: Rolling | None = None
    """Beside ``pending``, since a stream is rolled while it is being sealed, too."""
    owner: str = ""
    """The controller that does what is pending; any may, if it is empty."""


class ConfigurationRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """A stream's configuration, and the one that is to replace it while an update is pending."""

    revision: int
    configuration: StreamConfiguration
    next: StreamConfiguration | None = None


class HeadRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """The stream cut that a stream begins at."""

    revision: int
    cut: dict[int, int]
    previous: dict[int, int] = {}
    """The head before; empty for the very beginning."""


class EpochRecord(msgspec.Struct, frozen=True, tag_field="format", tag=2):
    """One epoch of a stream."""

    epoch: Epoch
    base: int
    """The last epoch up to this one of which there is a snapshot."""


class SnapshotRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """All segments of an epoch, by key range."""

    number: int
    segments: tuple[Segment, ...]


class SealedRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """The epoch that sealed a segment."""

    epoch: int


class SizesRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """The lengths, by id, of the segments that an epoch, or the stream's end, sealed."""

    sizes: dict[int, int]


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
        """Return the scope and name of every stream that the group reads."""
        return frozenset((c.scope, c.stream) for c in (*self.starting_cuts, *self.ending_cuts))

    @property
    def subscribed(self) -> frozenset[tuple[str, str]]:
        """Return the streams whose retention waits for this group."""
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


class SubscriberRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """The position up to which a reader group has released a stream."""

    generation: int
    cut: dict[int, int]


class SubscribersRecord(msgspec.Struct, frozen=True, tag_field="format", tag=2):
    """The reader groups, as ``scope/name``, that a stream's retention waits for."""

    names: tuple[str, ...]


class IntentRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """Says that something may have a workflow to finish."""

    kind: str
    """``scope``, ``stream``, ``group`` or ``key-value-table``; for segments that a dead controller
    may create late, ``transaction-segments``, ``stream-segments`` or ``table-segments``."""
    scope: str
    name: str = ""
    stream_ids: tuple[str, ...] = ()
    """Ids of streams being made, whose records no name leads to yet."""
    segment_numbers: tuple[int, ...] = ()
    """Numbers of the segments of a transaction that are to be deleted again."""
    segment_ids: tuple[int, ...] = ()
    """Ids of segments of a stream, or of a key-value table, to be deleted later if unneeded."""


R = TypeVar("R", bound=msgspec.Struct)

_encoder = msgspec.json.Encoder()
_decoders: dict[type[msgspec.Struct], msgspec.json.Decoder[msgspec.Struct]] = {}


def encode(record: msgspec.Struct) -> bytes:
    """Return the bytes of a record."""
    return _encoder.encode(record)


def decode(value: bytes, kind: type[R]) -> R:
    """Return the record that the bytes encode. Raises ``CorruptMetadataError`` for any other
    bytes.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        record = decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptMetadataError(f"not a {kind.__name__}: {error}") from error
    assert isinstance(record, kind)
    return record
