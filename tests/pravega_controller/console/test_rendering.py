"""Tests of numbers as people read them, and of what templates make of names."""

from __future__ import annotations

import fnmatch
import math
import tomllib
from pathlib import Path

from pravega_controller.console.rendering import (
    FOLDER,
    path_to,
    render,
    show_bytes,
    show_count,
    show_seconds,
    show_time,
)


def test_numbers_have_units() -> None:
    assert [show_bytes(each) for each in (None, 0, 999, 1000, 12_345, 5.5e12)] == [
        "–",
        "0 B",
        "999 B",
        "1.00 kB",
        "12.3 kB",
        "5.50 TB",
    ]
    assert [show_count(each) for each in (None, 7, 66.34, 1234)] == ["–", "7", "66.3", "1.23 k"]
    assert [show_seconds(each) for each in (None, 0, 2e-5, 0.0115, 3.5, 600, 90_000, 1e6)] == [
        "–",
        "0 s",
        "20 µs",
        "11.5 ms",
        "3.5 s",
        "10 min",
        "25 h",
        "11.6 d",
    ]
    assert show_seconds(math.inf) == "endless"
    assert show_time(0) == "1970-01-01 00:00:00 UTC"
    assert show_time(10**18).startswith("9999-")


def test_names_with_any_characters_make_paths_and_text() -> None:
    name = "a/b?c#d\"'<&%"
    assert path_to("streams", name) == "/console/streams/a%2Fb%3Fc%23d%22%27%3C%26%25"
    page = render("scopes.html", {"scopes": [name], "user": None, "here": "/console/scopes"})
    assert "a/b?c#d&#34;&#39;&lt;&amp;%" in page
    assert name not in page


def test_each_file_of_the_console_is_installed() -> None:
    project = Path(__file__).parents[3] / "pyproject.toml"
    data = tomllib.loads(project.read_text())["tool"]["setuptools"]["package-data"]
    patterns = data["pravega_controller.console"]
    files = [
        str(path.relative_to(FOLDER))
        for folder in ("templates", "static")
        for path in (FOLDER / folder).rglob("*")
        if path.is_file()
    ]
    assert len(files) > 20
    for each in files:
        # A star of setuptools does not cross folders.
        assert any(
            fnmatch.fnmatch(each, pattern) and each.count("/") == pattern.count("/")
            for pattern in patterns
        ), each
