"""Writes the golden frames anew with the official library and compares them with those kept here.

To take new ones over after a change to the writer: copy the file that the failing test names.
"""

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.compat
@pytest.mark.timeout(600)
def test_the_official_library_writes_the_frames_that_are_kept_here() -> None:
    maven = ["mvn", "-q", "-B", "compile", "dependency:build-classpath"]
    subprocess.run(maven, cwd=HERE, check=True, stdin=subprocess.DEVNULL)
    class_path = (HERE / "target" / "classpath.txt").read_text().strip()
    written = HERE / "target" / "frames.json"
    java = ["java", "-cp", f"target/classes:{class_path}", "golden.WriteFrames", str(written)]
    subprocess.run(java, cwd=HERE, check=True, stdin=subprocess.DEVNULL)
    assert written.read_bytes() == (HERE / "frames.json").read_bytes(), f"compare with {written}"
