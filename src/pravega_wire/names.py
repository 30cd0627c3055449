"""Names of scopes, streams and segments, and the numbers in the names of segments.

Owns: the grammar of segment names, segment ids, name rules, and the container of a segment.

    segment     = [scope "/"] stream "/" number [".#epoch." epoch]
    transaction = segment "#transaction." 32hex
    transient   = segment "#transient." 32hex "." 32hex

A segment id is ``epoch << 32 | number``; an id of 16 bytes is written as 32 hex digits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pravega_wire.hashing import container_hash

INTERNAL_SCOPE = "_system"
SYSTEM_PREFIX = f"{INTERNAL_SCOPE}/"
"""Prefix of the names of segments that the cluster needs for itself."""
NAME_LENGTH_MAX = 255
USER_NAME_LENGTH_MAX = 250
"""Maximum length, in characters, of the name of a reader group or a key-value table. It is less
than ``NAME_LENGTH_MAX``, because a prefix or suffix makes an internal stream's name from it."""


def _rule(length_max: int) -> str:
    return (
        f"a name has 1 to {length_max} characters: letters from A to Z and a to z, digits, dots "
        'and hyphens; "." and ".." are no names'
    )


NAME_RULE = _rule(NAME_LENGTH_MAX)
"""The rule for scopes and streams, as a sentence for users."""
USER_NAME_RULE = _rule(USER_NAME_LENGTH_MAX)
"""The rule for reader groups and key-value tables, as a sentence for users."""

EPOCH_DELIMITER = ".#epoch."
TRANSACTION_DELIMITER = "#transaction."
TRANSIENT_DELIMITER = "#transient."
READER_GROUP_PREFIX = "_RG"
MARK_PREFIX = "_MARK"
KEY_VALUE_TABLE_SUFFIX = "_kvtable"
TABLES_STREAM = "_tables"
CONTAINER_METADATA_PREFIX = "_system/containers/metadata_"
STORAGE_METADATA_PREFIX = "_system/containers/storage_metadata_"

_ID_DIGITS = 32
_INT32_MAX = 2**31 - 1
_NAME = re.compile(r"(?!\.\.?\Z)(_?)[A-Za-z0-9.\-]+")
_SHOWN_MAX = 60
"""Maximum number of characters of a refused name that the error's sentence repeats."""
_SEGMENT = re.compile(
    r"(?:([^/#]+)/)?([^/#]+)/([0-9]{1,10})(?:\.#epoch\.([0-9]{1,10}))?"
    r"(?:#transaction\.([0-9a-f]{32})|#transient\.([0-9a-f]{32})\.([0-9a-f]{32}))?"
)


class InvalidNameError(ValueError):
    """A name breaks the rules for its kind."""


@dataclass(frozen=True, slots=True)
class SegmentName:
    """The parts of a stream segment's name. ``scope`` may be empty."""

    scope: str
    stream: str
    segment_number: int
    epoch: int
    transaction_id: bytes | None = None
    writer_id: bytes | None = None
    """The creator of a transient segment; None for other segments."""

    @property
    def segment_id(self) -> int:
        return segment_id(self.segment_number, self.epoch)


def segment_id(number: int, epoch: int) -> int:
    """Return the int64 id of a segment, from its number and the epoch of its creation."""
    if not (0 <= number <= _INT32_MAX and 0 <= epoch <= _INT32_MAX):
        raise InvalidNameError(f"segment number {number} or epoch {epoch} is out of range")
    return epoch << 32 | number


def segment_number(identifier: int) -> int:
    """Return the number in a segment id."""
    return identifier & 0xFFFF_FFFF


def segment_epoch(identifier: int) -> int:
    """Return the epoch in a segment id."""
    return identifier >> 32


def transaction_epoch(transaction_id: bytes) -> int:
    """Return the epoch in which a transaction was begun."""
    return int.from_bytes(transaction_id[:4], "big", signed=True)


def scoped_name(scope: str, name: str) -> str:
    """Return ``scope/name``, or the bare name without a scope."""
    return f"{scope}/{name}" if scope else name


def segment_name(scope: str, stream: str, identifier: int) -> str:
    """Return the name of a stream's segment."""
    number, epoch = segment_number(identifier), segment_epoch(identifier)
    return f"{scoped_name(scope, stream)}/{number}{EPOCH_DELIMITER}{epoch}"


def key_value_table_stream(table: str) -> str:
    """Return the part of a key-value table's segment names that is in the place of a stream's
    name."""
    return table + KEY_VALUE_TABLE_SUFFIX


def table_name(scope: str, *tokens: str) -> str:
    """Return the name of a controller's metadata table."""
    return "/".join((scope, TABLES_STREAM, *tokens))


def reader_group_stream(group: str) -> str:
    """Return the name of the internal stream that holds a reader group's state."""
    return READER_GROUP_PREFIX + group


def mark_stream(stream: str) -> str:
    """Return the name of the internal stream that holds a stream's watermarks."""
    return MARK_PREFIX + stream


def transaction_segment_name(parent_name: str, transaction_id: bytes) -> str:
    """Return the name of a transaction's segment beside its parent."""
    assert len(transaction_id) == 16
    return parent_name + TRANSACTION_DELIMITER + transaction_id.hex()


def transient_segment_name(parent_name: str, writer_id: bytes, random: bytes) -> str:
    """Return the name of a segment that exists only until it is merged into its parent."""
    assert len(writer_id) == len(random) == 16
    return f"{parent_name}{TRANSIENT_DELIMITER}{writer_id.hex()}.{random.hex()}"


def is_transaction_segment(name: str) -> bool:
    return _delimiter_position(name, TRANSACTION_DELIMITER) >= 0


def is_transient_segment(name: str) -> bool:
    return _delimiter_position(name, TRANSIENT_DELIMITER) >= 0


def parent_segment_name(name: str) -> str | None:
    """Return the segment into which a transaction's or transient segment is merged.

    Returns None for the name of any other segment.
    """
    for delimiter in (TRANSACTION_DELIMITER, TRANSIENT_DELIMITER):
        position = _delimiter_position(name, delimiter)
        if position >= 0:
            return name[:position]
    return None


def primary_segment_name(name: str) -> str:
    """Return the part of a segment's name that determines its container.

    That is the name without the suffixes of a transaction and of an epoch.
    """
    while (parent := parent_segment_name(name)) is not None:
        name = parent
    head, delimiter, _ = name.rpartition(EPOCH_DELIMITER)
    return head if delimiter else name


def parse_segment_name(name: str) -> SegmentName:
    """Parse a stream segment's name. Raises ``InvalidNameError`` for any other name."""
    match = _SEGMENT.fullmatch(name)
    if match is None:
        raise InvalidNameError(f"not a stream segment's name: {name!r}")
    scope, stream, number, epoch, transaction_id, writer_id, _ = match.groups()
    parsed = SegmentName(
        scope or "",
        stream,
        int(number),
        int(epoch or 0),
        bytes.fromhex(transaction_id) if transaction_id else None,
        bytes.fromhex(writer_id) if writer_id else None,
    )
    segment_id(parsed.segment_number, parsed.epoch)
    return parsed


def container_of(name: str, container_count: int) -> int:
    """Return the number of the container that a segment belongs to.

    The name of a container's metadata segment ends with the number of that container. The hash of
    the name determines the container of any other segment.
    """
    for prefix in (CONTAINER_METADATA_PREFIX, STORAGE_METADATA_PREFIX):
        suffix = name.removeprefix(prefix)
        if suffix != name and suffix.isascii() and suffix.isdecimal() and int(suffix) <= _INT32_MAX:
            return int(suffix)
    return container_hash(primary_segment_name(name), container_count)


def validate_user_name(name: str) -> str:
    """Return the name if a user may give it to a reader group or a key-value table.

    Raises ``InvalidNameError``, with the rule as a sentence, otherwise.
    """
    return _validate(name, USER_NAME_LENGTH_MAX, USER_NAME_RULE, is_internal=False)


def validate_name(name: str) -> str:
    """Return the name if a scope or stream may have it; internal names begin with an underscore.

    Raises ``InvalidNameError``, with the rule as a sentence, otherwise.
    """
    return _validate(name, NAME_LENGTH_MAX, NAME_RULE, is_internal=True)


def _validate(name: str, length_max: int, rule: str, *, is_internal: bool) -> str:
    """Return the name if every tier 2 can store segments whose names have it as a component.

    So ``.`` and ``..`` are refused: they have a meaning of their own as names of directories.
    """
    match = _NAME.fullmatch(name)
    if match is None or len(name) > length_max or (match[1] and not is_internal):
        shown = name if len(name) <= _SHOWN_MAX else name[:_SHOWN_MAX] + "..."
        raise InvalidNameError(f"{shown!r} cannot be a name: {rule}")
    return name


def _delimiter_position(name: str, delimiter: str) -> int:
    position = name.rfind(delimiter)
    complete = position >= 0 and position + len(delimiter) + _ID_DIGITS <= len(name)
    return position if complete else -1
