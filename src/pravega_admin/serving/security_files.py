"""The files of a secure standalone store, in ``<data-dir>/security``.

Owns: which files there are, that those that are missing are made at a start, and the settings of
the servers that name them.

    ca.pem, ca.key            the authority that clients trust, and its private key
    server.pem, server.key    the certificate of all ports, and its private key
    passwd                    the users, with the hashes of their passwords and their rights
    token.key                 the keys that sign delegation tokens
    audit.log                 who changed what, and what was refused

Invariants:
1. When a file is there, a start uses it and makes no other. Held by
   ``test_a_second_start_keeps_every_file``.
2. When the administrator's account is made, its password is the one of the environment, or is made
   at random and returned once; no file has it. Held by
   ``test_the_first_password_is_told_once_and_stored_nowhere``.
3. When a store becomes secure, other users of the machine can no longer read its data. Held by
   ``test_the_first_secure_start_keeps_others_out_of_the_data``.
4. When a store was made secure, a start without ``--secure`` is refused unless it allows insecure
   clients. Held by ``test_a_secure_store_is_not_opened_to_everybody_by_forgetting_an_option``.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pravega_admin.errors import ConfigurationError

DIRECTORY: Final = "security"
ADMINISTRATOR: Final = "admin"
ADMINISTRATOR_RULES: Final = "prn::*,READ_UPDATE"
PASSWORD_VARIABLE: Final = "SEGSTORE_ADMIN_PASSWORD"
PASSWORD_BYTES: Final = 15
"""Number of random bytes in a password that is made: 20 characters."""


@dataclass(frozen=True, slots=True)
class SecurityFiles:
    """The files of a store. ``first_password`` is the administrator's if it was made just now."""

    ca: Path
    certificate: Path
    key: Path
    accounts: Path
    token_keys: Path
    audit_log: Path
    first_password: str | None = field(default=None, repr=False)

    @property
    def store_settings(self) -> dict[str, Any]:
        """Return the settings of the segment stores."""
        return {
            "tls": self._tls,
            "token_keys": str(self.token_keys),
            "controller_ca": str(self.ca),
        }

    @property
    def controller_settings(self) -> dict[str, Any]:
        """Return the settings of the controllers."""
        return {
            "tls": self._tls,
            "accounts": str(self.accounts),
            "token_keys": str(self.token_keys),
            "store_tls": True,
            "store_ca": str(self.ca),
            "audit_log": str(self.audit_log),
        }

    @property
    def _tls(self) -> dict[str, str]:
        return {"certificate": str(self.certificate), "key": str(self.key)}


def is_secure(data_dir: Path) -> bool:
    """Return whether the store in a data directory was started with ``--secure`` before."""
    return (data_dir / DIRECTORY / "passwd").exists()


def open_security_files(
    data_dir: Path,
    *,
    names: tuple[str, ...] = (),
    environment: Mapping[str, str] = os.environ,
    make_password: Callable[[], str] = lambda: secrets.token_urlsafe(PASSWORD_BYTES),
    now: Callable[[], float] = time.time,
) -> SecurityFiles:
    """Return the files of a store, and make those that are missing.

    ``names`` are hosts and addresses of the certificate besides those of this machine. Raises
    ``ConfigurationError`` when a file is damaged or cannot be made.
    """
    # These modules import cryptography, which a store without TLS does not need.
    from pravega_security.accounts_file import AccountsFileError
    from pravega_security.certificates import open_security_directory
    from pravega_security.own_names import find_own_names
    from pravega_security.signing_keys import SigningKeysError, create_key_file, read_key_file
    from pravega_security.tls import CertificateError

    directory = data_dir / DIRECTORY
    try:
        made = open_security_directory(
            directory,
            now=now(),
            own_names=lambda: tuple(dict.fromkeys((*find_own_names(), *names))),
        )
        token_keys = directory / "token.key"
        if token_keys.exists():
            read_key_file(token_keys)
        else:
            _keep_others_out(data_dir)
            create_key_file(token_keys, now=int(now()))
        first_password = _make_administrator(
            directory / "passwd", environment.get(PASSWORD_VARIABLE), make_password
        )
    except (AccountsFileError, CertificateError, SigningKeysError) as error:
        raise ConfigurationError(str(error)) from error
    return SecurityFiles(
        ca=made.ca.resolve(),
        certificate=made.certificate.resolve(),
        key=made.key.resolve(),
        accounts=(directory / "passwd").resolve(),
        token_keys=token_keys.resolve(),
        audit_log=directory.resolve() / "audit.log",
        first_password=first_password,
    )


def _keep_others_out(data_dir: Path) -> None:
    """Let only the owner enter a data directory, which has the events in files.

    Only a first start does so: an administrator may let others in later. Raises
    ``ConfigurationError``.
    """
    try:
        data_dir.chmod(stat.S_IMODE(data_dir.stat().st_mode) & ~0o077)
    except OSError as error:
        raise ConfigurationError(
            f"{data_dir} cannot be closed to other users of this machine: {error.strerror}; let it"
            " belong to the user that starts the store"
        ) from error


def _make_administrator(
    path: Path, given: str | None, make_password: Callable[[], str]
) -> str | None:
    """Make the accounts file with the administrator, if it is missing. Return a made password."""
    from pravega_security.access_rules import parse_access_rules
    from pravega_security.accounts_file import (
        Account,
        AccountsFile,
        change_accounts_file,
        read_accounts_file,
    )
    from pravega_security.passwords import hash_password

    if path.exists():
        read_accounts_file(path)
        return None
    password = given or make_password()
    hashed = hash_password(password)

    def add(file: AccountsFile) -> None:
        file.put(Account(ADMINISTRATOR, hashed, parse_access_rules(ADMINISTRATOR_RULES)))

    change_accounts_file(path, add)
    return None if given else password
