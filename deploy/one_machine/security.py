"""The files of a secure cluster on one machine, in ``<data-dir>/security``, and the settings by
which its processes use them.

Owns: ``ClusterSecurity``; the file for the JVMs, which want a key and its certificate in one; and
the settings file of segment stores and controllers.

All processes show the same certificate: to clients, to each other, and to ZooKeeper, which wants
one. Only files are named in settings and commands, so a list of processes shows no secret.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreign_servers.durable_files import JavaCertificates, zookeeper_client_properties

from pravega_admin.errors import ConfigurationError
from pravega_admin.serving.security_files import SecurityFiles, is_secure
from pravega_admin.serving.standalone import open_security

KEY_STORE = "server-both.key"
SERVERS = "servers.toml"


@dataclass(frozen=True, slots=True)
class ClusterSecurity:
    """The files of a cluster, and what its processes are told of them."""

    files: SecurityFiles
    settings_file: Path
    """The settings file of segment stores and controllers."""

    @property
    def java_certificates(self) -> JavaCertificates:
        """Return the files of ZooKeeper and bookies."""
        return JavaCertificates(self.files.key.with_name(KEY_STORE), self.files.ca)

    @property
    def java_properties(self) -> dict[str, object]:
        """Return the system properties by which bookies reach ZooKeeper."""
        return zookeeper_client_properties(self.java_certificates)

    @property
    def bookie_settings(self) -> dict[str, object]:
        """Return the settings by which bookies speak TLS to stores, which show a certificate."""
        return {
            "tlsProvider": "OpenSSL",
            "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
            "tlsClientAuthentication": "true",
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": self.files.key,
            "tlsCertificatePath": self.files.certificate,
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": self.files.ca,
        }

    @property
    def own_tls(self) -> dict[str, str]:
        """Return the certificates with which everything but JVMs reaches ZooKeeper and bookies."""
        return {
            "ca": str(self.files.ca),
            "certificate": str(self.files.certificate),
            "key": str(self.files.key),
        }


def open_cluster_security(data_dir: Path, hosts: Sequence[str]) -> ClusterSecurity:
    """Make what is missing of the files, and return them; show a password that was made.

    ``hosts`` are those at which proxies stand in for the cluster. Raises ``ConfigurationError``.
    """
    files = open_security(data_dir, names=hosts)
    security = ClusterSecurity(files, data_dir / SERVERS)
    try:
        _write_for_owner(
            security.java_certificates.key_store,
            files.key.read_bytes() + files.certificate.read_bytes(),
        )
        security.settings_file.write_text(_settings_of(security))
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be used: {error.strerror}") from error
    return security


def check_openness(data_dir: Path) -> None:
    """Raise ``ConfigurationError`` if the cluster in a directory was a secure one before."""
    if is_secure(data_dir):
        raise ConfigurationError(
            f"the cluster in {data_dir} is a secure one; say --secure (make cluster SECURE=1), or"
            " choose another --data-dir"
        )


def _settings_of(security: ClusterSecurity) -> str:
    """Return the settings of segment stores and controllers, as TOML."""
    files, tls = security.files, security.own_tls
    tables = {
        "segment_store": {
            **files.store_settings,
            "cluster": {"zookeeper_tls": tls, "bookie_tls": tls},
        },
        "controller": {**files.controller_settings, "zookeeper_tls": tls},
    }
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in table.items())
        for name, table in tables.items()
    )


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def _write_for_owner(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, from the moment at which it exists."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
