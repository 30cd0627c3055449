"""Waits for a lock or a port that another process holds, and names that process.

Owns: how long a start waits for the lock or port, the line that it logs meanwhile, and its sentence
when it gives up. Data directories, clusters on one machine and ports all use this module.

A holder may be ending just now: it was killed a moment ago, or a restart has told it to end.

    0 s    it is held: the start looks again, every 20 ms
    1 s    "waiting: port 9090 on 127.0.0.1 is in use by process 4711 (segstore standalone)"
    5 s    HeldError: "port 9090 on 127.0.0.1 is in use by process 4711 (segstore standalone)"

Invariants:
1. When a lock or port becomes free within the wait, it is taken. In the first second of the wait
   nothing is logged. Held by ``test_a_lock_that_becomes_free_is_taken_without_a_word``.
2. A longer wait is logged once, and an error names the process and its command. Held by
   ``test_a_wait_is_told_and_its_end_names_the_process``.
3. A process that inherited the lock's descriptor is named, when the one that took it has ended.
   Held by ``test_a_process_that_inherited_the_lock_is_named``.
4. When this process itself holds the lock or port, it is refused at once: a wait would be for this
   very thread. Held by ``test_what_this_process_holds_is_refused_at_once``.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Final, TypeAlias

from segstore.errors import SegmentStoreError

WAIT_SECONDS: Final = 5.0
"""Maximum time that a start waits for what another process holds."""
TELL_SECONDS: Final = 1.0
"""Time after which it says that it waits."""
POLL_SECONDS: Final = 0.02
COMMAND_LENGTH_MAX: Final = 100
_OWN_MODULE: Final = "pravega_admin"
"""The module that each process of a store runs."""
_PID_BYTES: Final = 16
_LISTENS: Final = "0A"

Tell: TypeAlias = Callable[[str], None]


class HeldError(SegmentStoreError):
    """Another process holds a lock or a port; the sentence names the process."""


def log_wait(sentence: str) -> None:
    """Log that a start waits, in a server."""
    # The command line waits, too, and does not need this import.
    import structlog

    structlog.get_logger(__name__).warning(sentence)


def take_lock(
    descriptor: int,
    what: str,
    *,
    remark: str = "",
    wait_seconds: float = WAIT_SECONDS,
    tell: Tell = log_wait,
) -> None:
    """Lock an open file. Blocks.

    The sentence of a refusal calls the locked thing ``what``, and ends with ``remark``. Raises
    ``HeldError``, and ``OSError`` when the file cannot be locked.
    """

    def is_taken() -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    find = partial(lock_holders, descriptor)
    _wait_until(is_taken, what, find, remark=remark, wait_seconds=wait_seconds, tell=tell)


def write_holder(descriptor: int) -> None:
    """Write our process id into a file that we have locked. Raises ``OSError``."""
    os.pwrite(descriptor, f"{os.getpid()}\n".encode().ljust(_PID_BYTES), 0)


def wait_for_port(
    host: str,
    port: int,
    *,
    remark: str = "",
    wait_seconds: float = WAIT_SECONDS,
    tell: Tell = log_wait,
) -> None:
    """Wait until a port can be opened. Blocks.

    Raises ``HeldError``, ``socket.gaierror`` for an unknown host, and other kinds of ``OSError``.
    """
    family, kind, _, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]

    def is_free() -> bool:
        try:
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        return True

    find = partial(port_holders, str(address[0]), port)
    what = f"port {port} on {host}"
    _wait_until(is_free, what, find, remark=remark, wait_seconds=wait_seconds, tell=tell)


def _wait_until(
    attempt: Callable[[], bool],
    what: str,
    find_holders: Callable[[], list[int]],
    *,
    remark: str,
    wait_seconds: float,
    tell: Tell,
) -> None:
    """Return when an attempt has succeeded. Raises ``HeldError``."""
    if attempt():
        return
    began, is_told = time.monotonic(), False
    if wait_seconds and find_holders() == [os.getpid()]:
        wait_seconds = 0.0
    while (waited := time.monotonic() - began) < wait_seconds:
        if waited >= TELL_SECONDS and not is_told:
            is_told = True
            tell(f"waiting: {describe_use(what, find_holders())}")
        time.sleep(POLL_SECONDS)
        if attempt():
            return
    raise HeldError(f"{describe_use(what, find_holders())}{remark}")


def describe_use(what: str, holders: Iterable[int]) -> str:
    """Return the sentence that something is in use by these processes."""
    named = [f"process {pid} ({_command(pid)})" for pid in holders]
    if not named:
        return f"{what} is in use by a process that this one may not see"
    return f"{what} is in use by {' and '.join(named)}"


def lock_holders(descriptor: int) -> list[int]:
    """Return the processes that hold the lock of an open file."""
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    written = _written_pid(descriptor)
    likely = [os.getpid(), *([] if written is None else [written])]
    found = _find(partial(_has_lock, path), likely)
    # The descriptors of another user's process cannot be seen, but whether it lives can.
    return found or [pid for pid in likely[1:] if os.path.exists(f"/proc/{pid}")]


def port_holders(host: str, port: int) -> list[int]:
    """Return the processes that have opened a port of the address ``host``."""
    sockets = {f"socket:[{inode}]" for inode in _sockets_at(host, port)}
    return _find(partial(_has_open, sockets), [os.getpid()]) if sockets else []


def _find(holds: Callable[[int], bool], likely: Iterable[int]) -> list[int]:
    """Return the first of the likely processes that holds something, or else all that do."""
    for pid in likely:
        if holds(pid):
            return [pid]
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())
    return [pid for pid in pids if holds(pid)]


def _has_lock(path: str, pid: int) -> bool:
    for number, target in _open_files(pid):
        if target == path:
            with suppress(OSError), open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as file:
                if "FLOCK" in file.read():
                    return True
    return False


def _has_open(targets: set[str], pid: int) -> bool:
    return any(target in targets for _, target in _open_files(pid))


def _open_files(pid: int) -> Iterator[tuple[str, str]]:
    """Yield the descriptors of a process and what they are open on, as far as we may see them."""
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for number in os.listdir(folder):
            with suppress(OSError):
                yield number, os.readlink(f"{folder}/{number}")


def _sockets_at(host: str, port: int) -> set[str]:
    """Return the inodes of the sockets that keep a port of this address from us.

    Those that listen; if none does, those that are only bound or connected.
    """
    address = ipaddress.ip_address(host)
    listening: set[str] = set()
    others: set[str] = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/net/{name}", encoding="ascii") as table:
            for line in list(table)[1:]:
                fields = line.split()
                there, _, its_port = fields[1].rpartition(":")
                if int(its_port, 16) == port and _collide(address, _decode_address(there)):
                    (listening if fields[3] == _LISTENS else others).add(fields[9])
    return (listening or others) - {"0"}


_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def _decode_address(text: str) -> _Address:
    """Return an address of the kernel's table: words of 32 bits in the machine's order."""
    data = bytes.fromhex(text)
    if sys.byteorder == "little":
        data = b"".join(data[at : at + 4][::-1] for at in range(0, len(data), 4))
    found = ipaddress.ip_address(data)
    return getattr(found, "ipv4_mapped", None) or found


def _collide(one: _Address, other: _Address) -> bool:
    return one == other or one.is_unspecified or other.is_unspecified


def _written_pid(descriptor: int) -> int | None:
    """Return the process that wrote its id into a lock file."""
    try:
        return int(os.pread(descriptor, _PID_BYTES, 0))
    except (OSError, ValueError):
        return None


def _command(pid: int) -> str:
    """Return how a process was started, as one short line, up to its first option.

    What follows an option of somebody else's program may be a secret.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            program, *arguments = file.read().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return "it has just ended"
    if not program:
        # A process has no words before it runs its program, nor when nobody has waited for its end.
        return "it has just begun, or ended"
    if arguments[:2] == ["-m", _OWN_MODULE]:
        # Its arguments are for the process alone, up to the verb.
        program, arguments = "segstore", arguments[2:3]
    told = takewhile(lambda each: not each.startswith("-") or each == "-m", arguments)
    words = " ".join([os.path.basename(program), *told])
    text = "".join(each if each.isprintable() else " " for each in words)
    return text if len(text) <= COMMAND_LENGTH_MAX else f"{text[: COMMAND_LENGTH_MAX - 3]}..."
