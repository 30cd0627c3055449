"""Every parser of bytes that strangers, disks or tables hand us, with valid input for each."""

from __future__ import annotations

import base64
import hmac
import struct
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from exact import exact
from fuzzing import Target
from security_targets import security_targets

from _fast.btree.page import FOOTER_BYTES, PAGE_HEADER_BYTES
from _fast.btree.tree import Batch, CorruptPageError, Footer, PageCache, Tree
from _fast.crc import crc32c
from _fast.log.journal import BatchScan, read_entries
from _fast.log.replay import AppendBatch, EntryNeededError
from _fast.wire.appends import AppendDecoder
from _fast.wire.events import EventError, compact_events, scan_events
from _fast.wire.frames import FrameError, scan_frames
from pravega_controller.errors import CorruptMetadataError
from pravega_controller.metadata import records
from pravega_controller.rules.history import Epoch
from pravega_controller.rules.streams import Segment, fixed_configuration
from pravega_security.delegation_tokens import TokenError, TokenMinter, TokenVerifier
from pravega_security.signing_keys import (
    KeyFile,
    SigningKey,
    SigningKeysError,
    decode_key_file,
    encode_key_file,
)
from pravega_wire import names
from pravega_wire.codec import decode, encode, slots_of
from pravega_wire.commands import (
    COMMAND_BYTES_MAX,
    COMMANDS,
    AppendBlock,
    AppendBlockEnd,
    Command,
    ConditionalAppend,
    ConditionalBlockEnd,
    Hello,
    Reply,
    Request,
    SetupAppend,
    TableIteratorArgs,
)
from pravega_wire.connection import Connection, Role, append_block
from pravega_wire.errors import LocalProtocolError, RemoteProtocolError
from pravega_wire.event_framing import frame_events, iterate_event_spans
from pravega_wire.fields import Fixed, Prefixed, decode_text, encode_text
from segstore.chunks.chunk_metadata import ChunkMetadata
from segstore.chunks.records import (
    AddChunk,
    Change,
    ChunkRecordError,
    Collected,
    Condemn,
    Forget,
    MoveChunks,
    Truncate,
    decode_change,
    decode_frames,
    encode_change,
    encode_frame,
)
from segstore.durable_log.data_frame import DataFrame, FrameReplay
from segstore.errors import DataLogCorruptError
from segstore.model.metadata import ContainerMetadata
from segstore.model.operations import (
    AppendOperation,
    CheckpointOperation,
    DeleteOperation,
    MapOperation,
    MergeOperation,
    Operation,
    SealOperation,
    TruncateOperation,
    UpdateAttributesOperation,
    decode_operation,
)
from segstore.tables.entries import TableDataError, encode_entry, parse_entries
from segstore.tiers.api import DigestedEntry, LogAddress
from segstore.tiers.journal.files import JournalFile, parse_name
from segstore.tiers.journal.format import (
    BATCH_HEADER_BYTES,
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    FileHeader,
    Kind,
    Record,
    decode_file_header,
    encode_batch,
    encode_file_header,
)
from segstore.tiers.journal.scan import find_later_batch, scan_file
from support.models.stored_tree import parts_of

WRITER, OTHER_WRITER = bytes(range(16)), bytes(range(16, 32))
ANY_TYPE = bytes([1]) * 256

# ---- The wire ------------------------------------------------------------------------------------


def sample(kind: Any) -> Any:
    """Return a value of a field's kind."""
    match kind:
        case Fixed("?"):
            return True
        case Fixed("16s"):
            return WRITER
        case Fixed():
            return 3
        case Prefixed(_, text=True):
            return "scope/stream/0.#epoch.0"
        case [item]:
            return (sample(item),) * 2
        case type() if issubclass(kind, msgspec.Struct):
            return kind(*[sample(slot.kind) for slot in slots_of(kind)])
    return b"some bytes"


def sample_commands() -> dict[int, bytes]:
    """Return the payload of one command of every type."""
    return {
        code: encode(cls(*[sample(slot.kind) for slot in slots_of(cls)]))[8:]
        for code, cls in COMMANDS.items()
    }


def frame(code: int, payload: bytes) -> bytes:
    return struct.pack(">ii", code, len(payload)) + payload


def append_streams() -> list[bytes]:
    """Return what clients send: blocks of all shapes."""
    setup = encode(SetupAppend(1, WRITER, "s/t/0", "")) + encode(
        SetupAppend(2, OTHER_WRITER, "s/t/1", "")
    )
    events = frame_events([b"one", b"", b"three" * 50])
    block = append_block(WRITER, [b"one", b"two"], last_event_number=2, request_id=3)
    partial = events[:-20] + frame(-2, events[-20:-10])
    padded = events + frame(-1, bytes(12))
    ends = [
        encode(AppendBlock(WRITER, partial))
        + encode(AppendBlockEnd(WRITER, len(events) - 20, events[-10:], 3, 5, 6)),
        encode(AppendBlock(WRITER, padded))
        + encode(AppendBlockEnd(WRITER, len(events), b"", 3, 5, 6)),
        encode(AppendBlockEnd(OTHER_WRITER, 0, events, 3, 5, 6)),
        encode(ConditionalAppend(WRITER, 9, 100, b"event", 7)),
        encode(ConditionalBlockEnd(WRITER, 9, 100, b"event", 7)),
        frame(-1, bytes(5)),
    ]
    hello = encode(Hello(16, 5))
    return [hello + setup + block, *[setup + end for end in ends], setup + block + b"".join(ends)]


_APPENDS = (AppendBlock, AppendBlockEnd, ConditionalAppend, ConditionalBlockEnd)


def server_streams() -> list[bytes]:
    requests = [
        frame(code, payload)
        for code, payload in sample_commands().items()
        if issubclass(COMMANDS[code], Request) and not issubclass(COMMANDS[code], _APPENDS)
    ]
    return [*append_streams(), *requests, b"".join(requests)]


def client_streams() -> list[bytes]:
    replies = [
        frame(code, payload)
        for code, payload in sample_commands().items()
        if issubclass(COMMANDS[code], Reply)
    ]
    return [*replies, b"".join(replies)]


def pieces_of(data: bytes, random: Random) -> list[bytes]:
    lengths = random.choice([[1], [7], [1, 100], [1000], [1, 8, 3]])
    least = len(data) // 50  # so that long inputs do not take for ever
    pieces, start = [], 0
    while start < len(data):
        length = least + random.choice(lengths)
        pieces.append(data[start : start + length])
        start += length
    return pieces


def parse_connection(role: Role) -> Callable[[bytes, Random], object]:
    def parse(data: bytes, random: Random) -> object:
        expected: list[object] | None
        try:
            expected = list(Connection(role).receive_data(data))
        except RemoteProtocolError:
            expected = None
        connection = Connection(role)
        received: list[object] = []
        refused: RemoteProtocolError | None = None
        try:
            for piece in pieces_of(data, random):
                received += connection.receive_data(piece)
        except RemoteProtocolError as error:
            refused = error
        if refused is not None:
            if expected is not None:
                raise AssertionError(f"refused in pieces only: {refused}")
            with pytest.raises(RemoteProtocolError, match="the connection is dead"):
                connection.receive_data(b"")
            raise refused
        assert repr(received) == repr(expected), "pieces change what comes out"
        return received

    return parse


TOKEN_KEY = b"k" * 86
TOKEN_BODIES = (
    b'{"sub":"segmentstoreresource","aud":"segmentstore","iat":1700000000,'
    b'"prn::/scope:s/stream:t":"READ_UPDATE","exp":1700000600}',
    b'{"sub":"segmentstoreresource","aud":"segmentstore","*":"READ_UPDATE"}',
)


class TokenKeys:
    """One key."""

    current = TOKEN_KEY
    all_valid = (TOKEN_KEY,)

    def look(self) -> None:
        """Notice no other key."""


def token_bodies() -> list[bytes]:
    return [b'{"alg":"HS512"}\n' + body for body in TOKEN_BODIES]


def parse_token_body(data: bytes, random: Random) -> object:
    """Verify a token with this header and body that is signed, so that they are looked at."""
    header, _, body = data.partition(b"\n")
    parts = [base64.urlsafe_b64encode(part).rstrip(b"=") for part in (header, body)]
    digest = hmac.digest(TOKEN_KEY, b".".join(parts), "sha512")
    parts.append(base64.urlsafe_b64encode(digest).rstrip(b"="))
    return parse_token(b".".join(parts), random)


def parse_token(data: bytes, random: Random) -> object:
    claims = TokenVerifier(TokenKeys(), lambda: 1_700_000_000).verify(data.decode("latin-1"))
    level = claims.level_for_segment("s/t/0.#epoch.0")
    assert level >= claims.level_for_segment("")
    return level


def tokens() -> list[bytes]:
    minter = TokenMinter(TokenKeys(), 600, lambda: 1_700_000_000)
    return [minter.mint_master().encode()]


def key_files() -> list[bytes]:
    key = SigningKey("0123abcd", 1_700_000_000, TOKEN_KEY)
    return [
        encode_key_file(KeyFile(key)).encode(),
        encode_key_file(KeyFile(key, key, key)).encode(),
    ]


def parse_key_file(data: bytes, random: Random) -> object:
    file = decode_key_file(data.decode("latin-1"), Path("keys"))
    assert decode_key_file(encode_key_file(file), Path("keys")) == file
    return file


def parse_command(data: bytes, random: Random) -> object:
    codes = sorted(COMMANDS)
    command = decode(codes[data[0] % len(codes)] if data else codes[0], data[1:])
    try:
        again = encode(command)
    except LocalProtocolError:
        return command  # readable, but too long for a frame, or a key that does not go out
    assert repr(decode(type(command).code, again[8:])) == repr(_as_sent(command))
    return command


def _as_sent(command: Command) -> Command:
    """Return a command without the fields that are read and never sent."""
    args = getattr(command, "args", None)
    if isinstance(args, TableIteratorArgs):
        args = msgspec.structs.replace(args, prefix_filter=b"")
        return msgspec.structs.replace(command, args=args)
    return command


def command_inputs() -> list[bytes]:
    codes = sorted(COMMANDS)
    return [bytes([codes.index(code)]) + payload for code, payload in sample_commands().items()]


def parse_appends(data: bytes, random: Random) -> object:
    decoder = AppendDecoder(ANY_TYPE, COMMAND_BYTES_MAX, 100)
    decoder.set_up(WRITER, "s")
    decoder.set_up(OTHER_WRITER, "t")
    commands: list[object] = []
    rest = b""
    for piece in pieces_of(data, random):
        source = exact(rest + piece)
        found, position = decoder.decode(source, lambda code, start, end: (code, start, end))
        rest = bytes(source[position:])
        commands += found
    return commands


def parse_frames(data: bytes, random: Random) -> object:
    frames, position = scan_frames(exact(data), 0, ANY_TYPE, COMMAND_BYTES_MAX)
    for code, start, end in frames:
        assert struct.unpack_from(">ii", data, start - 8) == (code, end - start)
    assert position == (frames[-1][2] if frames else 0) <= len(data)
    return frames


def parse_text(data: bytes, random: Random) -> object:
    text = decode_text(data)
    assert decode_text(encode_text(text)) == text
    return text


def texts() -> list[bytes]:
    return [encode_text(text) for text in ("", "plain", "a\0b", "\u00fc\u20ac", "\U0001f600!")]


def parse_event_framing(data: bytes, random: Random) -> object:
    spans: list[tuple[int, int]] = []
    stop: int | None = None
    consumed = 0
    try:
        for start, end in iterate_event_spans(data):
            spans.append((start, end - start))
            consumed = end
    except RemoteProtocolError:
        stop = consumed
    try:
        found, end = scan_events(exact(data))
        values, offsets, also_end = compact_events(exact(data))
    except EventError as error:
        if error.position != stop:
            raise AssertionError(f"position {error.position} instead of {stop}") from error
        raise
    assert stop is None
    assert list(zip(found[::2], found[1::2], strict=True)) == spans
    assert end == also_end == consumed
    assert bytes(values) == b"".join(data[start : start + length] for start, length in spans)
    assert len(offsets) == len(spans) + 1
    return spans


def parse_names(data: bytes, random: Random) -> object:
    text = data.decode("utf-8", "surrogateescape")
    parsed = names.parse_segment_name(text)
    canonical = names.segment_name(parsed.scope, parsed.stream, parsed.segment_id)
    again = names.parse_segment_name(canonical)
    assert (again.scope, again.stream, again.segment_id) == (
        parsed.scope,
        parsed.stream,
        parsed.segment_id,
    )
    return parsed


def parse_any_name(data: bytes, random: Random) -> object:
    text = data.decode("utf-8", "surrogateescape")
    assert 0 <= names.container_of(text, 4) < 2**31
    names.parent_segment_name(text)
    assert names.primary_segment_name(text) in text
    for validate in (names.validate_user_name, names.validate_name):
        try:
            validate(text)
        except names.InvalidNameError:
            continue
        assert text.isascii()
        assert "/" not in text
    return None


def segment_names() -> list[bytes]:
    plain = names.segment_name("scope", "stream", names.segment_id(7, 3))
    return [
        text.encode()
        for text in (
            plain,
            "stream/3",
            names.transaction_segment_name(plain, WRITER),
            names.transient_segment_name(plain, WRITER, OTHER_WRITER),
        )
    ]


def other_names() -> list[bytes]:
    return [b"name", b"_system/_tables/x", names.CONTAINER_METADATA_PREFIX.encode() + b"3"]


# ---- The journal ---------------------------------------------------------------------------------

GENERATION, SALT = 7, 0xABCD1234


def journal_batches() -> list[bytes]:
    entry = [Record(Kind.ENTRY, 1, 3, 50 + i, [bytes(i * 9)], i * 9) for i in range(5)]
    batches = [
        [Record(Kind.OPEN, 1, 3, 50), *entry[:2]],
        [entry[2], Record(Kind.TRUNCATE, 1, 3, 51), entry[3]],
        [entry[4], Record(Kind.END, 0, 0, 8)],
    ]
    encoded = []
    for number, batch in enumerate(batches, 1):
        buffers, length = encode_batch(
            batch, generation=GENERATION, salt=SALT, batch_number=number, durable=number - 1
        )
        encoded.append(b"".join(map(bytes, buffers)) + bytes(-length % 512))
    mark = encode_batch([], generation=GENERATION, salt=SALT, batch_number=4, durable=3)[0]
    return [*encoded, b"".join(encoded), b"".join(encoded[:2]) + b"".join(map(bytes, mark))]


def repair_batches(data: bytes) -> bytes:
    """Put the sums of batches and records right, as far as their lengths lead."""
    result = bytearray(data)
    start = 0
    while start + BATCH_HEADER_BYTES <= len(result):
        (length,) = struct.unpack_from("<I", result, start + 28)
        fields = bytes(result[start : start + BATCH_HEADER_BYTES - 4])
        struct.pack_into("<I", result, start + BATCH_HEADER_BYTES - 4, crc32c(fields, SALT))
        record = start + BATCH_HEADER_BYTES
        end = min(record + length, len(result))
        while record + RECORD_HEADER_BYTES <= end:
            (payload,) = struct.unpack_from("<I", result, record + 4)
            stop = record + RECORD_HEADER_BYTES + payload
            checked = bytes(result[record + 4 : stop])
            struct.pack_into("<I", result, record, crc32c(checked, SALT))
            record = (stop + 7) // 8 * 8
        start += (BATCH_HEADER_BYTES + length + 511) // 512 * 512
    return bytes(result)


def parse_batches(data: bytes, random: Random) -> object:
    source = exact(data)
    scan = BatchScan(generation=GENERATION, salt=SALT, offset=4096)
    outcome = scan.run(source)
    assert 4096 <= scan.end_offset <= 4096 + (len(data) + 511) // 512 * 512
    for container_id, index in scan.indexes.items():
        entries, _ = read_entries(
            source,
            4096,
            index,
            start=index.first_position,
            end=index.end_position,
            container_id=container_id,
            salt=SALT,
        )
        assert len(entries) == len(index)
        assert sum(map(len, entries)) == index.byte_count
    return outcome


class _File:
    """A file in memory, as far as a scan reads it."""

    block_bytes = 512

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.length = len(data)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        found = self.data[offset : offset + len(buffer)]
        buffer[: len(found)] = found
        return len(found)


def journal_files() -> list[bytes]:
    header = encode_file_header(FileHeader(GENERATION, SALT, 1 << 20))
    return [header + batches for batches in journal_batches()]


def repair_file(data: bytes) -> bytes:
    header = bytearray(data[:FILE_HEADER_BYTES])
    if len(header) >= 36:
        struct.pack_into("<I", header, 32, crc32c(bytes(header[:32])))
    return bytes(header) + repair_batches(data[FILE_HEADER_BYTES:])


def parse_journal_file(data: bytes, random: Random) -> object:
    header = decode_file_header(data[:FILE_HEADER_BYTES])
    if header is None:
        return None
    file = JournalFile("file", header, _File(data))  # type: ignore[arg-type]
    scan = scan_file(file)
    if scan.next_batch_number > 0:
        return scan.following_generation, find_later_batch(scan)
    return scan.marked


# ---- The durable log -----------------------------------------------------------------------------

VALUES = {WRITER: 5, b"k" * 256: -1, b"x": -(2**63)}


def operations() -> list[Operation]:
    found: list[Operation] = [
        AppendOperation("s", b"data"),
        AppendOperation("s", bytes(3000)),
        SealOperation("s"),
        MergeOperation("s", "t"),
        MapOperation("scope/stream/0", dict(VALUES), created_ms=17),
        UpdateAttributesOperation("s", ()),
        TruncateOperation("s", 100),
        CheckpointOperation(),
        DeleteOperation("s"),
    ]
    for number, operation in enumerate(found):
        operation.sequence_number = number
        operation.segment_id = 2**40 + number
        for name, value in (
            ("offset", 10),
            ("length", getattr(operation, "length", 0)),
            ("source_id", 3),
            ("attribute_values", dict(VALUES)),
            ("snapshot", b"snapshot"),
        ):
            if hasattr(operation, name):
                setattr(operation, name, abs(value) if isinstance(value, int) else value)
    return found


def operation_records() -> list[bytes]:
    return [b"".join(map(bytes, operation.encode())) for operation in operations()]


def parse_operation(data: bytes, random: Random) -> object:
    return decode_operation(exact(data) if random.random() < 0.5 else data)


def data_frames() -> list[bytes]:
    """Return single frames, and runs of frames with continued records, each behind its length."""
    frames, whole = [], DataFrame(300)
    for record in operation_records():
        start = 0
        while True:
            start = whole.put_part(record[:9], record[9:], start)
            if start == len(record):
                break
            frames.append(bytes(whole.seal()))
            whole = DataFrame(300)
    frames.append(bytes(whole.seal()))
    run = b"".join(struct.pack(">H", len(frame)) + frame for frame in frames)
    return [struct.pack(">H", len(frames[0])) + frames[0], run]


def cut_frames(data: bytes) -> list[bytes]:
    frames, start = [], 0
    while start + 2 <= len(data):
        (length,) = struct.unpack_from(">H", data, start)
        frames.append(data[start + 2 : start + 2 + length])
        start += 2 + length
    return frames


def repair_frames(data: bytes) -> bytes:
    repaired = []
    for piece in cut_frames(data):
        frame = bytearray(piece)
        if len(frame) >= 12 and frame[0] == 2:
            struct.pack_into(">I", frame, 4, len(frame) - 12)
            total = crc32c(bytes(frame[:8]), crc32c(bytes(frame[12:])))
            struct.pack_into(">I", frame, 8, total)
        repaired.append(struct.pack(">H", len(frame)) + frame)
    return b"".join(repaired)


def parse_data_frames(data: bytes, random: Random) -> object:
    frames = FrameReplay()
    records = []
    for position, piece in enumerate(cut_frames(data)):
        entry = DigestedEntry(LogAddress(position), None, exact(piece))
        try:
            replayed = frames.feed(entry)
        except EntryNeededError:
            replayed = frames.feed_whole(entry.data, position)
        for item in replayed:
            if isinstance(item, AppendBatch):
                pieces = [piece for run in item.runs for piece in run.pieces]
                records += [piece[1] if len(piece) == 5 else len(piece[1]) for piece in pieces]
            else:
                records.append(len(item[1]))
    assert sum(records) <= len(data)
    return records


def snapshots() -> list[bytes]:
    metadata = ContainerMetadata(0)
    for name in ("scope/stream/0.#epoch.0", "other"):
        operation = MapOperation(name, dict(VALUES), created_ms=9)
        operation.segment_id = metadata.next_segment_id
        operation.sequence_number = 7
        metadata.apply(operation, 5)
    return [ContainerMetadata(0).snapshot(1), metadata.snapshot(8)]


def parse_snapshot(data: bytes, random: Random) -> object:
    metadata = ContainerMetadata(0)
    metadata.restore(data)
    for segment_id, segment in metadata.segments.items():
        assert segment.segment_id == segment_id
    return len(metadata.segments)


# ---- Tier 2 and tables ---------------------------------------------------------------------------


CHANGES: list[Change] = [
    AddChunk("s", 0, 1, "s$0.E1.1"),
    AddChunk("s", 5, 1, "s$5.E1.2"),
    AddChunk("t", 100, 1, "t$100.E1.3"),
    MoveChunks("t", 120, "s", 9),
    Forget("s"),
    Truncate("t", 121, 129),
    Condemn(("a$1", "b")),
    Collected(("b",)),
]


def chunk_changes() -> list[bytes]:
    """Return each change alone."""
    return [encode_change(change) for change in CHANGES]


def parse_chunk_change(data: bytes, random: Random) -> object:
    change = decode_change(data)
    assert decode_change(encode_change(change)) == change
    return change


def chunk_journals() -> list[bytes]:
    """Return all changes after each other."""
    return [
        b"".join(
            encode_frame(number, change, journal="") for number, change in enumerate(CHANGES, 1)
        )
    ]


def parse_chunk_journal(data: bytes, random: Random) -> object:
    return decode_frames(data, journal="")[0]


def chunk_snapshots() -> list[bytes]:
    """Return a snapshot of the metadata after each change."""
    metadata, snapshots = ChunkMetadata(), []
    for number, change in enumerate(CHANGES, 1):
        metadata.apply(change)
        snapshots.append(metadata.encode(epoch=1, sequence=number, name=""))
    return snapshots


def parse_chunk_snapshot(data: bytes, random: Random) -> object:
    metadata, sequence = ChunkMetadata.decode(data, name="")
    return sequence, [metadata.get(name) for name in metadata.segment_names()]


def at_once(coroutine: Coroutine[Any, Any, object]) -> object:
    """Return the result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


def parse_journal_name(data: bytes, random: Random) -> object:
    name = data.decode("utf-8", "replace")
    found = parse_name(name)
    if found is not None:
        assert 0 <= found[0] < 10**20
    return found


def table_entries() -> list[bytes]:
    entries = [
        encode_entry(b"key", b"value"),
        encode_entry(b"key", None),
        encode_entry(b"k" * 300, b"", version=12),
    ]
    return [*entries, b"".join(entries)]


def parse_table(data: bytes, random: Random) -> object:
    found = list(parse_entries("table", data, offset=1000))
    assert sum(entry.length for entry in found) <= len(data)
    for entry in found:
        at = entry.offset - 1000
        assert data[at + 17 : at + 17 + len(entry.key)] == entry.key
    return len(found)


# ---- The B+Tree ----------------------------------------------------------------------------------

PAGES_OFFSET = 4096


def tree_update(count: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Return the bytes of a tree's update, and where its pages and its footer (the last) lie in
    it."""
    tree = Tree(PageCache(1 << 20), key_length=8, leaf_bytes_max=200, index_bytes_max=200)
    tree.restore(None, end=PAGES_OFFSET)
    update = tree.prepare(Batch(8, [(struct.pack(">Q", i * 5), i) for i in range(count)]))
    assert update is not None
    assert not isinstance(update, list)
    places = [(offset - update.offset, len(part)) for offset, part in parts_of(update)]
    return update.data, places


def footers() -> list[bytes]:
    found = []
    for count in (1, 100):
        data, places = tree_update(count)
        start, length = places[-1]
        assert length == FOOTER_BYTES
        found.append(data[start:])
    return found


def repair_footer(data: bytes) -> bytes:
    if len(data) < FOOTER_BYTES:
        return data
    body = data[: FOOTER_BYTES - 4]
    return body + struct.pack(">I", crc32c(body)) + data[FOOTER_BYTES:]


def parse_footer(data: bytes, random: Random) -> object:
    # Where it lies is a part of it.
    offset = int.from_bytes(data[16:24], "big")
    footer = Footer.parse(exact(data), offset=offset)
    assert footer.encode() == data[:FOOTER_BYTES]
    return footer.root_level


def tree_pages() -> list[bytes]:
    """Return pages, each behind its position."""
    found = []
    for count in (1, 100):
        data, places = tree_update(count)
        for start, length in places[:-1]:
            found.append(struct.pack(">I", start) + data[start : start + length])
    return found


def repair_page(data: bytes) -> bytes:
    page = bytearray(data[4:])
    if len(page) < PAGE_HEADER_BYTES:
        return data
    struct.pack_into(">I", page, 4, crc32c(bytes(page[PAGE_HEADER_BYTES:])))
    struct.pack_into(">I", page, 0, crc32c(bytes(page[4:PAGE_HEADER_BYTES])))
    return data[:4] + page


def parse_page(data: bytes, random: Random) -> object:
    """Admit a page as the root of a tree, and search the tree as far as it goes."""
    if len(data) < 4 + PAGE_HEADER_BYTES:
        return None
    page = data[4:]
    level = page[9]
    tree = Tree(PageCache(1 << 20), key_length=8)
    offset = PAGES_OFFSET + int.from_bytes(data[:4], "big")
    admitted = tree.admit(page, offset=offset, length=len(page), level=level)
    tree.restore(_footer_of(offset, len(page), level), end=2**62)
    held = {offset: admitted}
    answers = []
    for key in (bytes(8), b"\xff" * 8, random.randbytes(8)):
        answers.append(tree.find(key, held))
        answers.append(tree.scan(key, b"\xff" * 8, limit=1000, held=held))
    update = tree.prepare(Batch(8, [(bytes(8), 1), (b"\xff" * 8, None)]), held)
    return f"{type(answers[0]).__name__} {type(update).__name__}"


def _footer_of(offset: int, length: int, level: int) -> Footer:
    """Return a footer that makes that page the root."""
    data, places = tree_update(100)
    body = bytearray(data[places[-1][0] :])
    body[9] = level
    struct.pack_into(">I", body, 12, length)
    struct.pack_into(">Q", body, 16, offset + length)
    struct.pack_into(">QQQ", body, 24, offset, offset, offset)
    return Footer.parse(repair_footer(bytes(body)), offset=offset + length)


# ---- The controller ------------------------------------------------------------------------------

RECORD_KINDS = [
    records.ScopeRecord,
    records.NameRecord,
    records.StreamRecord,
    records.ConfigurationRecord,
    records.HeadRecord,
    records.EpochRecord,
    records.SnapshotRecord,
    records.SealedRecord,
    records.SizesRecord,
    records.NumberRecord,
    records.ReaderGroupRecord,
    records.SubscriberRecord,
    records.SubscribersRecord,
    records.IntentRecord,
]


def record_inputs() -> list[bytes]:
    epoch = Epoch(0, 0, 17, (Segment(0, 0.0, 0.5), Segment(1, 0.5, 1.0)), ())
    configuration = fixed_configuration(2)
    cut = records.NamedCut("s", "t", {3: 17})
    group = records.ReaderGroupConfiguration(1, 2, 3, 1, (cut,), (cut,))
    found = [
        records.ScopeRecord("id", "active"),
        records.NameRecord("stream-id"),
        records.StreamRecord(17, 0, 1, 2, pending=records.Create()),
        records.ConfigurationRecord(3, configuration, configuration),
        records.HeadRecord(4, {5: 6}),
        records.EpochRecord(epoch, 0),
        records.SnapshotRecord(0, epoch.created),
        records.SealedRecord(7),
        records.SizesRecord({8: 9}),
        records.NumberRecord(9),
        records.ReaderGroupRecord("id", 2, group, records.UpdateGroup(group)),
        records.SubscriberRecord(1, {3: 4}),
        records.SubscribersRecord(("s/g",)),
        records.IntentRecord("stream", "s", "t"),
    ]
    return [bytes([kind]) + records.encode(record) for kind, record in enumerate(found)]


def parse_record(data: bytes, random: Random) -> object:
    kind = RECORD_KINDS[data[0] % len(RECORD_KINDS)] if data else RECORD_KINDS[0]
    record = records.decode(data[1:], kind)
    assert records.decode(records.encode(record), kind) == record
    return record


def all_targets() -> list[Target]:
    remote = (RemoteProtocolError,)
    corrupt_log = (DataLogCorruptError,)
    return [
        Target("server connection", server_streams, parse_connection(Role.SERVER), remote),
        Target("client connection", client_streams, parse_connection(Role.CLIENT), remote),
        Target("command", command_inputs, parse_command, remote),
        Target("frames", client_streams, parse_frames, (FrameError,)),
        Target("token", tokens, parse_token, (TokenError,)),
        Target("token body", token_bodies, parse_token_body, (TokenError,)),
        Target("key file", key_files, parse_key_file, (SigningKeysError,)),
        Target("append decoder", append_streams, parse_appends, (FrameError,)),
        Target("text", texts, parse_text, remote),
        Target(
            "events",
            lambda: [frame_events([b"a", b"", b"b" * 99])],
            parse_event_framing,
            (EventError,),
        ),
        Target("segment name", segment_names, parse_names, (names.InvalidNameError,)),
        Target("name", lambda: [*segment_names(), *other_names()], parse_any_name),
        Target("journal batches", journal_batches, parse_batches, (), repair_batches),
        Target(
            "journal file",
            journal_files,
            parse_journal_file,
            corrupt_log,
            repair_file,
            lambda length: 16 << 20,
        ),
        Target("journal name", lambda: [b"00000000000000000007.journal"], parse_journal_name),
        Target(
            "operation",
            operation_records,
            parse_operation,
            corrupt_log,
        ),
        Target("data frames", data_frames, parse_data_frames, corrupt_log, repair_frames),
        Target(
            "container snapshot",
            snapshots,
            parse_snapshot,
            corrupt_log,
        ),
        Target("chunk change", chunk_changes, parse_chunk_change, (ChunkRecordError,)),
        Target("chunk journal", chunk_journals, parse_chunk_journal, (ChunkRecordError,)),
        Target("chunk snapshot", chunk_snapshots, parse_chunk_snapshot, (ChunkRecordError,)),
        Target("table entries", table_entries, parse_table, (TableDataError,)),
        Target("tree footer", footers, parse_footer, (CorruptPageError,), repair_footer),
        Target("tree page", tree_pages, parse_page, (CorruptPageError,), repair_page),
        Target("controller record", record_inputs, parse_record, (CorruptMetadataError,)),
        *security_targets(),
    ]


TARGETS: Sequence[Target] = all_targets()
