"""Makes what the original needs to speak TLS and to know its users, anew in a directory.

Owns: the certificate, the accounts file with one user who may do everything, the key of tokens, and
the settings of the original that name them. They go to its settings files, as other users of the
machine can see the arguments of a process.
"""

import base64
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from foreign_servers.peer import ClientAccess
from pravega_security.access_rules import AccessRules, make_access_rule
from pravega_security.accounts_file import Account, change_accounts_file
from pravega_security.certificates import make_server
from pravega_security.passwords import hash_password
from pravega_security.resources import Level

USER = "admin"
EVERYTHING = "prn::*"


def make_basic_environment(user: str, password: str) -> dict[str, str]:
    """Return the variables by which the official clients know a user and its password."""
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"pravega_client_auth_method": "Basic", "pravega_client_auth_token": pair}


@dataclass(frozen=True, slots=True)
class OriginalSecurity:
    """The files in a directory, and the password of their one user."""

    directory: Path
    password: str
    token_key: str

    @classmethod
    def make(cls, directory: Path, host: str) -> "OriginalSecurity":
        """Make all files for a server that clients reach at ``host``."""
        directory.mkdir(mode=0o700)
        made = cls(directory, secrets.token_urlsafe(12), secrets.token_urlsafe(48))
        make_server(directory, now=time.time(), names=(host,))
        rules = AccessRules((make_access_rule(EVERYTHING, Level.READ_UPDATE),))
        account = Account(USER, hash_password(made.password), rules)
        change_accounts_file(directory / "passwd", lambda content: content.put(account))
        return made

    @property
    def access(self) -> ClientAccess:
        """Return what clients need."""
        environment = make_basic_environment(USER, self.password)
        return ClientAccess(trust_store=self.directory / "ca.pem", environment=environment)

    def write_controller_settings(self) -> Path:
        """Write the settings file of a controller; return its path."""
        return self._write(
            "controller.properties",
            {
                **self._files("controller"),
                "controller.security.tls.trustStore.location": self.directory / "ca.pem",
                "controller.security.auth.enable": "true",
                "controller.security.auth.delegationToken.signingKey.basis": self.token_key,
                "controller.security.pwdAuthHandler.accountsDb.location": self.directory / "passwd",
            },
        )

    def write_store_settings(self) -> Path:
        """Write the settings file of a segment store; return its path."""
        controller = "autoScale.controller.connect.security"
        return self._write(
            "segment-store.properties",
            {
                **self._files("pravegaservice"),
                f"{controller}.auth.enable": "true",
                f"{controller}.tls.enable": "true",
                f"{controller}.tls.truststore.location": self.directory / "ca.pem",
                "autoScale.security.auth.token.signingKey.basis": self.token_key,
            },
        )

    def _files(self, server: str) -> dict[str, object]:
        tls = f"{server}.security.tls"
        return {
            f"{tls}.enable": "true",
            f"{tls}.server.certificate.location": self.directory / "server.pem",
            f"{tls}.server.privateKey.location": self.directory / "server.key",
            # Its start fails without a path, although nothing reads it while REST is off.
            f"{tls}.server.keyStore.location": self.directory / "no-key-store",
        }

    def _write(self, name: str, settings: Mapping[str, object]) -> Path:
        path = self.directory / name
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path
