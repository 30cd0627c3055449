"""Values of a program as the bytes of events, and back.

Owns: ``Serializer``, a pair of two functions, and those for text, JSON, Avro and Protobuf. Their
libraries are imported when a serializer is made: ``fastavro`` is an extra of the package.

The bytes are those that other clients have for the same format: no schema, number or length is put
before them. So the Java client reads text by ``UTF8StringSerializer``.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from segstore_client.errors import PravegaError, UnreadableEventError, UsageError
from segstore_client.inputs import to_event

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from typing_extensions import TypeVar

    from pravega_wire.sessions.read_cursor import ReadEvent

    T = TypeVar("T", default=bytes)
    M = TypeVar("M", bound=Message)
else:
    from typing import TypeVar

    T = TypeVar("T")
    M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Serializer(Generic[T]):
    """Two functions: one makes the bytes of a value, the other makes a value of bytes.

    ``name`` is that of the format, for errors: ``Serializer("a point", pack, unpack)``.
    """

    name: str
    to_bytes: Callable[[T], bytes]
    from_bytes: Callable[[bytes], T]

    @property
    def encoder(self) -> Callable[[T], bytes]:
        """Return ``encode``, or what does the same sooner."""
        return self.to_bytes if self is BYTES else self.encode

    @property
    def decoder(self) -> Callable[[ReadEvent[Any]], T] | None:
        """Return ``decode``; None if values are the bytes of events."""
        return None if self is BYTES else self.decode

    def encode(self, value: T) -> bytes:
        """Return the bytes of an event. Raises ``UsageError`` for a value that has none."""
        try:
            return to_event(self.to_bytes(value))
        except PravegaError:
            raise
        except Exception as error:
            kind = type(value).__name__
            text = f"a value of type {kind} cannot be {self.name}: {_tell(error)}"
            raise UsageError(text) from error

    def decode(self, event: ReadEvent[Any]) -> T:
        """Return the value of an event. Raises ``UnreadableEventError`` if its bytes are none."""
        try:
            return self.from_bytes(event.data)
        except Exception as error:
            raise UnreadableEventError(
                f"the event at offset {event.offset} of segment {event.segment} is not"
                f" {self.name}: {_tell(error)}"
            ) from error


def _tell(error: Exception) -> str:
    return str(error) or type(error).__name__


def _keep(data: bytes) -> bytes:
    return data


# Of any type, so that it can stand for a serializer that was not named: then it is one of bytes.
BYTES: Serializer[Any] = Serializer("bytes", to_event, _keep)
"""Events as they are."""

TEXT: Serializer[str] = Serializer("text", str.encode, bytes.decode)
"""Text in UTF-8."""


def json(kind: type[T] | Any = Any) -> Serializer[T]:
    """Return a serializer for JSON: dictionaries and lists, or values of a type, such as a data
    class, which are checked when they are read."""
    import msgspec

    return Serializer("JSON", msgspec.json.Encoder().encode, msgspec.json.Decoder(kind).decode)


def avro(schema: dict[str, Any] | str) -> Serializer[Any]:
    """Return a serializer for records of one Avro schema, which is in no event: readers have to
    know it.

    Raises ``UsageError`` without ``fastavro``, or for what is no schema.
    """
    try:
        import fastavro
    except ImportError as error:
        text = "events in Avro need fastavro: pip install 'segstore[avro]'"
        raise UsageError(text) from error
    import msgspec

    try:
        loaded = msgspec.json.decode(schema) if isinstance(schema, str) else schema
        parsed = fastavro.parse_schema(loaded)
    except (fastavro.schema.SchemaParseException, KeyError, TypeError, ValueError) as error:
        # A part that is missing is a KeyError, with its name alone.
        raise UsageError(f"this is no Avro schema: {error!r}") from error

    def to_bytes(value: Any) -> bytes:
        written = io.BytesIO()
        fastavro.schemaless_writer(written, parsed, value)
        return written.getvalue()

    def from_bytes(data: bytes) -> Any:
        unread = io.BytesIO(data)
        value = fastavro.schemaless_reader(unread, parsed, parsed)
        if rest := len(data) - unread.tell():
            raise ValueError(f"{rest} bytes are left behind the value")
        return value

    return Serializer("Avro", to_bytes, from_bytes)


def protobuf(kind: type[M]) -> Serializer[M]:
    """Return a serializer for messages of a class that ``protoc`` made."""
    return Serializer("Protobuf", kind.SerializeToString, kind.FromString)
