"""The errors of the protocol layer, by the side that caused them."""

from __future__ import annotations


class ProtocolError(Exception):
    """The wire protocol was violated."""


class LocalProtocolError(ProtocolError):
    """The protocol cannot carry the command to send. Nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that the protocol does not allow. The connection is unusable."""
