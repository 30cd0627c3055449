"""A real HDFS: one NameNode or a pair with failover, and a DataNode, each a JVM.

Owns: ``HdfsCluster``. Everything listens on free ports of 127.0.0.1 and keeps its files in one
directory; the DataNode syncs what it closes.
"""

from __future__ import annotations

import os
import shutil
import time
import urllib.request
from pathlib import Path
from xml.sax.saxutils import escape

from foreign_servers.deadlines import scale
from foreign_servers.jvm import java_command
from foreign_servers.maven import resolve_class_path
from foreign_servers.processes import ServerProcess
from segstore.testing.ports import free_ports

POM = Path(__file__).parent / "artifacts" / "hdfs" / "pom.xml"
HOST = "127.0.0.1"
NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
ADMINISTRATION = "org.apache.hadoop.hdfs.tools.DFSHAAdmin"
FAILOVER = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
SERVICE = "pair"
"""The name of the HDFS that two NameNodes serve."""
USER = "segstore"
ROOT = "/segstore"
READY_SECONDS_MAX = scale(120.0)
POLL_SECONDS = 0.1
OPTIONS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)
LOG_SETTINGS = """\
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
"""


class HdfsCluster:
    """NameNodes with a DataNode, started by the constructor. ``ROOT`` belongs to ``USER``.

    Of two NameNodes the first is active, until ``fail_over`` makes the other one so.
    """

    def __init__(self, directory: Path, *, namenodes: int = 1) -> None:
        self._directory = directory
        self._class_path = resolve_class_path(POM)
        ports = free_ports(3 + 2 * namenodes)
        datanode, rpc, self._http = ports[:3], ports[3::2], ports[4::2]
        self._active = 0
        settings = directory / "settings"
        settings.mkdir(parents=True)
        place = f"{HOST}:{rpc[0]}" if namenodes == 1 else SERVICE
        _write_settings(settings / "core-site.xml", {"fs.defaultFS": f"hdfs://{place}"})
        properties = self._properties(datanode)
        if namenodes == 1:
            properties |= self._properties_of_namenode(0, rpc[0])
        else:
            properties |= self._properties_of_pair(rpc)
        _write_settings(settings / "hdfs-site.xml", properties)
        (settings / "log4j.properties").write_text(LOG_SETTINGS)
        for pages in ("hdfs", "datanode", "static"):  # those for people, which the jars lack
            (settings / "webapps" / pages).mkdir(parents=True)
        self._running: dict[str, ServerProcess] = {}
        try:
            self._run("format", NAMENODE, *self._own_name(0), "-format", "-nonInteractive")
            for number in range(1, namenodes):
                shutil.copytree(directory / "name-0", directory / f"name-{number}")
            for number in range(namenodes):
                self.start_namenode(number)
            if namenodes > 1:
                self.fail_over(0)
            self.start_datanode()
            self._be_superuser("PUT", f"{ROOT}?op=MKDIRS&permission=755")
            self._be_superuser("PUT", f"{ROOT}?op=SETOWNER&owner={USER}")
        except BaseException:
            self.stop()
            raise

    def _properties_of_namenode(self, number: int, rpc: int, suffix: str = "") -> dict[str, object]:
        return {
            f"dfs.namenode.rpc-address{suffix}": f"{HOST}:{rpc}",
            f"dfs.namenode.http-address{suffix}": f"{HOST}:{self._http[number]}",
            f"dfs.namenode.name.dir{suffix}": f"file://{self._directory}/name-{number}",
        }

    def _properties_of_pair(self, rpc: list[int]) -> dict[str, object]:
        properties: dict[str, object] = {
            "dfs.nameservices": SERVICE,
            f"dfs.ha.namenodes.{SERVICE}": ",".join(f"nn{number}" for number in range(len(rpc))),
            "dfs.namenode.shared.edits.dir": f"file://{self._directory}/edits",
            f"dfs.client.failover.proxy.provider.{SERVICE}": FAILOVER,
            "dfs.ha.fencing.methods": "shell(/bin/true)",
        }
        for number, port in enumerate(rpc):
            properties |= self._properties_of_namenode(number, port, f".{SERVICE}.nn{number}")
        return properties

    def _own_name(self, number: int) -> tuple[str, ...]:
        """Return the arguments that tell a NameNode of a pair which one it is."""
        return ("-D", f"dfs.ha.namenode.id=nn{number}") if len(self._http) > 1 else ()

    def _properties(self, datanode: list[int]) -> dict[str, object]:
        data, address, ipc = datanode
        return {
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.safemode.extension": 0,
            "dfs.datanode.address": f"{HOST}:{data}",
            "dfs.datanode.http.address": f"{HOST}:{address}",
            "dfs.datanode.ipc.address": f"{HOST}:{ipc}",
            "dfs.datanode.hostname": HOST,
            "dfs.datanode.data.dir": f"file://{self._directory}/data",
            "dfs.datanode.synconclose": "true",
            "dfs.replication": 1,
            "dfs.client.block.write.replace-datanode-on-failure.policy": "NEVER",
        }

    def location(self, name: str) -> str:
        """Return a location for tier 2."""
        namenodes = ",".join(f"{HOST}:{port}" for port in self._http)
        return f"webhdfs://{namenodes}{ROOT}/{name}"

    def start_namenode(self, number: int = 0) -> None:
        """Start a NameNode; it may wait in safe mode for its DataNode."""
        namenode = self._launch(f"namenode-{number}", NAMENODE, *self._own_name(number))
        namenode.wait_for_port(self._http[number], seconds_max=READY_SECONDS_MAX)

    def fail_over(self, number: int) -> None:
        """Make a NameNode of a pair active. The other one is dead, or was not active."""
        words = ("-ns", SERVICE, "-transitionToActive", "--forceactive", f"nn{number}")
        self._run("fail-over", ADMINISTRATION, *words)
        self._active = number

    def start_datanode(self) -> None:
        """Start the DataNode, and wait until files can be written."""
        self._launch("datanode", DATANODE)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until the NameNode knows its DataNode and is not in safe mode."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self._is_ready():
            assert time.monotonic() < deadline, "HDFS does not get ready"
            time.sleep(POLL_SECONDS)

    def kill(self, name: str) -> None:
        """Kill ``namenode-0``, ``namenode-1`` or ``datanode`` as ``kill -9`` does."""
        self._running.pop(name).kill()

    def stop(self) -> None:
        """Kill everything."""
        while self._running:
            self._running.popitem()[1].kill()

    def _is_ready(self) -> bool:
        try:
            self._be_superuser("PUT", "/tmp?op=MKDIRS")
            return self._be_superuser("PUT", "/tmp/file?op=CREATE&noredirect=true") == 200
        except OSError:
            return False

    def _be_superuser(self, method: str, what: str) -> int:
        """Ask the NameNode as the user that it runs as; the status of its answer."""
        query = f"{what}&user.name={os.environ.get('USER', 'root')}"
        url = f"http://{HOST}:{self._http[self._active]}/webhdfs/v1{query}"
        request = urllib.request.Request(url, method=method)
        with urllib.request.urlopen(request, timeout=10.0) as answer:
            return int(answer.status)

    def _run(self, name: str, main_class: str, *arguments: str) -> None:
        """Run a tool to its end."""
        tool = self._launch(name, main_class, *arguments)
        tool.wait_for_end(seconds_max=READY_SECONDS_MAX)
        del self._running[name]

    def _launch(self, name: str, main_class: str, *arguments: str) -> ServerProcess:
        class_path = f"{self._directory}/settings:{self._class_path}"
        command = java_command(main_class, *arguments, class_path=class_path, options=OPTIONS)
        process = ServerProcess(command, directory=self._directory, name=name)
        self._running[name] = process
        return process


def _write_settings(path: Path, properties: dict[str, object]) -> None:
    rows = [
        f"<property><name>{name}</name><value>{escape(str(value))}</value></property>"
        for name, value in properties.items()
    ]
    path.write_text(f"<configuration>\n{chr(10).join(rows)}\n</configuration>\n")
