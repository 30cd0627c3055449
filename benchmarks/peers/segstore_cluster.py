"""Our segment stores and our controller as a cluster, on the bookies that the original has too."""

from collections.abc import Sequence
from pathlib import Path

from foreign_servers.cluster import HOST, ClusterPeer, ClusterShape
from foreign_servers.durable_files import LEDGERS_PATH

from benchmarks.peers.segstore_standalone import COMMAND, prepare_installation, with_benchmarks


def segment_store_command(
    cluster: ClusterPeer, directory: Path, number: int, *, program: Sequence[str] = (str(COMMAND),)
) -> list[str]:
    """Return the command that starts a segment store of ours in a cluster."""
    return [
        *program,
        "server",
        f"--zookeeper={cluster.zookeeper}",
        f"--container-count={cluster.shape.containers}",
        f"--host={HOST}",
        f"--port={cluster.store_port(number)}",
        f"--bookkeeper-ledgers={LEDGERS_PATH}",
        f"--replicas={'/'.join(map(str, cluster.shape.replicas))}",
        f"--tier2={directory / 'tier2'}",
    ]


def controller_command(cluster: ClusterPeer) -> list[str]:
    """Return the command that starts a controller of ours in a cluster."""
    return [
        str(COMMAND),
        "controller",
        f"--zookeeper={cluster.zookeeper}",
        f"--container-count={cluster.shape.containers}",
        f"--host={HOST}",
        f"--port={cluster.controller_port}",
    ]


class SegstoreCluster(ClusterPeer):
    """`segstore server` and `segstore controller` as installed beside the running interpreter."""

    key = "ours"
    name = "segstore"

    def __init__(
        self,
        shape: ClusterShape | None = None,
        *,
        settings: str = "",
        is_tier_2_held: bool = False,
    ) -> None:
        """Take ``settings``, the text of the stores' settings file.

        With ``is_tier_2_held`` tier 2 takes nothing of what users write.
        """
        super().__init__(shape)
        self._settings = settings
        self._is_tier_2_held = is_tier_2_held

    @property
    def description(self) -> str:
        """Describe the servers, with the settings that differ from the defaults."""
        changed = " ".join(self._settings.replace(" = ", "=").split())
        held = ", of which tier 2 takes nothing" if self._is_tier_2_held else ""
        shape = self.shape
        return (
            f"segstore server ({shape.stores}) and controller on the same ZooKeeper and bookies"
            f" ({shape.bookies}), quorums {'/'.join(map(str, shape.replicas))}; tier 2 on the local"
            f" file system{held}{f', with {changed}' if changed else ''}"
        )

    def prepare(self) -> None:
        """See ``ClusterPeer``; check the installation, too."""
        prepare_installation()
        super().prepare()

    def _segment_store(self, directory: Path, number: int) -> list[str]:
        if not self._is_tier_2_held:
            command = segment_store_command(self, directory, number)
        else:
            program = with_benchmarks("benchmarks.peers.holding_store")
            command = segment_store_command(self, directory, number, program=program)
        if self._settings:
            settings = directory / "settings.toml"
            settings.write_text(self._settings)
            command.append(f"--config={settings}")
        return command

    def _controller(self, directory: Path) -> list[str]:
        return controller_command(self)
