"""Command lines of JVMs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

LOGBACK = Path(__file__).parent / "logback.xml"


def java_command(
    main_class: str,
    *arguments: str,
    class_path: str,
    options: Sequence[str] = (),
    properties: Mapping[str, object] | None = None,
) -> list[str]:
    """Return the command of a JVM with these options and system properties that runs this class."""
    defines = [f"-D{name}={value}" for name, value in (properties or {}).items()]
    return ["java", *options, *defines, "-cp", class_path, main_class, *arguments]
