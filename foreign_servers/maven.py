"""Builds with Maven: class paths of servers and clients, compiled projects.

1. Nothing is built or resolved again while its inputs are unchanged.
2. Two processes that ask at once wait for each other, and Maven runs once at a time: it does not
   lock the directory in which it keeps what it fetched.
"""

import fcntl
import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foreign_servers.deadlines import scale

HERE = Path(__file__).parent
MAVEN_SECONDS_MAX = scale(900.0)
ONE_AT_A_TIME = HERE / "target"
"""The directory with the lock for running Maven."""


class MavenFailedError(Exception):
    """Maven is missing or failed; the message holds the end of its output."""


def resolve_class_path(pom: Path, *properties: str) -> str:
    """Return all jars that this pom depends on, as one class path.

    Properties are ``name=value``.
    """
    target = pom.parent / "target"
    digest = hashlib.sha256(pom.read_bytes() + "".join(properties).encode()).hexdigest()[:16]
    resolved = target / f"class-path-{digest}.txt"
    with locked(target):
        if not (resolved.exists() and _all_exist(resolved.read_text())):
            options = [f"-D{each}" for each in (*properties, f"mdep.outputFile={resolved}")]
            run_maven("-f", str(pom), "dependency:build-classpath", *options)
        return resolved.read_text().strip()


def compiled_class_path(
    project: Path, main_class: str, *, pom: Path | None = None, beside: Path | None = None
) -> str:
    """Return the class path of a project's own classes and its libraries. Compiles them when the
    sources are newer.

    ``project`` has its sources in ``src``, and a ``pom.xml`` with the libraries unless another
    one is named. ``beside`` is a jar that is built here, too, and that the sources use.
    """
    libraries = resolve_class_path(pom or project / "pom.xml")
    classes = project / "target" / "classes"
    sources = sorted(project.glob("src/**/*.java"))
    compiled = classes.joinpath(*main_class.split(".")).with_suffix(".class")
    inputs = [*sources, beside] if beside else sources
    newest = max(each.stat().st_mtime for each in inputs)
    with locked(project / "target"):
        if not compiled.exists() or compiled.stat().st_mtime < newest:
            options = ["-J-XX:TieredStopAtLevel=1", "--release", "17", "-Werror"]
            options += ["-Xlint:all,-classfile,-processing,-path"]
            used = f"{beside}:{libraries}" if beside else libraries
            done = subprocess.run(
                ["javac", *options, "-d", str(classes), "-cp", used, *map(str, sources)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise MavenFailedError(f"javac failed: {done.stderr[-3000:]}")
    return f"{classes}:{libraries}"


def _all_exist(class_path: str) -> bool:
    return all(Path(jar).exists() for jar in class_path.strip().split(":"))


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Wait until no other process does this with the directory, which is made if need be."""
    directory.mkdir(exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run_maven(*arguments: str) -> None:
    """Run Maven once at a time. Raises ``MavenFailedError``."""
    command = ["mvn", "--batch-mode", "--quiet", *arguments]
    try:
        with locked(ONE_AT_A_TIME):
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=MAVEN_SECONDS_MAX,
                check=False,
            )
    except FileNotFoundError as error:
        raise MavenFailedError("mvn is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise MavenFailedError(f"mvn took more than {MAVEN_SECONDS_MAX:g} s") from error
    if done.returncode != 0:
        raise MavenFailedError(f"mvn {' '.join(arguments)} failed:\n{done.stdout[-3000:]}")
