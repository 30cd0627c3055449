"""Stores that speak TLS and know their users, as ``segstore standalone --secure`` and
``make cluster SECURE=1`` make them.

Owns: the administrator's password, the users of a test, and the environment of their clients.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foreign_servers.deadlines import scale
from foreign_servers.original_security import make_basic_environment

from compat_harness.cluster import Cluster
from compat_harness.server import Server, ServerError

ADMINISTRATOR = "admin"
COMMAND_SECONDS_MAX = scale(60.0)
SECURE_API = "TLS and user"
"""The row of the matrix that tests with this store count for."""
WHY_NOT_ORIGINAL = "its certificates, accounts and token keys are made by the server under test"
"""The reason why these tests are not run on the original."""


class SecureClients:
    """The users of what keeps its security files in ``data_dir``, and what their clients need."""

    data_dir: Path
    passwords: dict[str, str]

    @property
    def controller_uri(self) -> str:
        """Return the controller's address. The official Python client takes no IP address here."""
        raise NotImplementedError

    @property
    def ca(self) -> Path:
        """Return the file with the certificate of the authority, which clients trust."""
        return self.data_dir / "security" / "ca.pem"

    @property
    def accounts(self) -> Path:
        """Return the accounts file."""
        return self.data_dir / "security" / "passwd"

    def add_user(self, name: str, *rights: tuple[str, str]) -> None:
        """Add a user with rights, each a resource and a level."""
        self.passwords[name] = secrets.token_urlsafe(12)
        self.run_command("user", "add", name, "--password-stdin", given=self.passwords[name] + "\n")
        for resource, level in rights:
            self.run_command("user", "grant", name, resource, level)

    def write_password(self, name: str) -> Path:
        """Write a user's password to a file beside the data directory; return its path."""
        path = self.data_dir.parent / f"{name}.password"
        path.touch(mode=0o600)
        path.write_text(self.passwords[name] + "\n")
        return path

    def run_command(self, *arguments: str, given: str = "") -> str:
        """Run a ``segstore user`` command about this store's accounts; return its output."""
        done = subprocess.run(
            [executable(), *arguments, "--file", str(self.accounts)],
            input=given,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        if done.returncode:
            raise ServerError(f"{arguments} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def official_environment(self, user: str = ADMINISTRATOR) -> dict[str, str]:
        """Return the variables by which the official clients know a user and its password."""
        return {
            **make_basic_environment(user, self.passwords[user]),
            "pravega_client_tls_cert_path": str(self.ca),
        }

    def own_environment(self, user: str = ADMINISTRATOR) -> Mapping[str, str]:
        """Return the variables by which our command line knows the store, a user and its
        password."""
        return {
            "SEGSTORE_CONTROLLER": self.controller_uri,
            "SEGSTORE_CA": str(self.ca),
            "SEGSTORE_USER": user,
            "SEGSTORE_PASSWORD": self.passwords[user],
        }

    def run_as(
        self, user: str, *arguments: str, given: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run our command line as a user of this store."""
        return subprocess.run(
            [executable(), *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
            env={**os.environ, **self.own_environment(user)},
        )


class SecureServer(SecureClients, Server):
    """``segstore standalone --secure`` in a directory; see ``Server``."""

    def __init__(self, directory: Path, options: Sequence[str] = ()) -> None:
        self.passwords, environment = make_administrator(os.environ)
        super().__init__(directory, ["--secure", *options], environment=environment)

    @property
    def controller_uri(self) -> str:
        return f"tls://localhost:{self.controller_port}"


class SecureCluster(SecureClients, Cluster):
    """``make cluster SECURE=1`` in a directory; see ``Cluster``."""

    def __init__(
        self,
        directory: Path,
        options: Sequence[str] = (),
        *,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.passwords, environment = make_administrator(environment)
        super().__init__(directory, ["--secure", *options], environment=environment)

    @property
    def controller_uri(self) -> str:
        return f"tls://localhost:{self.controller_port}"

    @property
    def zookeeper_options(self) -> dict[str, Any]:
        security = self.ca.parent
        return {
            "use_ssl": True,
            "ca": str(self.ca),
            "certfile": str(security / "server.pem"),
            "keyfile": str(security / "server.key"),
        }


def make_administrator(
    environment: Mapping[str, str],
) -> tuple[dict[str, str], Mapping[str, str]]:
    """Return the administrator with a new password, and the environment of a first start."""
    password = secrets.token_urlsafe(12)
    return {ADMINISTRATOR: password}, {**environment, "SEGSTORE_ADMIN_PASSWORD": password}


def executable() -> str:
    """Return the path of our command."""
    return str(Path(sys.executable).parent / "segstore")


def read_if_there(path: Path) -> bytes:
    """Return what a file has; nothing if the store has deleted it: it goes on working."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
