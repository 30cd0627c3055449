"""The dependencies of an installation: the lock files of the images, and the licences."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import cast

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WANTED = {
    "requirements.lock": PROJECT["project"]["dependencies"],
    "build.lock": PROJECT["build-system"]["requires"],
}
ALLOWED = frozenset(
    {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "PSF-2.0"}
)
"""The licences that a dependency may have, by their SPDX names. All allow use in any product."""
OTHER_NAMES = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    # A choice between those that its classifiers name.
    "Dual License": "",
}


def read_lock(name: str) -> dict[str, tuple[Requirement, list[str]]]:
    """Return what a lock file has, by name, each with its hashes."""
    lines = [
        line for line in (DEPLOY / name).read_text().splitlines() if not re.match(r"\s*#", line)
    ]
    found = {}
    for entry in re.split(r"\n(?! )", "\n".join(lines)):
        first, *rest = [part.strip() for part in entry.split("\\\n")]
        requirement = Requirement(first)
        assert requirement.name not in found
        hashes = [each.removeprefix("--hash=sha256:") for each in rest]
        found[canonicalize_name(requirement.name)] = (requirement, hashes)
    return found


def needs_of(name: str) -> Iterator[Requirement]:
    """Yield what an installed distribution needs here, without its extras."""
    for text in importlib.metadata.requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def runtime_dependencies() -> set[str]:
    """Return the names of all distributions that an installation depends on, also indirectly."""
    found: set[str] = set()
    left = ["segstore"]
    while left:
        for requirement in needs_of(left.pop()):
            name = canonicalize_name(requirement.name)
            if name not in found:
                found.add(name)
                left.append(name)
    return found


def licences_of(metadata: Message) -> set[str]:
    """Return the SPDX names of a distribution's licences; others stay as they are.

    An expression of SPDX names comes first, then classifiers. The field ``License`` is free
    text, in which some put the whole licence: it counts where there is neither.
    """
    if expression := metadata.get("License-Expression"):
        named = re.split(r" (?:OR|AND) ", expression)
    elif classified := [
        each.rpartition(" :: ")[2]
        for each in metadata.get_all("Classifier") or []
        if each.startswith("License ::")
    ]:
        named = classified
    else:
        named = [metadata.get("License") or ""]
    return {OTHER_NAMES.get(each, each) for each in named} - {""}


@pytest.mark.parametrize("name", WANTED)
def test_a_lock_file_satisfies_the_project_file(name: str) -> None:
    locked = read_lock(name)
    for text in WANTED[name]:
        wanted = Requirement(text)
        pinned, _ = locked[canonicalize_name(wanted.name)]
        (version,) = pinned.specifier
        assert wanted.specifier.contains(version.version), f"{text}: run make lock"


@pytest.mark.parametrize("name", WANTED)
def test_each_line_of_a_lock_file_is_one_version_with_hashes(name: str) -> None:
    for requirement, hashes in read_lock(name).values():
        assert [each.operator for each in requirement.specifier] == ["=="]
        assert hashes, requirement
        assert all(re.fullmatch("[0-9a-f]{64}", each) for each in hashes), requirement


def test_the_lock_file_has_what_dependencies_depend_on() -> None:
    locked = read_lock("requirements.lock")
    dependencies = runtime_dependencies()
    assert len(dependencies) > len(PROJECT["project"]["dependencies"])
    assert dependencies <= locked.keys(), "run make lock"


def test_the_image_installs_what_is_locked_and_nothing_else() -> None:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"(/opt/\w+/bin/pip (?:install|wheel) [^&\n]*)", text)
    assert len(installs) == 4
    for command in installs:
        is_locked = "--require-hashes" in command and "--only-binary :all:" in command
        assert is_locked or "--no-deps" in command, command
    for name in WANTED:
        assert re.search(rf"--require-hashes --requirement {re.escape(name)}\b", text)
        assert re.search(rf"^COPY .*deploy/{re.escape(name)}\b", text, re.MULTILINE)


@pytest.mark.parametrize("name", sorted(runtime_dependencies()))
def test_a_dependency_has_a_licence_that_is_allowed(name: str) -> None:
    licences = licences_of(cast(Message, importlib.metadata.metadata(name)))
    assert licences, f"{name} names no licence"
    assert licences <= ALLOWED, f"{name}: {licences - ALLOWED}"


@pytest.mark.parametrize(
    ("fields", "licences"),
    [
        ({"License-Expression": "MIT OR Apache-2.0", "License": "see"}, {"MIT", "Apache-2.0"}),
        ({"Classifier": "License :: OSI Approved :: MIT License", "License": "THE USE"}, {"MIT"}),
        ({"License": "BSD-3-Clause"}, {"BSD-3-Clause"}),
        ({"License": "Everybody may read it"}, {"Everybody may read it"}),
        ({"Name": "without"}, set()),
    ],
)
def test_the_licence_is_read_from_the_field_that_is_exact(
    fields: dict[str, str], licences: set[str]
) -> None:
    metadata = Message()
    for name, value in fields.items():
        metadata[name] = value
    assert licences_of(metadata) == licences
