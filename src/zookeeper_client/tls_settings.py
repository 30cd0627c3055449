"""The settings of TLS to ZooKeeper.

Owns: ``ZooKeeperTlsSettings``. It imports no client, because help needs only declarations.
"""

from __future__ import annotations

from pathlib import Path

import msgspec


class ZooKeeperTlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The certificates of connections to ZooKeeper. The files are read for each connection."""

    ca: Path | None = None
    """Path of the certificates, in PEM, with which the ZooKeeper servers are checked, besides the
    system's; those alone when None."""
    certificate: Path | None = None
    """Path of the certificate, in PEM, that is shown to the servers, followed by those between it
    and its CA; they want one unless their ``ssl.clientAuth`` is ``none``."""
    key: Path | None = None
    """Path of the private key, in PEM, of that certificate."""
    checks_host: bool = True
    """True if a server's certificate must have the host by which it is reached."""

    def __post_init__(self) -> None:
        """Refuse, with a ``ValueError``, half a pair."""
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a certificate and its key are set together")
