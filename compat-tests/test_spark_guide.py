"""Every command and every piece of Python of the guide to Spark runs as it stands there, in order,
from an empty directory, and prints what the guide says.

Numbers may differ from the guide's, since they depend on the machine: lines are compared without
them. What they count is counted here once more. Only the controller's port is another one.

``SEGSTORE_SPARK_PICTURE`` names a file that gets the picture which the guide shows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree
from collections import Counter
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from compat_harness.guide_shell import STOP_SECONDS_MAX, GuideShell, Step, read_steps
from compat_harness.server import HOST
from foreign_servers.tied_processes import tied
from packaging.requirements import Requirement

if str(Path(__file__).parent / "spark") not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent / "spark"))

from guide_session import END

pytestmark = [pytest.mark.proof, pytest.mark.compat, pytest.mark.timeout(1500)]

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs" / "guides" / "spark.md"
SESSION = Path(__file__).parent / "spark" / "guide_session.py"
PICTURE = "words-and-files.svg"
DAY = 86_400
WINDOW_DAYS, LATE_DAYS = 30, 60
RUN_ELSEWHERE = ("segstore pipeline ingest kafka://",)
"""Needs a broker: ``test_kafka`` runs it."""
COUNTED_HERE = "counts.show(5)"
"""The words that a version of Python uses most in its documentation are counted here, too."""


def plain(line: str) -> str:
    """Return a line without its numbers, and without what depends on their width."""
    line = re.sub(r"\d[\d,.]*", "0", line)
    return re.sub(r"-+", "-", re.sub(r"\s+", " ", line)).replace("| ", "|").strip()


def mask_words(line: str) -> str:
    return re.sub(r"\|[a-z]+\|0\|", "|a word|0|", line)


class Walk(GuideShell):
    """Takes the guide's steps in a directory, with a store and a Python session of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, {"SPARK_LOCAL_IP": HOST})
        self.environment.pop("PYSPARK_PYTHON", None)
        self.printed: dict[str, str] = {}
        self.differences: list[str] = []
        self._session: subprocess.Popen[str] | None = None

    def take_step(self, step: Step) -> None:
        """Run a step and note where it prints something else than the guide says."""
        if step.text.startswith("pip install "):
            check_installed(step.text.removeprefix("pip install "))
            return
        if step.text.startswith(RUN_ELSEWHERE):
            return
        output = self._execute(step.text) if step.kind == "python" else self.take(step.text)
        self.printed[step.text] = output
        lines = [plain(line) for line in output.splitlines() if line.strip()]
        wanted = [plain(line) for line in step.expected if line.strip()]
        if step.kind == "console":
            lines = [line for line in lines if line in wanted]
        if COUNTED_HERE in step.text:
            lines, wanted = ([mask_words(line) for line in each] for each in (lines, wanted))
        if wanted and lines != wanted:
            self.differences.append(f"{step.text}\nprinted\n{output}")

    def close(self) -> None:
        """End the session and the store."""
        if self._session is not None:
            assert self._session.stdin is not None
            self._session.stdin.close()
            try:
                self._session.wait(STOP_SECONDS_MAX)
            finally:
                self._session.kill()
                self._session.wait()
                assert self._session.stdout is not None
                self._session.stdout.close()
        super().close()

    def _execute(self, code: str) -> str:
        if self._session is None:
            with self.directory.with_suffix(".errors").open("wb") as errors:
                self._session = subprocess.Popen(
                    tied([sys.executable, "-u", str(SESSION)]),
                    cwd=self.directory,
                    env=self.environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
        code = code.replace("tcp://localhost:9090", self.environment["SEGSTORE_CONTROLLER"])
        assert self._session.stdin is not None
        assert self._session.stdout is not None
        self._session.stdin.write(json.dumps(code) + "\n")
        self._session.stdin.flush()
        lines = []
        for line in self._session.stdout:
            if line.rstrip("\n") == END:
                return "".join(lines)
            lines.append(line)
        raise AssertionError(code + self.directory.with_suffix(".errors").read_text())


def check_installed(arguments: str) -> None:
    """Check that ``pip install`` would find everything there already."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted: list[str] = []
    for each in arguments.replace("'", "").split():
        local = re.fullmatch(r"\.\[(.+)\]", each)
        wanted += project["optional-dependencies"][local.group(1)] if local else [each]
    assert wanted
    for text in wanted:
        requirement = Requirement(text)
        assert version(requirement.name) in requirement.specifier, text


def expected_words(directory: Path) -> Counter[str]:
    texts = [path.read_text() for path in (directory / "texts").iterdir()]
    return Counter(word for text in texts for word in re.findall("[a-z]+", text.lower()))


def expected_months(directory: Path) -> dict[datetime, tuple[int, int]]:
    """Return files and bytes of each window that is complete, by its start."""
    months: dict[datetime, tuple[int, int]] = {}
    latest = datetime.fromtimestamp(0, UTC)
    for line in (directory / "files" / "all.txt").read_text().splitlines():
        event = json.loads(line)
        at = datetime.fromisoformat(event["at"])
        latest = max(latest, at)
        seconds = int(at.timestamp())
        start = datetime.fromtimestamp(seconds - seconds % (WINDOW_DAYS * DAY), UTC)
        files, size = months.get(start, (0, 0))
        months[start] = files + 1, size + event["bytes"]
    complete = latest - timedelta(days=LATE_DAYS + WINDOW_DAYS)
    return {start: counted for start, counted in months.items() if start <= complete}


def test_the_guide_works_from_an_empty_directory(tmp_path: Path) -> None:
    directory = tmp_path / "empty"
    directory.mkdir()
    steps = read_steps(GUIDE)
    assert len(steps) > 15
    with Walk(directory) as walk:
        for step in steps:
            began = time.monotonic()
            walk.take_step(step)
            print(f"{time.monotonic() - began:5.1f} s  {step.text.splitlines()[0]}", flush=True)
    assert not walk.differences, "\n".join(walk.differences)
    words = expected_words(directory)
    [shown] = [text for code, text in walk.printed.items() if COUNTED_HERE in code]
    rows = re.findall(r"\|\s*([a-z]+)\|\s*(\d+)\|", shown)
    top = sorted(words.items(), key=lambda item: (-item[1], item[0]))[:5]
    assert [(word, int(number)) for word, number in rows] == top

    lines = [
        line.encode()
        for path in (directory / "texts").iterdir()
        for line in path.read_text().splitlines()
    ]
    archived = ds.dataset(directory / "lines", format="parquet").to_table(["event"])
    assert Counter(archived.column("event").to_pylist()) == Counter(lines)
    compacted = ds.dataset(directory / "lines-compacted", format="parquet")
    assert compacted.count_rows() == len(lines)

    months = ds.dataset(directory / "months", format="parquet").to_table().to_pylist()
    counted = {
        row["start"].replace(tzinfo=row["start"].tzinfo or UTC): (row["files"], row["bytes"])
        for row in months
    }
    assert len(counted) == len(months)
    assert counted == expected_months(directory)

    picture = directory / PICTURE
    ids = {each.get("id") for each in xml.etree.ElementTree.parse(picture).iter()}
    assert {"axes_1", "axes_2"} <= ids
    if target := os.environ.get("SEGSTORE_SPARK_PICTURE"):
        shutil.copyfile(picture, target)
