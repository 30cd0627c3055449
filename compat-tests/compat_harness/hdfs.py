"""A real HDFS: a NameNode and a DataNode, each a JVM.

Owns: ``HdfsCluster``. Everything listens on free ports of 127.0.0.1 and keeps its files in one
directory; the DataNode syncs what it closes.
"""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.maven import resolve_class_path
from benchmarks.peers.jvm import java_command
from benchmarks.peers.processes import ServerProcess, free_ports

from compat_harness.server import HOST

POM = Path(__file__).resolve().parents[1] / "hdfs" / "pom.xml"
NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
USER = "segstore"
ROOT = "/segstore"
READY_SECONDS_MAX = 120.0
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
    """A NameNode with a DataNode, started by the constructor. ``ROOT`` belongs to ``USER``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._class_path = resolve_class_path(POM)
        rpc, self._http, *datanode = free_ports(5)
        settings = directory / "settings"
        settings.mkdir(parents=True)
        _write_settings(settings / "core-site.xml", {"fs.defaultFS": f"hdfs://{HOST}:{rpc}"})
        _write_settings(settings / "hdfs-site.xml", self._properties(rpc, datanode))
        (settings / "log4j.properties").write_text(LOG_SETTINGS)
        for pages in ("hdfs", "datanode", "static"):  # those for people, which the jars lack
            (settings / "webapps" / pages).mkdir(parents=True)
        self._running: dict[str, ServerProcess] = {}
        try:
            formatting = self._launch("format", NAMENODE, "-format", "-nonInteractive")
            formatting.wait_for_end(seconds_max=READY_SECONDS_MAX)
            del self._running["format"]
            self.start_namenode()
            self.start_datanode()
            self._be_superuser("PUT", f"{ROOT}?op=MKDIRS&permission=755")
            self._be_superuser("PUT", f"{ROOT}?op=SETOWNER&owner={USER}")
        except BaseException:
            self.stop()
            raise

    def _properties(self, rpc: int, datanode: list[int]) -> dict[str, object]:
        data, address, ipc = datanode
        return {
            "dfs.namenode.rpc-address": f"{HOST}:{rpc}",
            "dfs.namenode.http-address": f"{HOST}:{self._http}",
            "dfs.namenode.name.dir": f"file://{self._directory}/name",
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

    @property
    def namenode(self) -> str:
        """The HTTP address of the NameNode."""
        return f"{HOST}:{self._http}"

    def location(self, name: str) -> str:
        """A location for tier 2."""
        return f"webhdfs://{self.namenode}{ROOT}/{name}"

    def start_namenode(self) -> None:
        """Start the NameNode; it may wait in safe mode for its DataNode."""
        namenode = self._launch("namenode", NAMENODE)
        namenode.wait_for_port(self._http, seconds_max=READY_SECONDS_MAX)

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
        """Kill ``namenode`` or ``datanode`` as ``kill -9`` does."""
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
        request = urllib.request.Request(f"http://{self.namenode}/webhdfs/v1{query}", method=method)
        with urllib.request.urlopen(request, timeout=10.0) as answer:
            return int(answer.status)

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
