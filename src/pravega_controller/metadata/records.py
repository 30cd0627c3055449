"""The records that the controller stores: one class per stored value, and its bytes.

Owns: the formats of docs/formats/controller-metadata.md. Every value is a JSON object whose member
``format`` numbers its layout, so that a later controller can read what an earlier one wrote.

A record's ``pending`` member says which workflow is in progress.

Invariants:
1. When a record is encoded and decoded, it is the same; doubles are the same bit for bit.
   Held by ``test_doubles_and_ids_come_back_bit_for_bit``.
2. When a controller dies during a workflow, another one finishes it from ``pending`` and the other
   records of the object.
   Held by ``test_a_controller_killed_anywhere_is_finished_by_the_next_or_another``.
3. When a stream has a long history, its own record stays small.
   Held by ``test_a_streams_own_record_is_small_whatever_its_past``.
4. When a stream has the maximum number of segments, each of its records fits one table value.
   Held by ``test_the_largest_epoch_fits_a_table_value``.
"""

from __future__ import annotations

from types import NoneType
from typing import Final, TypeAlias, TypeVar

import msgspec

from pravega_controller.errors import CorruptMetadataError
from pravega_controller.rules.history import Epoch
from pravega_controller.rules.streams import Segment, StreamConfiguration


class ScopeRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """A scope. The names of its tables contain ``scope_id``, so that a scope that is created again
    starts with empty tables.
    """

    scope_id: str
    phase: str
    """``creating``, ``active`` or ``deleting``."""


# ---- Streams -------------------------------------------------------------------------------------


GONE = b'{"format":0}'
"""Value in place of a stream's state: it prevents that a stream with this id is ever created."""


class NameRecord(msgspec.Struct, frozen=True, tag_field="format", tag=2):
    """A stream's name, and the id in the keys of all its records."""

    stream_id: str
    """A random id, drawn at the creation: a stream created again with this name has another id."""


class Create(msgspec.Struct, frozen=True, tag_field="workflow", tag="create"):
    """The segments of epoch 0 are being created."""


class Scale(msgspec.Struct, frozen=True, tag_field="workflow", tag="scale"):
    """Segments are being replaced by those of the last recorded epoch."""


class Truncate(msgspec.Struct, frozen=True, tag_field="workflow", tag="truncate"):
    """The head has moved, and the data between the old head and the new one are being deleted."""


class Update(msgspec.Struct, frozen=True, tag_field="workflow", tag="update"):
    """The next configuration is being sent to the segments."""


class Seal(msgspec.Struct, frozen=True, tag_field="workflow", tag="seal"):
    """Every segment is being sealed permanently."""


class Delete(msgspec.Struct, frozen=True, tag_field="workflow", tag="delete"):
    """The stream is being removed, with everything that belongs to it."""

    has_segments: bool = True
    """True if segments of the stream may still exist; the epochs name them."""


StreamWorkflow: TypeAlias = Create | Scale | Truncate | Update | Seal | Delete

NEXT_WORKFLOWS: Final[dict[type[StreamWorkflow | None], frozenset[type[StreamWorkflow | None]]]] = {
    NoneType: frozenset({NoneType, Scale, Truncate, Update, Seal, Delete}),
    Create: frozenset({Create, NoneType, Delete}),
    Scale: frozenset({Scale, NoneType}),
    Truncate: frozenset({Truncate, NoneType}),
    Update: frozenset({Update, NoneType, Scale}),
    Seal: frozenset({Seal, NoneType}),
    Delete: frozenset({Delete}),
}
"""The workflows that may follow each pending workflow (``NoneType``: none is pending). A workflow
follows itself when another controller takes it over, or after a step. ``Delete`` follows ``Create``
if a segment store refuses to create the segments; other refused workflows end. ``Scale`` follows
``Update`` if the number of segments must change."""


class Rolling(msgspec.Struct, frozen=True):
    """A roll is pending: transactions of an earlier epoch are merged, by the last two epochs."""

    transactions: tuple[str, ...]
    """The ids of the transactions, in hexadecimal, in the order of their commits."""


class Expiring(msgspec.Struct, frozen=True):
    """The epochs before a stream's head that will be dropped, and when they began to expire."""

    before: int
    """The first epoch that will be kept; it has a snapshot."""
    since_ms: int


class StreamRecord(msgspec.Struct, frozen=True, tag_field="format", tag=2):
    """The state of a stream. Every change of the stream writes this record, so it must be small.

    Everything that may be large is in other records. If such a record can change, this record has
    its revision. So this record tells whether another record that was read before is still current.
    """

    created_ms: int
    epoch: int
    """The active epoch. More may be recorded while a scale is in progress."""
    epoch_count: int
    next_number: int
    """The number of the next segment: no segment of this stream has had it."""
    base: int = 0
    """The last epoch that has a snapshot."""
    changed_since_base: int = 0
    """Number of segments that the epochs after ``base`` created, plus those that they sealed."""
    epoch_bytes_max: int = 0
    """The size of the largest record of an epoch."""
    configuration_revision: int = 0
    head_revision: int = 0
    """0 until the stream is truncated for the first time."""
    is_sealed: bool = False
    first_epoch: int = 0
    """The first epoch about which queries are answered; it has a snapshot unless it is 0."""
    removed_before: int = 0
    """The first epoch that may have records; at most ``first_epoch``."""
    expiring: Expiring | None = None
    """The epochs that are dropped next. No transaction can be begun on one of them."""
    pending: StreamWorkflow | None = None
    rolling: Rolling | None = None
    """It is separate from ``pending``, because a stream may be rolled while it is being sealed."""
    owner: str = ""
    """The controller that does the pending work; if empty, any controller may do it."""
    withdrawn: int = 0
    """Number of epochs that were withdrawn. Later epochs may have got their numbers."""


class ConfigurationRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """A stream's configuration and, while an update is pending, the one that will replace it."""

    revision: int
    configuration: StreamConfiguration
    next: StreamConfiguration | None = None


class HeadRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """The stream cut at which a stream begins."""

    revision: int
    cut: dict[int, int]
    previous: dict[int, int] = {}
    """The head before this one; empty if that was the beginning of the stream."""


class EpochRecord(msgspec.Struct, frozen=True, tag_field="format", tag=2):
    """One epoch of a stream."""

    epoch: Epoch
    base: int
    """The last epoch with a snapshot, up to and including this epoch."""


class SnapshotRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """All segments of an epoch, by key range."""

    number: int
    segments: tuple[Segment, ...]


class SealedRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """The epoch that sealed a segment."""

    epoch: int


class SizesRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """The lengths, by id, of the segments that an epoch, or the seal of the stream, has sealed."""

    sizes: dict[int, int]


class NumberRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """The first segment number a stream of this name may use."""

    next_number: int


# ---- Reader groups -------------------------------------------------------------------------------


class NamedCut(msgspec.Struct, frozen=True):
    """A cut of one stream. An empty cut stands for no bound."""

    scope: str
    stream: str
    cut: dict[int, int]


class ReaderGroupConfiguration(msgspec.Struct, frozen=True):
    """All settings of a reader group that a user chose, exactly as they were received."""

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
        """Return the streams whose retention keeps data for this group."""
        return self.streams if self.retention_type else frozenset()


class CreateGroup(msgspec.Struct, frozen=True, tag_field="workflow", tag="create"):
    """The group's stream and subscriptions are being created."""


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
    """The reader groups, as ``scope/name``, for which a stream's retention keeps data."""

    names: tuple[str, ...]


class IntentRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """A note that an object may have an unfinished workflow (``intents``)."""

    kind: str
    """``scope``, ``stream``, ``group`` or ``key-value-table``; for segments that a dead controller
    may create late, ``transaction-segments``, ``stream-segments`` or ``table-segments``; for tables
    of a scope, ``scope-tables``."""
    scope: str
    name: str = ""
    stream_ids: tuple[str, ...] = ()
    """Ids of streams that are being created, and that no name leads to yet."""
    segment_numbers: tuple[int, ...] = ()
    """Numbers of the segments of a transaction that are to be deleted again."""
    segment_ids: tuple[int, ...] = ()
    """Ids of segments of a stream or key-value table that are deleted later unless needed."""


R = TypeVar("R", bound=msgspec.Struct)

_encoder = msgspec.json.Encoder()
_decoders: dict[type[msgspec.Struct], msgspec.json.Decoder[msgspec.Struct]] = {}


def encode(record: msgspec.Struct) -> bytes:
    """Return the bytes of a record."""
    return _encoder.encode(record)


def decode(value: bytes, kind: type[R]) -> R:
    """Return the record of this kind in the bytes. Raises ``CorruptMetadataError`` if they are no
    such record."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        record = decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptMetadataError(f"not a {kind.__name__}: {error}") from error
    assert isinstance(record, kind)
    return record
