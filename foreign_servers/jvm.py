"""Command lines of JVMs.

A JVM that is killed leaves native libraries and web applications that it unpacked: they go where
Python's temporary files go, so that who sets ``TMPDIR`` finds and removes both.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

LOGBACK = Path(__file__).parent / "logback.xml"


def say_temporary_directory() -> str:
    """Return the option that tells a JVM to use the temporary directory of this process."""
    return f"-Djava.io.tmpdir={tempfile.gettempdir()}"


def java_command(
    main_class: str,
    *arguments: str,
    class_path: str,
    options: Sequence[str] = (),
    properties: Mapping[str, object] | None = None,
) -> list[str]:
    """Return the command of a JVM with these options and system properties that runs this class."""
    defines = [f"-D{name}={value}" for name, value in (properties or {}).items()]
    return [
        "java",
        say_temporary_directory(),
        *options,
        *defines,
        "-cp",
        class_path,
        main_class,
        *arguments,
    ]
