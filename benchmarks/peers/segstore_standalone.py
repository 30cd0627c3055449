"""Our own servers: as it is, where every acknowledged append is on disk, and on other tiers."""

import compileall
import importlib
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from foreign_servers.original_security import USER, make_basic_environment
from foreign_servers.peer import OPEN, ClientAccess, PeerFailedError, RunningPeer
from foreign_servers.processes import ServerProcess

from segstore.testing.ports import free_ports

ROOT = Path(__file__).parent.parent.parent

PACKAGES = (
    "_fast",
    "bookkeeper_client",
    "pravega_admin",
    "pravega_cluster",
    "pravega_controller",
    "pravega_wire",
    "segstore",
    "zookeeper_client",
)
COMMAND = Path(sys.executable).parent / "segstore"
UNSTORED = "unstored"
HELD = "held"
LOGGED = "logged"
UNSYNCED = "unsynced"
ASSEMBLED_NAMES = {
    UNSTORED: "nothing stored",
    HELD: "held",
    LOGGED: "segstore, no tier 2",
    UNSYNCED: "segstore, no sync",
}
"""The names of stores on tiers that only measurements use."""
ADMIN_PASSWORD = "SEGSTORE_ADMIN_PASSWORD"
READY_SECONDS_MAX = 60.0
READY_WORDS = "segstore is ready"


def prepare_installation() -> None:
    """Check that the command is installed, and compile what was edited since.

    Raises ``PeerFailedError``.
    """
    if not COMMAND.exists():
        raise PeerFailedError(f"{COMMAND} is not installed")
    # As an installation does: where bytecode may not be written, each start would compile all.
    for package in PACKAGES:
        [where] = importlib.import_module(package).__path__
        compileall.compile_dir(where, quiet=1)


def with_benchmarks(module: str) -> list[str]:
    """Return the beginning of a command that runs a module of the benchmarks, in any directory."""
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
    return ["env", f"PYTHONPATH={path}", sys.executable, "-m", module]


class SegstoreStandalone:
    """`segstore standalone` as installed beside the running interpreter, with its defaults."""

    key = "ours"
    name = "segstore"
    speaks_kafka = False

    def __init__(
        self, *, options: tuple[str, ...] = (), settings: str = "", secure: bool = False
    ) -> None:
        """Take ``settings``, the text of its configuration file, if it shall have one, and
        ``secure`` for TLS, a user and tokens."""
        self._options = (*options, "--secure") if secure else options
        self._settings = settings
        self._password = secrets.token_urlsafe(12) if secure else None
        self._ports: list[int] = []
        self._server: ServerProcess | None = None

    @property
    def description(self) -> str:
        """Describe the server that runs, with the options that differ from the defaults."""
        words = [*self._options, *self._settings.replace(" = ", "=").split()]
        options = f" with {' '.join(words)}" if words else ""
        return f"segstore standalone, journal and tier 2 on the local file system{options}"

    def prepare(self) -> None:
        """Check that the command is installed, and compile what was edited since."""
        prepare_installation()

    def reserve(self, ports: Sequence[int] = ()) -> str:
        """Choose two free ports, unless there are ``ports`` that it shall have."""
        self._ports = list(ports) or free_ports(2)
        return self.address

    @property
    def password(self) -> str:
        """Return the password of the user of a secure store."""
        assert self._password is not None
        return self._password

    @property
    def address(self) -> str:
        """Return the address that clients are given."""
        scheme = "tcp" if self._password is None else "tls"
        return f"{scheme}://127.0.0.1:{self._ports[0]}"

    def start(self, directory: Path) -> RunningPeer:
        """Start all processes and wait until the store says that it is ready.

        ``directory`` may hold what an earlier start left there.
        """
        controller_port, segment_store_port = self._ports
        command = [
            str(COMMAND),
            "standalone",
            *("--data-dir", str(directory / "data")),
            *("--controller-port", str(controller_port)),
            *("--segment-store-port", str(segment_store_port)),
            *("--host", "127.0.0.1"),
            *self._options,
        ]
        if self._settings:
            settings = directory / "settings.toml"
            settings.write_text(self._settings)
            command += ["--config", str(settings)]
        environment = {} if self._password is None else {ADMIN_PASSWORD: self._password}
        self._server = ServerProcess(command, directory=directory, environment=environment)
        self._server.wait_for_port(controller_port, seconds_max=READY_SECONDS_MAX)
        self._server.wait_for_text(READY_WORDS, seconds_max=READY_SECONDS_MAX)
        return RunningPeer(
            address=self.address,
            processes=self._server.processes,
            started_epoch=self._server.started_epoch,
            access=self._access(directory / "data" / "security"),
        )

    def _access(self, security: Path) -> ClientAccess:
        if self._password is None:
            return OPEN
        environment = make_basic_environment(USER, self._password)
        return ClientAccess(trust_store=security / "ca.pem", environment=environment)

    @property
    def segment_store_port(self) -> int:
        """Return the port at which the segment store of the last start listens."""
        return self._ports[1]

    def process_id(self, kind: str) -> int:
        """Return the process of the running server that is its ``controller`` or
        ``segment-store``."""
        assert self._server is not None
        for process_id in self._server.processes.process_ids():
            words = Path("/proc", str(process_id), "cmdline").read_text().split("\0")
            if words[3:5] == ["child", kind]:
                return process_id
        raise PeerFailedError(f"there is no process of a {kind}")

    def stop(self) -> None:
        """End all processes."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def kill(self) -> None:
        """End all processes at once."""
        if self._server is not None:
            self._server.kill()
            self._server = None


class AssembledStore:
    """Our segment store on ``tiers`` of ``assembled_store``, with a controller beside it."""

    speaks_kafka = False

    def __init__(self, tiers: str, *, cache_bytes: int | None = None) -> None:
        """Take ``cache_bytes``, a cache size other than the usual one of these tiers."""
        self.key = "ceiling" if tiers == UNSTORED else tiers
        self.name = ASSEMBLED_NAMES[tiers]
        self._tiers = tiers
        self._cache_bytes = cache_bytes
        self._ports: list[int] = []
        self._server: ServerProcess | None = None

    @property
    def description(self) -> str:
        """Describe the server that runs."""
        return {
            UNSTORED: "segstore that acknowledges without storing: what client and protocol allow",
            HELD: "segstore whose tier 2 takes nothing",
            LOGGED: "segstore whose tier 2 drops what it is given",
            UNSYNCED: "segstore whose journal stays in the page cache",
        }[self._tiers]

    def prepare(self) -> None:
        """Do nothing: nothing needs to be prepared."""

    def reserve(self) -> str:
        """Choose two free ports."""
        self._ports = free_ports(2)
        return f"tcp://127.0.0.1:{self._ports[0]}"

    @property
    def ports(self) -> tuple[int, ...]:
        """Return the ports of the controller and the segment store."""
        return tuple(self._ports)

    def start(self, directory: Path) -> RunningPeer:
        """Start both processes and wait for the controller port."""
        command = [*with_benchmarks("benchmarks.peers.assembled_store"), self._tiers]
        command += [str(directory / "data"), *map(str, self._ports)]
        if self._cache_bytes is not None:
            command.append(str(self._cache_bytes))
        self._server = ServerProcess(command, directory=directory, name=self._tiers)
        self._server.wait_for_port(self._ports[0], seconds_max=READY_SECONDS_MAX)
        return RunningPeer(
            address=f"tcp://127.0.0.1:{self._ports[0]}",
            processes=self._server.processes,
            started_epoch=self._server.started_epoch,
        )

    def stop(self) -> None:
        """Kill both processes at once."""
        if self._server is not None:
            self._server.kill()
            self._server = None
