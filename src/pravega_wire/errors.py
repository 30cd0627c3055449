"""The errors of the protocol layer: whose fault it was is the whole tree."""

from __future__ import annotations


class ProtocolError(Exception):
    """The wire protocol was violated."""


class LocalProtocolError(ProtocolError):
    """The protocol cannot carry what we tried to send. Nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The protocol does not allow what the peer sent. The connection is unusable."""
