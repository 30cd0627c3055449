"""The file with the keys that sign delegation tokens: reading, watching, making and rotating it.

Owns: the text form of the file (docs/formats/token-keys.md), and the roles of its keys. Tokens are
signed with the ``current`` key. They are accepted if any key of the file signed them: the
``previous`` one, which was current before, and the ``next`` one, which will be.

A key is the bytes of its text, not what the text encodes: so the same text is the original's
signing key, whose bytes are used as they are.

Invariants:
1. When others than the file's owner and its group may read the file, it is refused. Held by
   ``test_a_file_that_others_can_read_is_refused``.
2. When the file changes, its keys are used from the next look at the file, at most ``LOOK_SECONDS``
   later. When the new file is broken, the previous keys stay in use, and a log line says so once.
   Held by ``test_a_broken_new_file_leaves_the_old_keys_and_is_logged_once``.
3. When a file is made or changed, it appears whole, durably, and readable for its owner alone.
   Held by ``test_a_file_is_made_whole_or_not_at_all``.
4. No error, log line or ``repr`` has a key. Held by ``test_nothing_tells_a_key``.
"""

from __future__ import annotations

import base64
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import structlog

KEY_BYTES_MIN: Final = 64
"""Minimum length of a key, in bytes: the length of the signatures that it makes."""
KEY_BYTES_MAX: Final = 1024
FILE_BYTES_MAX: Final = 16 * 1024
LOOK_SECONDS: Final = 1.0
"""Minimum time, in seconds, between two looks whether the file has changed."""
ROTATION_SECONDS_MIN: Final = 3600
"""Minimum time, in seconds, between two rotations: tokens that the key before the former one signed
are refused permanently after the second one, so they must have expired."""

_RANDOM_BYTES: Final = 64
_ID_BYTES: Final = 4
_MODE: Final = 0o600
_FORBIDDEN_MODE: Final = 0o037
"""Bits of what the group may do beyond reading, and of all that others may do."""
_HEAD: Final = (
    "# Keys that sign delegation tokens. Keep them secret: whoever has one may do everything.\n"
    "# ROLE ID SECONDS KEY\n"
)
_LINE: Final = re.compile(r"(next|current|previous) ([0-9a-f]{8}) ([0-9]{1,12}) ([!-~]+)")
_ROLES: Final = ("next", "current", "previous")

_State: TypeAlias = tuple[int, ...]

logger = structlog.get_logger(__name__)


class SigningKeysError(ValueError):
    """The keys cannot be used or changed. The text is a sentence for operators, without keys."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key. ``since`` is when it got its role, in seconds since 1970."""

    id: str
    since: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The content of the file."""

    current: SigningKey
    previous: SigningKey | None = None
    next: SigningKey | None = None

    @property
    def roles(self) -> dict[str, SigningKey]:
        """Return the keys by role, in the order of the file."""
        keys = {"next": self.next, "current": self.current, "previous": self.previous}
        return {role: key for role, key in keys.items() if key is not None}


class SigningKeys:
    """The keys of a file, which may change at any moment; for any thread."""

    def __init__(self, path: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Read the file. Raises ``SigningKeysError``."""
        self._path = path
        self._monotonic = monotonic
        self._complaint = ""
        self._next_look = monotonic() + LOOK_SECONDS
        self._state, file = _read(path)
        self._current, self._all_valid = _secrets_of(file)

    @property
    def current(self) -> bytes:
        """Return the key that signs."""
        self._look_if_due()
        return self._current

    @property
    def all_valid(self) -> tuple[bytes, ...]:
        """Return the keys that may have signed a token, the current one first. It is the same
        object as long as the file stays the same."""
        if self._monotonic() >= self._next_look:
            self.look()
        return self._all_valid

    def look(self) -> None:
        """Read the file again if it has changed."""
        self._next_look = self._monotonic() + LOOK_SECONDS
        try:
            if _state_of(os.stat(self._path)) == self._state:
                return
            state, file = _read(self._path)
        except OSError as error:
            self._complain(f"{self._path} cannot be read: {error.strerror}")
        except SigningKeysError as error:
            self._complain(str(error))
        else:
            self._state, self._complaint = state, ""
            self._current, self._all_valid = _secrets_of(file)
            ids = {role: key.id for role, key in file.roles.items()}
            logger.info("token keys changed", path=str(self._path), **ids)

    def _look_if_due(self) -> None:
        if self._monotonic() >= self._next_look:
            self.look()

    def _complain(self, sentence: str) -> None:
        if sentence != self._complaint:
            self._complaint = sentence
            logger.error("token keys did not change", reason=sentence)


def read_key_file(path: Path) -> KeyFile:
    """Return the content of a file. Raises ``SigningKeysError``."""
    return _read(path)[1]


def create_key_file(
    path: Path, *, now: int, random_bytes: Callable[[int], bytes] = os.urandom
) -> KeyFile:
    """Make a file with one key. ``now`` is in seconds since 1970. Raises ``SigningKeysError``."""
    file = KeyFile(_make_key(now, random_bytes))
    with _locked_folder(path) as folder:
        temporary = _write_beside(path, file, random_bytes)
        try:
            os.link(temporary, path)
        except FileExistsError as error:
            raise SigningKeysError(
                f"{path} exists: segstore token rotate makes a new key in it"
            ) from error
        except OSError as error:
            raise _refused_write(path, error) from error
        finally:
            os.unlink(temporary)
        os.fsync(folder)
    return file


def prepare_rotation(
    path: Path, *, now: int, random_bytes: Callable[[int], bytes] = os.urandom
) -> KeyFile:
    """Add a key that tokens are not signed with yet. Raises ``SigningKeysError``."""

    def prepare(file: KeyFile) -> KeyFile:
        if file.next is not None:
            raise SigningKeysError(f"{path} has a next key already: {file.next.id}")
        return KeyFile(file.current, file.previous, _make_key(now, random_bytes))

    return _change(path, prepare, random_bytes)


def rotate_keys(
    path: Path,
    *,
    now: int,
    keep_former: bool = True,
    force: bool = False,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> KeyFile:
    """Make the next key, or without one a new key, the current one.

    The former one stays valid, unless ``keep_former`` is False. Raises ``SigningKeysError``, also
    when the last rotation is less than ``ROTATION_SECONDS_MIN`` ago, unless ``force`` is set.
    """

    def rotate(file: KeyFile) -> KeyFile:
        age = now - file.current.since
        if file.previous is not None and keep_former and not force and age < ROTATION_SECONDS_MIN:
            raise SigningKeysError(
                f"the key {file.previous.id} signed until {max(0, age)} s ago, and its tokens may"
                f" be in use: wait until it is {ROTATION_SECONDS_MIN} s, or use --force"
            )
        new = file.next or _make_key(now, random_bytes)
        former = SigningKey(file.current.id, now, file.current.secret) if keep_former else None
        return KeyFile(SigningKey(new.id, now, new.secret), former)

    return _change(path, rotate, random_bytes)


def decode_key_file(text: str, path: Path) -> KeyFile:
    """Return the content of the text of a file at ``path``. Raises ``SigningKeysError``."""
    found: dict[str, SigningKey] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            raise SigningKeysError(f"{path}: line {number} is not of the form ROLE ID SECONDS KEY")
        role, identifier, since, secret = match.groups()
        if role in found:
            raise SigningKeysError(f"{path}: line {number} has a second {role} key")
        if not KEY_BYTES_MIN <= len(secret) <= KEY_BYTES_MAX:
            raise SigningKeysError(
                f"{path}: the key in line {number} has {len(secret)} characters, and has to have"
                f" {KEY_BYTES_MIN} to {KEY_BYTES_MAX}"
            )
        found[role] = SigningKey(identifier, int(since), secret.encode("ascii"))
    if (current := found.get("current")) is None:
        raise SigningKeysError(f"{path} has no current key: segstore token create makes a file")
    return KeyFile(current, found.get("previous"), found.get("next"))


def encode_key_file(file: KeyFile) -> str:
    """Return the text of a file."""
    lines = [
        f"{role} {key.id} {key.since} {key.secret.decode('ascii')}\n"
        for role, key in file.roles.items()
    ]
    return _HEAD + "".join(lines)


def _secrets_of(file: KeyFile) -> tuple[bytes, tuple[bytes, ...]]:
    keys = (file.current, file.previous, file.next)
    return file.current.secret, tuple(key.secret for key in keys if key is not None)


def _make_key(now: int, random_bytes: Callable[[int], bytes]) -> SigningKey:
    secret = base64.urlsafe_b64encode(random_bytes(_RANDOM_BYTES)).rstrip(b"=")
    return SigningKey(random_bytes(_ID_BYTES).hex(), now, secret)


def _state_of(status: os.stat_result) -> _State:
    """Return what is different when a file was changed or replaced."""
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _read(path: Path) -> tuple[_State, KeyFile]:
    try:
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SigningKeysError(f"{path} is no file")
            if status.st_mode & _FORBIDDEN_MODE:
                raise SigningKeysError(
                    f"{path} may be used by others than its owner (mode"
                    f" {stat.S_IMODE(status.st_mode):03o}): run chmod 600 {path}, and rotate the"
                    " keys if others may have read them"
                )
            data = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SigningKeysError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise SigningKeysError(f"{path} is longer than {FILE_BYTES_MAX} bytes")
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        # The cause of this error would contain the bytes.
        raise SigningKeysError(f"{path} has other characters than ASCII") from None
    return _state_of(status), decode_key_file(text, path)


def _change(
    path: Path, change: Callable[[KeyFile], KeyFile], random_bytes: Callable[[int], bytes]
) -> KeyFile:
    """Replace a file by a changed one, which keeps its owner and mode."""
    with _locked_folder(path) as folder:
        file = change(read_key_file(path))
        before = os.stat(path)
        temporary = _write_beside(path, file, random_bytes, like=before)
        try:
            os.replace(temporary, path)
        except OSError as error:
            with suppress(OSError):
                os.unlink(temporary)
            raise _refused_write(path, error) from error
        os.fsync(folder)
    return file


@contextmanager
def _locked_folder(path: Path) -> Iterator[int]:
    """Open the folder of a file; changes of files in it by this module wait for each other."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _refused_write(path, error) from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(folder)


def _write_beside(
    path: Path,
    file: KeyFile,
    random_bytes: Callable[[int], bytes],
    like: os.stat_result | None = None,
) -> Path:
    """Write a file durably under another name in the same folder, with owner and mode of ``like``;
    returns its path."""
    temporary = path.with_name(f".{path.name}.{random_bytes(_ID_BYTES).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, _MODE)
    except OSError as error:
        raise _refused_write(path, error) from error
    try:
        with os.fdopen(descriptor, "wb") as stream:
            own = os.fstat(descriptor)
            if like is not None and (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid):
                os.fchown(descriptor, like.st_uid, like.st_gid)
            os.fchmod(descriptor, _MODE if like is None else stat.S_IMODE(like.st_mode))
            stream.write(encode_key_file(file).encode("ascii"))
            stream.flush()
            os.fsync(descriptor)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise _refused_write(path, error) from error
        raise
    return temporary


def _refused_write(path: Path, error: OSError) -> SigningKeysError:
    return SigningKeysError(f"{path} cannot be written: {error.strerror}")
