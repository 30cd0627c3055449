"""The accounts of a running server, and logins by user and password.

Owns: the accounts file in memory, its reloading, and the logins that were verified of late.

The file is looked at with every use, which takes two microseconds, and read when it is another
one. So a new user, a new password, new rights and a removal hold when the command that made them
has ended, also for connections that are there.

Deriving a password takes long on purpose, and clients send theirs with every call. So a verified
login is remembered until the file changes: not as user and password, but as an HMAC of them with a
key that this process alone has.

Invariants:
1. When the file has changed, the next login and the next right are of the new content. Held by
   ``test_a_changed_file_holds_at_once``.
2. When the new file is broken or missing, the old accounts stay, and one line is logged. Held by
   ``test_a_broken_file_keeps_the_old_accounts_and_logs_once``.
3. When a login is verified while the file changes, it is not remembered for the new one. Held by
   ``test_a_login_of_the_old_file_is_not_remembered``.
4. When a user does not exist, a login takes as many rounds as for an existing one. Held by
   ``test_each_refused_login_takes_the_same_rounds``.
5. When many threads verify the same login at once, its password is derived once. Held by
   ``test_one_login_on_many_threads_is_derived_once``.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import secrets
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from pravega_security.accounts_file import AccountsFile, AccountsFileError, read_accounts_file
from pravega_security.login_delays import LoginDelays
from pravega_security.passwords import PASSWORD_BYTES_MAX, ROUNDS, spend_rounds
from pravega_security.principals import AuthenticationError, Principal
from pravega_security.resources import Level

REMEMBERED_LOGINS_MAX: Final = 1024
TOKEN_LENGTH_MAX: Final = 4096
WRONG_LOGIN: Final = "user or password is wrong"
"""The sentence for everything that is wrong with a login, so that it tells nothing."""
_FileState: TypeAlias = tuple[int, int, int, int] | None

logger = structlog.get_logger(__name__)


class _LoadedAccounts:
    """The accounts of one state of the file, and the logins that were verified against it."""

    def __init__(self, file: AccountsFile, state: _FileState) -> None:
        self.state = state
        self.accounts = file.accounts
        rounds = [account.password.rounds for account in file.accounts.values()]
        self.rounds_max = max(rounds, default=ROUNDS)
        self._verified: OrderedDict[bytes, None] = OrderedDict()
        self._running: dict[bytes, Future[bool]] = {}
        self._lock = threading.Lock()

    def verify(self, key: bytes, user: str, password: bytes) -> bool:
        """Return whether the login is right; ``key`` stands for it."""
        with self._lock:
            if key in self._verified:
                self._verified.move_to_end(key)
                return True
            running = self._running.get(key)
            if running is None:
                mine: Future[bool] = Future()
                self._running[key] = mine
        if running is not None:
            return running.result()
        try:
            is_right = self._derive(user, password)
        except BaseException as error:
            mine.set_exception(error)
            with self._lock:
                del self._running[key]
            raise
        with self._lock:
            del self._running[key]
            if is_right:
                self._verified[key] = None
                while len(self._verified) > REMEMBERED_LOGINS_MAX:
                    self._verified.popitem(last=False)
        mine.set_result(is_right)
        return is_right

    def was_verified(self, key: bytes) -> bool:
        """Return whether the login that ``key`` stands for is remembered as right."""
        return key in self._verified

    def _derive(self, user: str, password: bytes) -> bool:
        account = self.accounts.get(user)
        if account is None:
            spend_rounds(password, self.rounds_max)
            return False
        is_right = account.password.verify(password)
        # Entries of the original take fewer rounds: the time would tell which users exist.
        spend_rounds(password, self.rounds_max - account.password.rounds)
        return is_right


class Accounts:
    """The accounts in a file. Any thread may call it."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises ``AccountsFileError``."""
        self._path = path
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._broken_state: tuple[_FileState] | None = None
        self._loaded = self._read()

    def __repr__(self) -> str:
        return f"Accounts({str(self._path)!r})"

    def verify(self, user: str, password: bytes) -> bool:
        """Return whether this is the user's password. May take long, without the interpreter's
        lock; what was verified of late takes microseconds."""
        return self._current().verify(self._key_of(user, password), user, password)

    def was_verified(self, user: str, password: bytes) -> bool:
        """Return whether this was verified as the user's password of late."""
        return self._current().was_verified(self._key_of(user, password))

    def _key_of(self, user: str, password: bytes) -> bytes:
        login = user.encode("utf-8", "surrogatepass") + b":" + password
        return hmac.digest(self._key, login, "sha256")

    def authorize(self, user: str, resource: str) -> Level:
        """Return what the user may do with the resource now; ``NONE`` if there is no such user."""
        account = self._current().accounts.get(user)
        return Level.NONE if account is None else account.rules.level_for(resource)

    def _current(self) -> _LoadedAccounts:
        """Return the accounts, of the changed file if it has changed."""
        loaded, state = self._loaded, self._look()
        if state == loaded.state:
            self._broken_state = None
            return loaded
        if self._broken_state == (state,):
            return loaded
        with self._lock:
            self._reload()
        return self._loaded

    def _reload(self) -> None:
        """Read the file unless another thread has."""
        state = self._look()
        if state == self._loaded.state or self._broken_state == (state,):
            return
        try:
            self._loaded = self._read()
        except AccountsFileError as error:
            self._broken_state = (state,)
            logger.error("the accounts file is not used: the former accounts stay", why=str(error))
            return
        self._broken_state = None
        logger.info(
            "the accounts file was read again",
            file=str(self._path),
            users=len(self._loaded.accounts),
        )

    def _look(self) -> _FileState:
        try:
            return _state_of(self._path.stat())
        except OSError:
            return None

    def _read(self) -> _LoadedAccounts:
        file, found = read_accounts_file(self._path)
        for warning in file.warnings:
            logger.warning("the accounts file has something doubtful", what=warning)
        return _LoadedAccounts(file, _state_of(found))


def _state_of(found: os.stat_result) -> _FileState:
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


class AccountPrincipal:
    """A user of an accounts file who has proved to be it."""

    def __init__(self, name: str, accounts: Accounts) -> None:
        self._name = name
        self._accounts = accounts

    @property
    def name(self) -> str:
        """Return the user."""
        return self._name

    def authorize(self, resource: str) -> Level:
        """Return what the user may do with the resource now, by the file as it is now."""
        return self._accounts.authorize(self._name, resource)


class BasicAuthenticator:
    """Authenticates by user and password: ``Basic`` and the base64 of ``user:password``."""

    def __init__(self, accounts: Accounts, delays: LoginDelays | None = None) -> None:
        self._accounts = accounts
        self.delays = LoginDelays(time.monotonic) if delays is None else delays

    @property
    def method(self) -> str:
        """Return ``Basic``."""
        return "Basic"

    def find_known(self, token: str, peer: str) -> Principal | None:
        """Return the user if the login was verified of late, else None; takes microseconds."""
        login = _decode_login(token)
        if login is None or not self._accounts.was_verified(*login):
            return None
        return AccountPrincipal(login[0], self._accounts)

    def authenticate(self, token: str, peer: str) -> Principal:
        """Return the user. Raises ``AuthenticationError``."""
        login = _decode_login(token)
        if login is None:
            raise AuthenticationError(WRONG_LOGIN)
        user, password = login
        seconds = self.delays.refuse_seconds(peer, user)
        if seconds > 0:
            sentence = f"too many logins failed: try again in {seconds} s"
            raise AuthenticationError(sentence, claimed=user)
        if not self._accounts.verify(user, password):
            self.delays.note_failure(peer, user)
            raise AuthenticationError(WRONG_LOGIN, claimed=user)
        self.delays.note_success(peer, user)
        return AccountPrincipal(user, self._accounts)


def _decode_login(token: str) -> tuple[str, bytes] | None:
    """Return user and password; None if the text is no login."""
    if len(token) > TOKEN_LENGTH_MAX:
        return None
    try:
        # ``ValueError`` is for characters beyond ASCII.
        text = base64.b64decode(token.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    user, colon, password = text.partition(":")
    encoded = password.encode()
    if not (user and colon) or len(encoded) > PASSWORD_BYTES_MAX:
        return None
    return user, encoded
