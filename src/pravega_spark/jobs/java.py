"""Looks for the Java that Spark needs.

Owns: the minimum version, and the sentence about a missing one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping

JAVA_MIN = 17
SECONDS_MAX = 60.0


def find_java_problem(environment: Mapping[str, str]) -> str | None:
    """Return a sentence if Spark would find no Java that it can use; None if it finds one.

    ``environment`` has the variables of this process.
    """
    home = environment.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    path = shutil.which(java, path=environment.get("PATH"))
    if path is None:
        found = f"JAVA_HOME names {home}, where there is none" if home else "there is none"
    else:
        version = _version_of(path)
        if version is not None and version >= JAVA_MIN:
            return None
        found = f"{path} is {'no Java' if version is None else f'Java {version}'}"
    return (
        f"the data pipeline needs Java {JAVA_MIN} or newer, and {found}: install it (on Debian:"
        f" apt-get install openjdk-{JAVA_MIN}-jre-headless), or let JAVA_HOME name one"
    )


def _version_of(path: str) -> int | None:
    """Return the major version of a Java executable, such as 17; None if it prints none."""
    try:
        done = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Version 8 and earlier print 1.8 and so on.
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found else None
