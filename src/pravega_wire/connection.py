"""One connection of the wire protocol, without I/O: bytes in, commands out.

Owns: the receive buffer, framing, and the commands that each side may send.

Invariants:
1. When the same bytes arrive in other pieces, ``receive_data`` returns the same commands.
   Held by ``test_commands_come_out_alike_however_their_bytes_arrive``.
2. When a header has an unknown type, or a negative or too long length, the frame is refused before
   its payload arrives, and no byte of it is kept.
   Held by ``test_a_servers_frame_over_16_mebibytes_is_refused_by_its_header``.
3. When a call has raised an error, every later call raises, too.
   Held by ``test_a_dead_connection_stays_dead``.
4. When a client sends an append as several commands, a server gets one ``Append`` with its data.
   Held by ``test_every_way_to_cut_events_up_brings_the_same_append``.
5. When an append is received, its data are copied once, out of the receive buffer.
   Held by ``test_an_appends_data_is_copied_once_out_of_the_receive_buffer``.
6. When the caller overwrites the bytes that it passed, the returned commands keep their content.
   Held by ``test_what_came_out_does_not_change_with_the_buffer``.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias

from _fast.wire.appends import Append, AppendDecoder
from _fast.wire.frames import FrameError, scan_frames
from pravega_wire.codec import HEADER_BYTES, Buffer, decode_at, encode
from pravega_wire.commands import (
    COMMAND_BYTES_MAX,
    COMMANDS,
    AppendBlock,
    AppendBlockEnd,
    Command,
    Padding,
    Reply,
    Request,
    SetupAppend,
)
from pravega_wire.errors import LocalProtocolError, RemoteProtocolError
from pravega_wire.event_framing import frame_events

__all__ = ["Append", "Connection", "Role", "append_block"]


Source: TypeAlias = bytes | memoryview


class Role(enum.Enum):
    """The side of the connection."""

    CLIENT = enum.auto()
    SERVER = enum.auto()


def _accepted(*kinds: type[Command]) -> bytes:
    codes = [code for code, cls in COMMANDS.items() if issubclass(cls, kinds)]
    table = bytearray(256)
    for code in codes:
        table[code + 128] = 1
    return bytes(table)


_ACCEPTED = {Role.SERVER: _accepted(Request, Padding), Role.CLIENT: _accepted(Reply)}
_SENT: dict[Role, tuple[type[Command], ...]] = {
    Role.SERVER: (Reply,),
    Role.CLIENT: (Request, Padding),
}
# Official servers count the header into the limit, official clients do not. Each side here accepts
# all that its peer may send.
_PAYLOAD_MAX = {
    Role.SERVER: COMMAND_BYTES_MAX - HEADER_BYTES,
    Role.CLIENT: COMMAND_BYTES_MAX,
}

WRITERS_MAX = 0x1_0000
"""Maximum number of writers on one connection. Clients use another connection long before that."""


class Connection:
    """One side of a connection: it turns received bytes into commands, and commands into bytes."""

    def __init__(self, role: Role) -> None:
        self._sent = _SENT[role]
        self._accepted = _ACCEPTED[role]
        self._payload_max = _PAYLOAD_MAX[role]
        self._appends: AppendDecoder | None = None
        if role is Role.SERVER:
            self._appends = AppendDecoder(self._accepted, self._payload_max, WRITERS_MAX)
        self._pending = bytearray()
        self._error: str | None = None
        self.needed_bytes = 0
        """Number of bytes of memory that the open append block needs, together with the incomplete
        command at the length that its header announces. 0 if there is neither."""
        self._frame_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """Return the number of received bytes whose command is not complete yet."""
        return len(self._pending)

    def close(self) -> None:
        """Discard the received bytes, and refuse all further data."""
        self._error = "it was closed"
        self._pending = bytearray()
        self._appends = None
        self.needed_bytes = 0

    def receive_data(self, data: Buffer) -> list[Command | Append]:
        """Add bytes from the peer, and return every command that is now complete, in order.

        Raises ``RemoteProtocolError`` when the peer broke the protocol. Then the caller gets none
        of the commands that were complete in the same call.
        """
        if self._error is not None:
            raise RemoteProtocolError(f"the connection is dead: {self._error}")
        try:
            if not self._pending and isinstance(data, bytes):
                commands, position = self._decode(data)
                if position < len(data):
                    self._pending += data[position:] if position else data
                    self._update_needed_bytes()
                elif self._appends is not None and (self._appends.open_bytes or self.needed_bytes):
                    self._update_needed_bytes()
                return commands
            self._pending += data
            if len(self._pending) < self._frame_bytes:
                return []
            return self._decode_pending()
        except FrameError as error:
            self._error = str(error)
            if _is_tls(self._pending or data):
                self._error += "; this looks like TLS"
            raise RemoteProtocolError(self._error) from error
        except RemoteProtocolError as error:
            self._error = str(error)
            raise

    def send(self, command: Command) -> bytes:
        """Return the bytes to send for a command, or raise ``LocalProtocolError``."""
        if not isinstance(command, self._sent):
            raise LocalProtocolError(f"not ours to send: {type(command).__name__}")
        return encode(command)

    def _decode_pending(self) -> list[Command | Append]:
        with memoryview(self._pending) as view:
            commands, position = self._decode(view)
        if position:
            del self._pending[:position]
        self._update_needed_bytes()
        return commands

    def _update_needed_bytes(self) -> None:
        pending = self._pending
        self._frame_bytes = len(pending)
        if len(pending) >= HEADER_BYTES:
            self._frame_bytes = HEADER_BYTES + int.from_bytes(pending[4:HEADER_BYTES])
        block_bytes = 0 if self._appends is None else self._appends.open_bytes
        self.needed_bytes = block_bytes + self._frame_bytes

    def _decode(self, source: Source) -> tuple[list[Command | Append], int]:
        appends = self._appends
        if appends is None:
            frames, position = scan_frames(source, 0, self._accepted, self._payload_max)
            return [decode_at(code, source, start, end) for code, start, end in frames], position

        def decode_other(code: int, start: int, end: int) -> Command:
            command = decode_at(code, source, start, end)
            if isinstance(command, SetupAppend):
                appends.set_up(command.writer_id, command.segment)
            return command

        return appends.decode(source, decode_other)


def _is_tls(data: Buffer) -> bool:
    """Return whether bytes look like the first of a TLS connection: a handshake or an alert, and
    the version."""
    return bytes(data[:2]) in (b"\x16\x03", b"\x15\x03")


def append_block(
    writer_id: bytes,
    events: Sequence[Buffer],
    *,
    last_event_number: int,
    request_id: int,
    framed: bool = True,
) -> bytes:
    """Return the frames of one append of these events: an AppendBlock and its AppendBlockEnd.

    ``framed=False`` sends the bytes without event headers, as byte streams do.
    """
    data = frame_events(events) if framed else b"".join(events)
    end = AppendBlockEnd(writer_id, len(data), b"", len(events), last_event_number, request_id)
    return encode(AppendBlock(writer_id, data)) + encode(end)
