"""The Java suites: compiled once per client version, then run together in one JVM per version.

Owns: finding Java and Maven, which sources a version has, when to compile again, the Java command
line, and reading what the JVM says of each suite while it runs.

1. Sources in ``src/test/since-X.Y`` are compiled with clients from that version on: they use what
   earlier ones lack; those in ``src/test/until-X.Y`` with clients up to that version, whatever its
   last number: they use what later ones changed. ``src/test/java`` is for all.
2. Maven only resolves the libraries of a version.
3. Suites run side by side within a JVM, each test in a scope of its own; the tests of one suite run
   one after the other.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from foreign_servers.deadlines import scale
from foreign_servers.jvm import say_temporary_directory
from foreign_servers.maven import MavenFailedError, locked, resolve_class_path
from foreign_servers.tied_processes import tied

PROJECT = Path(__file__).resolve().parent.parent / "java"
SOURCES = PROJECT / "src" / "test"
CLIENT_VERSIONS = ("0.13.0", "0.12.0", "0.11.0", "0.10.1", "0.9.0")
SHORT_VERSIONS = ("0.13.0", "0.12.0")
"""The versions of the short form: those most used."""

NEWEST = CLIENT_VERSIONS[0]
JAVA_VERSION_MIN = 17
BUILD_SECONDS_MAX = scale(600.0)
TEST_SECONDS_DEFAULT = 120
QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
"""Of HotSpot's two compilers the quick one: tests are too short to earn the other's work."""
JVM_OPTIONS = ("-Xmx1500m", "-XX:+UseSerialGC", QUICK_COMPILER)
POLL_SECONDS = 0.05


class JavaError(Exception):
    """The suites cannot be compiled or run here; one line says why."""


def require(tool: str) -> str:
    """Return the path of a Java tool or of ``mvn``; ``JavaError`` if it is missing or too old."""
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


def source_folders(version: str) -> list[Path]:
    """Return the folders of the sources that can be compiled with that client."""
    later = [
        folder
        for folder in sorted(SOURCES.glob("since-*"))
        if _numbers(folder.name.removeprefix("since-")) <= _numbers(version)
    ]
    earlier = [
        folder
        for folder in sorted(SOURCES.glob("until-*"))
        if _numbers(version)[:2] <= _numbers(folder.name.removeprefix("until-"))
    ]
    return [SOURCES / "java", *later, *earlier]


def versions_of(*, full: bool) -> tuple[str, ...]:
    """Return the client versions of the full form, or of the short one."""
    return CLIENT_VERSIONS if full else SHORT_VERSIONS


def suites(version: str) -> list[str]:
    """Return the names of all suites that there are for that client."""
    found = [path.stem for folder in source_folders(version) for path in folder.rglob("*Test.java")]
    return sorted(found)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


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
        classes = target / "test-classes"
        try:
            libraries = resolve_class_path(PROJECT / "pom.xml", f"pravega.version={version}")
        except MavenFailedError as error:
            raise JavaError(f"Maven cannot resolve client {version}: {error}") from error
        with locked(target):
            if not stamp.exists() or stamp.read_text() != digest:
                _compile(version, libraries, classes)
                stamp.write_text(digest)
        parts = [str(classes), str(SOURCES / "resources"), libraries]
        return cls(version, os.pathsep.join(parts))

    def command(self, main_class: str, *arguments: str, **properties: str) -> list[str]:
        """Return the command line of a main class; properties get the prefix ``compat.``."""
        # The client logs a trace for each connection that breaks: of use only when asked for.
        level = os.environ.get("SEGSTORE_COMPAT_CLIENT_LOG", "off")
        return [
            require("java"),
            say_temporary_directory(),
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

    def run_program(
        self,
        main_class: str,
        *arguments: str,
        seconds_max: float,
        environment: Mapping[str, str] | None = None,
        **properties: str,
    ) -> str:
        """Run a main class to its end; return what it says. Fails the test if it fails.

        ``environment`` is added to the present one.
        """
        done = subprocess.run(
            self.command(main_class, *arguments, **properties),
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds_max,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr[-5_000:]
        return done.stdout

    def run_suites(
        self,
        names: Sequence[str],
        directory: Path,
        *,
        side_by_side: int,
        seconds_max: float,
        properties: Mapping[str, str],
        environment: Mapping[str, str] | None = None,
    ) -> SuiteRun:
        """Start a JVM that runs these JUnit classes, at most so many at a time.

        ``environment`` is added to the present one.
        """
        directory.mkdir(parents=True, exist_ok=True)
        lines = directory / "results.jsonl"
        configuration = {
            "execution.timeout.default": f"{TEST_SECONDS_DEFAULT}s",
            "execution.timeout.thread.mode.default": "SEPARATE_THREAD",
            "execution.parallel.enabled": "true",
            "execution.parallel.mode.default": "same_thread",
            "execution.parallel.mode.classes.default": "concurrent",
            "execution.parallel.config.strategy": "fixed",
            "execution.parallel.config.fixed.parallelism": str(side_by_side),
            "execution.parallel.config.fixed.max-pool-size": str(side_by_side),
        }
        command = self.command(
            "org.junit.platform.console.ConsoleLauncher",
            "execute",
            *(f"--select-class=compat.{name}" for name in names),
            "--fail-if-no-tests",
            "--disable-banner",
            "--disable-ansi-colors",
            "--details=none",
            *(f"--config=junit.jupiter.{name}={value}" for name, value in configuration.items()),
            results=str(lines),
            **properties,
        )
        output = directory / "output.log"
        with output.open("wb") as log:
            process = subprocess.Popen(
                tied(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )
        return SuiteRun(process, lines, output, time.monotonic() + seconds_max)


class TestLine(msgspec.Struct, frozen=True):
    """The line of the JVM about one test."""

    suite: str
    test: str
    api: str
    result: str
    race: bool
    started: float
    seconds: float
    note: str
    trace: str

    __test__ = False  # no test of pytest's


class SuiteEnd(msgspec.Struct, frozen=True):
    """The line of the JVM at the end of a suite; ``trace`` says why it ended early."""

    suite: str
    end: str
    trace: str


@dataclass(slots=True)
class SuiteRun:
    """A JVM that runs suites, and the lines that it wrote so far."""

    process: subprocess.Popen[bytes]
    lines: Path
    output_path: Path
    deadline: float
    tests: dict[str, list[TestLine]] = field(default_factory=dict)
    ends: dict[str, SuiteEnd] = field(default_factory=dict)
    _read: int = 0

    def wait_for(self, suite: str) -> list[TestLine]:
        """Wait until a suite has ended, and return its tests.

        Raises ``JavaError`` with the output if the JVM ended before, or took too long.
        """
        while True:
            ended = self.process.poll() is not None
            self._read_lines()
            if suite in self.ends:
                return self.tests.get(suite, [])
            if ended:
                raise JavaError(f"the JVM ended before {suite} did:\n{self.output()}")
            if time.monotonic() > self.deadline:
                self.stop()
                raise JavaError(f"{suite} is not done in time:\n{self.output()}")
            time.sleep(POLL_SECONDS)

    def _read_lines(self) -> None:
        try:
            with self.lines.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            if b'"end":' in line:
                end = msgspec.json.decode(line, type=SuiteEnd)
                self.ends[end.suite] = end
            else:
                test = msgspec.json.decode(line, type=TestLine)
                self.tests.setdefault(test.suite, []).append(test)

    def output(self) -> str:
        """Return what the JVM printed."""
        return self.output_path.read_text(errors="replace")

    def stop(self) -> None:
        """Kill the JVM if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def _digest() -> str:
    content = hashlib.sha256()
    for path in [PROJECT / "pom.xml", *sorted(SOURCES.rglob("*.java"))]:
        content.update(f"{path.relative_to(PROJECT)}\n".encode())
        content.update(path.read_bytes())
    return content.hexdigest()


def _compile(version: str, libraries: str, classes: Path) -> None:
    # A class whose source is gone must not linger, to be run by name.
    shutil.rmtree(classes, ignore_errors=True)
    sources = [
        str(path) for folder in source_folders(version) for path in sorted(folder.rglob("*.java"))
    ]
    options = ["--release", str(JAVA_VERSION_MIN), "-Xlint:all,-processing,-classfile,-try,-path"]
    command = [require("javac"), f"-J{QUICK_COMPILER}", *options, "-Werror"]
    command += ["-d", str(classes), "-cp", libraries]
    done = subprocess.run(
        [*command, *sources],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise JavaError(f"the suites cannot be compiled with client {version}:\n{done.stdout}")
