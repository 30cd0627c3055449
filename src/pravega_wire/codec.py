"""Encodes and decodes commands, by functions generated from the command table.

Owns: the bytes of each type of field. Three types have functions written by hand, because their
bytes do not follow from their fields: table keys, table entries, and a table iterator's arguments.

The other functions are generated as source text, each when it is first needed. One ``struct`` call
reads or writes a row of neighbouring numbers: fields of fixed size, the lengths of strings, and the
header of an encoded frame. A command with two strings, for example, is 25 bytes from two calls:

    >>> encode(SealSegment(request_id=7, segment="a/b/0", delegation_token="")).hex(" ")
    '00 00 00 1c 00 00 00 11 00 00 00 00 00 00 00 07 00 05 61 2f 62 2f 30 00 00'

    0000001c 00000011   code 28, 17 bytes of payload   |
    0000000000000007    request id                     | one call packs these 18 bytes
    0005                length of the segment's name   |
    61 2f 62 2f 30      the name "a/b/0"
    0000                length of the token: a second call

Invariants:
1. When a peer sends any bytes as a payload, ``decode`` returns a command or raises
   ``RemoteProtocolError``, and no other error.
   Held by ``test_mutilated_commands_are_a_command_or_a_remote_protocol_error``.
2. When a length or a count in a payload exceeds the bytes that follow it, the payload is refused
   before memory is allocated for the announced length.
   Held by ``test_a_length_or_count_beyond_the_frame_is_refused``.
3. When a newer peer sends more fields than the table has, the bytes of the further fields are
   ignored. Held by ``test_bytes_behind_the_last_field_are_ignored``.
4. When an older peer leaves out fields at the end, the command has their defaults.
   Held by ``test_fields_left_out_at_the_end_take_their_defaults``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from pravega_wire import commands
from pravega_wire.commands import (
    COMMAND_BYTES_MAX,
    COMMANDS,
    NO_VERSION,
    Command,
    TableEntry,
    TableIteratorArgs,
    TableKey,
)
from pravega_wire.errors import LocalProtocolError, RemoteProtocolError
from pravega_wire.fields import Fixed, Framed, Prefixed, Rest, decode_text, encode_text

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER = struct.Struct(">ii")
HEADER_BYTES = HEADER.size

_INT32 = struct.Struct(">i")
_INT32_PAIR = struct.Struct(">ii")
_INT64 = struct.Struct(">q")


def encode(command: Command) -> bytes:
    """Return the frame of a command: its header and its payload.

    Raises ``LocalProtocolError`` if a value does not fit its field.
    """
    try:
        return _ENCODERS[type(command)](command)
    except (struct.error, TypeError, AttributeError) as error:
        raise LocalProtocolError(f"{type(command).__name__}: {error}") from error


def decode(code: int, payload: Buffer) -> Command:
    """Return the command of a frame's type code and payload, or raise ``RemoteProtocolError``."""
    buffer = memoryview(payload) if isinstance(payload, bytearray) else payload
    return decode_at(code, buffer, 0, len(buffer))


def decode_at(code: int, buffer: bytes | memoryview, position: int, end: int) -> Command:
    """Decode the payload ``buffer[position:end]`` like ``decode``, with copies of its bytes."""
    return _DECODERS[code](buffer, position, end)


# ---- Helpers of the generated functions ----------------------------------------------------------

_Decoded: TypeAlias = tuple[Any, int]


def truncated(name: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{name} ends early")


def bad_uuid(name: str) -> LocalProtocolError:
    return LocalProtocolError(f"{name} must be 16 bytes")


def too_long(name: str) -> LocalProtocolError:
    return LocalProtocolError(f"{name} does not fit into a frame of {COMMAND_BYTES_MAX} bytes")


def decode_count(
    buffer: bytes | memoryview, position: int, end: int, item_bytes_min: int, count_max: int
) -> tuple[int, int]:
    """Decode a list's int32 count; return it and the position after it.

    Raises ``RemoteProtocolError`` for a count above ``count_max``, and for one whose items, of at
    least ``item_bytes_min`` bytes each, need more bytes than the payload has left.
    """
    if position + 4 > end:
        raise truncated("a list")
    (count,) = _INT32.unpack_from(buffer, position)
    position += 4
    if count < 0 or count * item_bytes_min > end - position:
        raise RemoteProtocolError(f"a list of {count} items in {end - position} bytes")
    if count > count_max:
        raise RemoteProtocolError(f"a list of {count} items, at most {count_max} may be sent")
    return count, position


def encode_table_key(key: TableKey) -> bytes:
    length = len(key.key)
    head = _INT32_PAIR.pack(4 + length + 8, length)
    # The official codec counts 8 bytes of a version for an empty key, but does not write them.
    return head + key.key + _INT64.pack(key.version) if length else head


def decode_table_key(buffer: bytes | memoryview, position: int, end: int) -> _Decoded:
    if position + 8 > end:
        raise truncated("TableKey")
    size, length = _INT32_PAIR.unpack_from(buffer, position)
    position += 8
    if length == 0:
        return TableKey(b"", NO_VERSION), position
    stop = position + length
    if length < 0 or size < length or stop + 8 > end:
        raise RemoteProtocolError(f"TableKey of {length} bytes does not fit")
    (version,) = _INT64.unpack_from(buffer, stop)
    return TableKey(bytes(buffer[position:stop]), version), stop + 8


def encode_table_entry(entry: TableEntry) -> bytes:
    length = len(entry.value)
    return encode_table_key(entry.key) + _INT32_PAIR.pack(4 + length, length) + entry.value


def decode_table_entry(buffer: bytes | memoryview, position: int, end: int) -> _Decoded:
    key, position = decode_table_key(buffer, position, end)
    if position + 8 > end:
        raise truncated("TableEntry")
    size, length = _INT32_PAIR.unpack_from(buffer, position)
    position += 8
    stop = position + length
    if length < 0 or size < length or stop > end:
        raise RemoteProtocolError(f"table value of {length} bytes does not fit")
    return TableEntry(key, bytes(buffer[position:stop])), stop


def encode_iterator_args(args: TableIteratorArgs) -> bytes:
    parts = [args.continuation_token, b"", args.from_key, args.to_key]
    return b"".join([piece for part in parts for piece in (_INT32.pack(len(part)), part)])


def decode_iterator_args(buffer: bytes | memoryview, position: int, end: int) -> _Decoded:
    parts: list[bytes] = []
    for _ in range(4):
        if position + 4 > end:
            parts.append(b"")
            continue
        (length,) = _INT32.unpack_from(buffer, position)
        position += 4
        stop = position + max(length, 0)
        if stop > end:
            raise truncated("TableIteratorArgs")
        parts.append(bytes(buffer[position:stop]))
        position = stop
    return TableIteratorArgs(*parts), position


@dataclass(frozen=True, slots=True)
class _HandWritten:
    encoder: str
    decoder: str
    bytes_min: int


_HAND_WRITTEN: dict[type, _HandWritten] = {
    TableKey: _HandWritten("encode_table_key", "decode_table_key", 8),
    TableEntry: _HandWritten("encode_table_entry", "decode_table_entry", 16),
    TableIteratorArgs: _HandWritten("encode_iterator_args", "decode_iterator_args", 0),
}

# ---- Generation ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Slot:
    """A field of a command, or of a part of one: its name, encoding, and whether it is optional."""

    name: str
    kind: Any
    optional: bool


def _kind(hint: Any) -> Any:
    """Return the encoding that a field's type hint stands for.

    It is an annotation of ``fields``, a class, or a list of one encoding: that of a tuple's items.
    """
    if get_origin(hint) is Annotated:
        return get_args(hint)[1]
    if get_origin(hint) is tuple:
        item, _ = get_args(hint)
        return [_kind(item)]
    assert isinstance(hint, type), hint
    return hint


def slots_of(cls: type[msgspec.Struct]) -> list[_Slot]:
    """Return the fields of a command, or of a part of one, in wire order."""
    hints = get_type_hints(cls, vars(commands), include_extras=True)
    names: tuple[str, ...] = cls.__struct_fields__
    required = len(names) - len(cls.__struct_defaults__)
    return [
        _Slot(name, _kind(hints[name]), issubclass(cls, Command) and index >= required)
        for index, name in enumerate(names)
    ]


def bytes_min(kind: Any) -> int:
    """Return the minimum length, in bytes, of an encoded value of this kind."""
    match kind:
        case Fixed(format):
            return struct.calcsize(">" + format)
        case Prefixed(format):
            return struct.calcsize(">" + format)
        case Framed():
            return HEADER_BYTES
        case Rest():
            return 0
        case [_]:
            return 4
    if kind in _HAND_WRITTEN:
        return _HAND_WRITTEN[kind].bytes_min
    return sum(bytes_min(slot.kind) for slot in slots_of(kind))


class _Source:
    """The source text of one generated function, and the values of the names that it uses."""

    def __init__(self, name: str, head: str) -> None:
        self.name = name
        self.lines = [head]
        self.names: dict[str, Any] = {}

    def add(self, line: str) -> None:
        self.lines.append("    " + line)

    def struct_of(self, formats: str) -> str:
        name = f"s{len(self.names)}"
        self.names[name] = struct.Struct(">" + formats)
        return name

    def compile(self) -> Callable[..., Any]:
        scope = {**globals(), **self.names}
        exec("\n".join(self.lines), scope)
        function: Callable[..., Any] = scope[self.name]
        return function


class _Run:
    """Neighbouring numbers that one ``struct`` call reads or writes: formats and expressions."""

    def __init__(self) -> None:
        self.formats = ""
        self.terms: list[str] = []

    def add(self, format: str, term: str) -> None:
        self.formats += format
        self.terms.append(term)

    def pop_all(self) -> tuple[str, list[str]]:
        taken = self.formats, self.terms
        self.formats, self.terms = "", []
        return taken


def _generate_encoder(cls: type) -> Callable[..., bytes]:
    """Generate ``encode(value) -> bytes``: it returns a frame for a command.

    For a part of a command, such as an attribute update, it returns the bytes of the fields alone.
    """
    name = cls.__name__
    source = _Source("encode_fields", "def encode_fields(c):")
    run, parts, blobs = _Run(), list[str](), list[str]()
    framed = issubclass(cls, Command)
    if issubclass(cls, Command):
        run.add("i", str(cls.code))
        run.add("i", "size")

    def flush(blob: str) -> None:
        formats, terms = run.pop_all()
        if formats:
            parts.append(f"{source.struct_of(formats)}.pack({', '.join(terms)})")
        if blob:
            parts.append(blob)
            blobs.append(blob)

    fixed = 0
    for index, slot in enumerate(slots_of(cls)):
        value, blob = f"c.{slot.name}", f"b{index}"
        fixed += bytes_min(slot.kind) if not isinstance(slot.kind, type) else 0
        match slot.kind:
            case Fixed(format):
                if format == "16s":
                    source.add(f"if len({value}) != 16: raise bad_uuid('{name}.{slot.name}')")
                run.add(format, value)
                continue
            case Prefixed(format, text):
                source.add(f"{blob} = encode_text({value})" if text else f"{blob} = {value}")
                run.add(format, f"len({blob})")
            case Framed():
                source.add(f"{blob} = {value}")
                run.add("ii", f"0, len({blob})")
            case Rest():
                source.add(f"{blob} = {value}")
            case [item]:
                source.add(f"{blob} = b''.join([{_item_encoder(source, item)} for x in {value}])")
                run.add("i", f"len({value})")
            case _:
                source.add(f"{blob} = {_encoder_name(source, slot.kind)}({value})")
        flush(blob)
    flush("")
    if framed:
        source.add("size = " + " + ".join([str(fixed), *(f"len({blob})" for blob in blobs)]))
        if blobs:
            source.add(f"if size > {COMMAND_BYTES_MAX - HEADER_BYTES}: raise too_long('{name}')")
    joined = f"b''.join(({', '.join(parts)},))"
    source.add(f"return {parts[0] if len(parts) == 1 else joined}")
    return source.compile()


def _encoder_name(source: _Source, kind: type) -> str:
    if kind in _HAND_WRITTEN:
        return _HAND_WRITTEN[kind].encoder
    name = f"encode_{kind.__name__}"
    source.names[name] = _generate_encoder(kind)
    return name


def _item_encoder(source: _Source, kind: Any) -> str:
    match kind:
        case Fixed(format):
            return f"{source.struct_of(format)}.pack(x)"
        case Prefixed("H", text=True):
            source.names["encode_counted_text"] = _encode_counted_text
            return "encode_counted_text(x)"
    return f"{_encoder_name(source, kind)}(x)"


def _encode_counted_text(text: str) -> bytes:
    encoded = encode_text(text)
    return len(encoded).to_bytes(2, "big") + encoded


def _generate_decoder(cls: type) -> Callable[..., Any]:
    """Generate ``decode(buffer, p, end)``, which reads the fields from position ``p`` on.

    It returns the command; for a part of a command, it returns the part and the position after it.
    """
    name, framed = cls.__name__, issubclass(cls, Command)
    source = _Source("decode_fields", "def decode_fields(buffer, p, end):")
    source.names["cls"] = cls
    slots = slots_of(cls)
    run = _Run()

    def flush() -> None:
        formats, terms = run.pop_all()
        if not formats:
            return
        source.add(f"q = p + {struct.calcsize('>' + formats)}")
        source.add(f"if q > end: raise truncated('{name}')")
        source.add(f"{', '.join(terms)}, = {source.struct_of(formats)}.unpack_from(buffer, p)")
        source.add("p = q")

    def values(count: int) -> str:
        return ", ".join(f"v{index}" for index in range(count))

    for index, slot in enumerate(slots):
        if slot.optional:
            flush()
            source.add(f"if p >= end: return cls({values(index)})")
        for line in _decode_slot(source, name, slot, f"v{index}", run):
            if line == "":
                flush()
            else:
                source.add(line)
    flush()
    made = f"cls({values(len(slots))})"
    source.add(f"return {made}" if framed else f"return {made}, p")
    return source.compile()


def _decode_slot(source: _Source, name: str, slot: _Slot, value: str, run: _Run) -> Iterator[str]:
    """Yield the source lines that read one field.

    An empty line stands for the call that reads the numbers gathered in ``run``.
    """
    match slot.kind:
        case Fixed(format):
            run.add(format, value)
        case Prefixed(format, text):
            run.add(format, "n")
            yield ""
            yield "q = p + n"
            yield f"if n < 0 or q > end: raise truncated('{name}')"
            yield f"{value} = {'decode_text' if text else 'bytes'}(buffer[p:q])"
            yield "p = q"
        case Framed():
            run.add("ii", "t, n")
            yield ""
            yield "q = p + n"
            yield f"if t != 0 or n < 0 or q > end: raise truncated('{name}')"
            yield f"{value} = bytes(buffer[p:q])"
            yield "p = q"
        case Rest():
            yield ""
            yield f"{value} = bytes(buffer[p:end])"
        case [item]:
            yield ""
            is_request = issubclass(source.names["cls"], commands.Request)
            count_max = commands.REQUEST_ITEMS_MAX if is_request else commands.COMMAND_BYTES_MAX
            yield f"n, p = decode_count(buffer, p, end, {bytes_min(item)}, {count_max})"
            if isinstance(item, Fixed):
                size = struct.calcsize(">" + item.format)
                source.names["unpack_from"] = struct.unpack_from
                yield f"{value} = unpack_from(f'>{{n}}{item.format}', buffer, p)"
                yield f"p += n * {size}"
            else:
                yield f"{value} = []"
                yield "for _ in range(n):"
                yield f"    item, p = {_decoder_name(source, item)}(buffer, p, end)"
                yield f"    {value}.append(item)"
                yield f"{value} = tuple({value})"
        case _:
            yield ""
            yield f"{value}, p = {_decoder_name(source, slot.kind)}(buffer, p, end)"


def _decoder_name(source: _Source, kind: Any) -> str:
    if kind == Prefixed("H", text=True):
        source.names["decode_counted_text"] = _decode_counted_text
        return "decode_counted_text"
    if kind in _HAND_WRITTEN:
        return _HAND_WRITTEN[kind].decoder
    name = f"decode_{kind.__name__}"
    source.names[name] = _generate_decoder(kind)
    return name


def _decode_counted_text(buffer: bytes | memoryview, position: int, end: int) -> _Decoded:
    stop = position + 2
    if stop > end:
        raise truncated("a text")
    stop += buffer[position] << 8 | buffer[position + 1]
    if stop > end:
        raise truncated("a text")
    return decode_text(buffer[position + 2 : stop]), stop


class _Encoders(dict[type[Command], Callable[[Any], bytes]]):
    """Encoders by class, generated at first use: generating all of them would slow every start."""

    def __missing__(self, cls: type[Command]) -> Callable[[Any], bytes]:
        encoder = self[cls] = _generate_encoder(cls)
        return encoder


class _Decoders(dict[int, Callable[[bytes | memoryview, int, int], Command]]):
    """Decoders by type code, generated at first use like encoders."""

    def __missing__(self, code: int) -> Callable[[bytes | memoryview, int, int], Command]:
        cls = COMMANDS.get(code)
        if cls is None:
            raise RemoteProtocolError(f"unknown command type {code}")
        decoder = self[code] = _generate_decoder(cls)
        return decoder


_ENCODERS = _Encoders()
_DECODERS = _Decoders()
