"""The errors of the protocol layer: whose fault it was is the whole tree."""

from __future__ import annotations


class ProtocolError(Exception):
    """The wire protocol was violated."""


class LocalProtocolError(ProtocolError):
    """We tried to send what the protocol cannot carry. Nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what the protocol does not allow. The connection is unusable."""
