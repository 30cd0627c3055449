"""A pytest plugin that removes the folders of a fixture as soon as the fixture has ended.

pytest itself removes the folder of a test that passed, but what fixtures of modules and sessions
made with ``tmp_path_factory`` only after the last test: stores and clusters that nothing reads any
more were gigabytes by then. The folders of a fixture during which a test failed stay.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


@dataclass(slots=True)
class Made:
    """The folders that a fixture has made, and how many tests had failed before."""

    failed_before: int
    folders: list[Path] = field(default_factory=list)


MADE = pytest.StashKey[dict[Any, Made]]()
BEGUN: list[Made] = []
"""The fixtures that are set up now; the last one makes the folders."""
ENDED: list[Made] = []
"""The fixtures that have ended with the present test."""


def pytest_configure(config: pytest.Config) -> None:
    """Note each folder that is made."""
    config.stash[MADE] = {}
    patch = pytest.MonkeyPatch()
    make = pytest.TempPathFactory.mktemp

    def make_and_note(factory: pytest.TempPathFactory, name: str, numbered: bool = True) -> Path:
        folder = make(factory, name, numbered)
        if BEGUN:
            BEGUN[-1].folders.append(folder)
        return folder

    patch.setattr(pytest.TempPathFactory, "mktemp", make_and_note)
    config.add_cleanup(patch.undo)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Iterator[Any]:
    """Note which fixture makes the folders."""
    made = Made(request.session.testsfailed)
    BEGUN.append(made)
    try:
        return (yield)
    finally:
        BEGUN.pop()
        # pytest removes the folder of a test.
        if made.folders and fixturedef.scope != "function":
            request.config.stash[MADE][fixturedef] = made


def pytest_fixture_post_finalizer(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> None:
    """Note that a fixture has ended."""
    made = request.config.stash[MADE].pop(fixturedef, None)
    if made is not None:
        ENDED.append(made)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Remove the folders of the fixtures that have ended, unless one of them or a test failed."""
    try:
        yield
        for made in ENDED:
            if made.failed_before == item.session.testsfailed:
                for folder in made.folders:
                    shutil.rmtree(folder, ignore_errors=True)
    finally:
        ENDED.clear()
