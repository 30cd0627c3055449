"""Writes the golden bytes anew with the official library and compares them with those kept here.

To take new ones over after a change to a writer: copy the file that the failing test names.
"""

import subprocess
from pathlib import Path

import pytest
from foreign_servers.maven import compiled_class_path

HERE = Path(__file__).parent
WRITERS = {"frames.json": "golden.WriteFrames", "records.json": "golden.WriteRecords"}


@pytest.mark.proof
@pytest.mark.compat
@pytest.mark.timeout(600)
def test_the_official_library_writes_the_bytes_that_are_kept_here() -> None:
    class_path = compiled_class_path(HERE, "golden.WriteFrames")
    for name, writer in WRITERS.items():
        written = HERE / "target" / name
        java = ["java", "-XX:TieredStopAtLevel=1", "-cp", class_path, writer, str(written)]
        subprocess.run(java, check=True, stdin=subprocess.DEVNULL)
        assert written.read_bytes() == (HERE / name).read_bytes(), f"compare with {written}"
