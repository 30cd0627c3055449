"""The file with users, their derived passwords and their rights.

Owns: the form of the file, changes of it that keep its comments and its order, and its rewriting.

    line = user ":" derived-password [":" rules]
         | "#" any text
         | nothing

The form is the original's. The original stops reading at the first empty line; here the lines after
it count too, and are reported in ``warnings`` when there are any. Of two lines for one user the
last counts.

Invariants:
1. When the file is rewritten and the machine stops meanwhile, it has the old content or the new.
   Held by ``test_a_rewritten_file_is_replaced_as_a_whole``.
2. When the file is new, only its owner may read it. When it is there, it keeps its owner and
   group, and others get no right. Held by ``test_others_may_not_read_the_file``.
3. When two commands change the file at the same time, neither change is lost. Held by
   ``test_two_changes_at_once_are_both_there``.
4. When a line is wrong, the error names file and line, and repeats nothing of it. Held by
   ``test_a_wrong_line_is_named_and_not_repeated``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pravega_security.access_rules import AccessRules, parse_access_rules
from pravega_security.passwords import PasswordHash, PasswordHashError, parse_password_hash

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
USER_LENGTH_MAX: Final = 255
USER_RULE: Final = (
    f"a user's name has 1 to {USER_LENGTH_MAX} characters that can be seen, and no colon; it does"
    ' not begin with "#"'
)


class AccountsFileError(Exception):
    """The accounts file cannot be read or written. The text has the file and the line, and
    nothing that is secret."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user, with how to prove to be it, and its rights."""

    user: str
    password: PasswordHash
    rules: AccessRules

    def __str__(self) -> str:
        return f"{self.user}:{self.password}:{self.rules}"


class AccountsFile:
    """The content of an accounts file, which can be changed."""

    def __init__(self, lines: list[str], accounts: dict[str, Account], warnings: list[str]) -> None:
        self._lines = lines
        self.accounts = accounts
        """The accounts by user, in the order of their lines."""
        self.warnings = warnings
        """Sentences about what is there and has no effect, or another one in the original."""

    @classmethod
    def parse(cls, text: str, name: str) -> AccountsFile:
        """Return the content; ``name`` is the file's, for sentences. Raises
        ``AccountsFileError``."""
        lines = text.removeprefix("\ufeff").split("\n")
        if lines[-1] == "":
            lines.pop()
        accounts: dict[str, Account] = {}
        warnings = []
        first_empty = 0
        for number, line in enumerate(lines, 1):
            line = line.removesuffix("\r")
            if not line.strip():
                first_empty = first_empty or number
                continue
            if line.startswith("#"):
                continue
            account = _parse_line(line, f"{name}, line {number}")
            if accounts.pop(account.user, None) is not None:
                warnings.append(
                    f"{name}, line {number}: user {account.user} has an earlier line, which does"
                    " not count"
                )
            accounts[account.user] = account
            for problem in account.rules.problems:
                warnings.append(f"{name}, line {number}: user {account.user}: {problem}")
            if first_empty > 0:
                warnings.append(
                    f"{name}, line {number}: the original does not read it, since line"
                    f" {first_empty} is empty"
                )
                first_empty = -1
        return cls(lines, accounts, warnings)

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in self._lines)

    def put(self, account: Account) -> None:
        """Write the account in the place of its line; a new one becomes the last."""
        places = self._places(account.user)
        if places:
            self._lines[places[-1]] = str(account)
        else:
            self._lines.append(str(account))
        self.accounts[account.user] = account

    def remove(self, user: str) -> None:
        """Remove all lines of a user that is there."""
        for place in reversed(self._places(user)):
            del self._lines[place]
        del self.accounts[user]

    def _places(self, user: str) -> list[int]:
        return [place for place, line in enumerate(self._lines) if line.startswith(f"{user}:")]


def is_user_name(text: str) -> bool:
    """Return whether a user of an accounts file can have this name."""
    return (
        0 < len(text) <= USER_LENGTH_MAX
        and text.isprintable()
        and text == text.strip()
        and ":" not in text
        and not text.startswith("#")
    )


def read_accounts_file(path: Path) -> tuple[AccountsFile, os.stat_result]:
    """Return the file's content, and its state before it was read. Blocks. Raises
    ``AccountsFileError``."""
    try:
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise AccountsFileError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > FILE_BYTES_MAX:
        raise AccountsFileError(f"{path} has more than {FILE_BYTES_MAX:,} bytes")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        # Do not chain this error: it has the whole content of the file.
        raise AccountsFileError(f"{path}, line {line}: it is not UTF-8") from None
    return AccountsFile.parse(text, str(path)), state


def change_accounts_file(path: Path, change: Callable[[AccountsFile], None]) -> AccountsFile:
    """Change the file, which is made if it is not there, and return what it has now. Blocks.

    Errors of ``change`` leave the file as it was. Raises ``AccountsFileError``.
    """
    # A symbolic link stays: the file to which it points is replaced.
    path = path.resolve()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _lock_directory(path.parent) as directory:
            state = None
            content = AccountsFile([], {}, [])
            with suppress(FileNotFoundError):
                path.stat()
                content, state = read_accounts_file(path)
            change(content)
            _replace(path, str(content).encode(), state)
            os.fsync(directory)
    except OSError as error:
        raise AccountsFileError(f"{path} cannot be changed: {error.strerror}") from error
    return AccountsFile.parse(str(content), str(path))


def _parse_line(line: str, place: str) -> Account:
    user, colon, rest = line.partition(":")
    if not colon:
        raise AccountsFileError(f"{place}: it has to be user, colon, derived password")
    if not is_user_name(user):
        raise AccountsFileError(f"{place}: {USER_RULE}")
    derived, _, rules = rest.partition(":")
    try:
        password = parse_password_hash(derived)
    except PasswordHashError as error:
        raise AccountsFileError(f"{place}: {error}") from None
    return Account(user, password, parse_access_rules(rules))


@contextmanager
def _lock_directory(path: Path) -> Iterator[int]:
    """Yield a descriptor of the directory, of which one caller at a time has a lock."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Some network file systems cannot lock directories: then the last change wins.
        with suppress(OSError):
            fcntl.flock(directory, fcntl.LOCK_EX)
        yield directory
    finally:
        os.close(directory)


def _replace(path: Path, content: bytes, former: os.stat_result | None) -> None:
    """Put a file with this content in the place of ``path``, durably but for the directory."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            if former is not None:
                current = os.fstat(descriptor)
                if (current.st_uid, current.st_gid) != (former.st_uid, former.st_gid):
                    # Root adds users to the file of a server, which still has to read it.
                    os.fchown(descriptor, former.st_uid, former.st_gid)
                os.fchmod(descriptor, (former.st_mode & 0o660) | 0o600)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
