"""The Java suites: compiled once per client version with Maven, then run class by class.

Owns: finding Java and Maven, when to compile again, and the Java command line.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "java"
CLIENT_VERSIONS = ("0.13.0", "0.12.0")
JAVA_VERSION_MIN = 17
BUILD_SECONDS_MAX = 600.0
TEST_SECONDS_DEFAULT = 120
JVM_OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC")


class JavaError(Exception):
    """The suites cannot be compiled or run here; one line says why."""


def require(tool: str) -> str:
    """The path of ``java`` or ``mvn``; ``JavaError`` if it is missing or too old."""
    path = shutil.which(tool)
    if path is None:
        raise JavaError(
            f"{tool} was not found: the official clients need Java {JAVA_VERSION_MIN} and Maven"
            " (make compat installs them)"
        )
    if tool == "java":
        said = subprocess.run([path, "-version"], capture_output=True, text=True, check=False)
        version = re.search(r'version "(\d+)', said.stderr)
        if version is None or int(version[1]) < JAVA_VERSION_MIN:
            raise JavaError(
                f"{path} is not Java {JAVA_VERSION_MIN} or later (make compat installs it)"
            )
    return path


@dataclass(frozen=True, slots=True)
class JavaClient:
    """The suites, compiled with one version of the official client."""

    version: str
    classpath: str

    @classmethod
    def build(cls, version: str) -> JavaClient:
        """Compile the suites, unless that was done since they last changed.

        Raises ``JavaError`` where Java or Maven is missing or the sources do not compile.
        """
        require("java")
        target = PROJECT / "target" / version
        stamp = target / "built-from"
        digest = _digest()
        if not stamp.exists() or stamp.read_text() != digest:
            _compile(version)
            stamp.write_text(digest)
        dependencies = (target / "classpath.txt").read_text().strip()
        return cls(version, os.pathsep.join([str(target / "test-classes"), dependencies]))

    def command(self, main_class: str, *arguments: str, **properties: str) -> list[str]:
        """The command line of a main class; properties get the prefix ``compat.``."""
        # The client logs a trace for each connection that breaks: of use only when asked for.
        level = os.environ.get("SEGSTORE_COMPAT_CLIENT_LOG", "off")
        return [
            require("java"),
            *JVM_OPTIONS,
            *(f"-Dcompat.{name}={value}" for name, value in properties.items()),
            f"-Dcompat.text={sysconfig.get_paths()['stdlib']}",
            f"-Dorg.slf4j.simpleLogger.defaultLogLevel={level}",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            "-cp",
            self.classpath,
            main_class,
            *arguments,
        ]

    def run_suite(
        self, suite: str, *, seconds_max: float, properties: Mapping[str, str]
    ) -> tuple[bool, str]:
        """Run a JUnit class: whether all its tests passed (and there were some), and its output."""
        command = self.command(
            "org.junit.platform.console.ConsoleLauncher",
            "execute",
            f"--select-class=compat.{suite}",
            "--fail-if-no-tests",
            "--disable-banner",
            "--disable-ansi-colors",
            "--details=tree",
            f"--config=junit.jupiter.execution.timeout.default={TEST_SECONDS_DEFAULT}s",
            "--config=junit.jupiter.execution.timeout.thread.mode.default=SEPARATE_THREAD",
            **properties,
        )
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=seconds_max,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            said = late.stdout or b""
            output = said.decode(errors="replace") if isinstance(said, bytes) else said
            return False, f"{output}\nnot done after {seconds_max:.0f} s"
        return done.returncode == 0, done.stdout


def _digest() -> str:
    content = hashlib.sha256()
    for path in [PROJECT / "pom.xml", *sorted((PROJECT / "src").rglob("*.java"))]:
        content.update(f"{path.relative_to(PROJECT)}\n".encode())
        content.update(path.read_bytes())
    return content.hexdigest()


def _compile(version: str) -> None:
    maven = require("mvn")
    # A class whose source is gone must not linger, to be run by name.
    shutil.rmtree(PROJECT / "target" / version / "test-classes", ignore_errors=True)
    goals = ["test-compile", "dependency:build-classpath"]
    base = [maven, "--quiet", "--batch-mode", f"-Dpravega.version={version}"]
    done = None
    # Most often everything is here already, and then nobody needs to be asked.
    for options in (["--offline"], []):
        done = subprocess.run(
            [*base, *options, *goals],
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_SECONDS_MAX,
            check=False,
        )
        if done.returncode == 0:
            return
    assert done is not None
    raise JavaError(f"Maven cannot compile the suites with client {version}:\n{done.stdout}")
