"""Each module of the product has a test module of its name, or a line in ``module_map.toml``.

A module that has neither is a question to its author: which test fails when it is wrong?
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
SRC = TESTS.parent / "src"
IMPORT = re.compile(
    r"^\s*(?:from\s+([\w.]+)\s+c?import\s+(\([^)]*\)|[^\n]*)|c?import\s+([\w.]+))", re.MULTILINE
)
COMMANDS = "pravega_admin/"
"""The tests of the command line run ``segstore`` as a process, and need not import its modules."""


def modules() -> dict[str, Path]:
    """Return the modules that need a test, by path below ``src``."""
    return {
        str(path.relative_to(SRC)): path
        for path in sorted(SRC.rglob("*.py*"))
        if path.suffix in (".py", ".pyx")
        and not path.name.startswith("__")
        and not path.stem.endswith("_pb2")
        and "testing" not in path.relative_to(SRC).parts
    }


def own_test(module: str) -> Path:
    path = Path(module)
    return TESTS / path.parent / f"test_{path.stem}.py"


@cache
def mapped() -> dict[str, str]:
    found: dict[str, str] = tomllib.loads((TESTS / "module_map.toml").read_text())
    return found


@cache
def sources() -> dict[str, list[Path]]:
    """Return the files of each module of the product and of ``support``, by dotted name."""
    found: dict[str, list[Path]] = {}
    for root, folder in ((SRC, SRC), (TESTS, TESTS / "support")):
        for path in folder.rglob("*.p*"):
            if path.suffix in (".py", ".pyx", ".pxd"):
                name = str(path.relative_to(root).with_suffix("")).replace("/", ".")
                found.setdefault(name.removesuffix(".__init__"), []).append(path)
    return found


@cache
def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for module, members, plain in IMPORT.findall(path.read_text()):
        names.add(module or plain)
        names.update(f"{module}.{each}" for each in re.findall(r"\w+", members))
    return names & sources().keys()


@cache
def reached(test: Path) -> set[str]:
    """Return the modules that a test uses, directly, by its fixtures or through other modules."""
    found: set[str] = set()
    fixtures = [folder / "conftest.py" for folder in test.parents if folder.is_relative_to(TESTS)]
    left = [name for each in (test, *fixtures) if each.is_file() for name in imported(each)]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [each for path in sources()[name] for each in imported(path)]
    return found


def test_each_module_has_a_test_module_or_a_line_in_the_map() -> None:
    missing = [each for each in modules() if not own_test(each).is_file() and each not in mapped()]
    assert missing == []


def test_the_map_has_no_line_too_many() -> None:
    known = modules()
    assert [each for each in mapped() if each not in known] == []
    assert [each for each in mapped() if own_test(each).is_file()] == []


def test_the_tests_in_the_map_use_the_modules() -> None:
    for module, test in mapped().items():
        assert (TESTS / test).is_file(), test
        if not module.startswith(COMMANDS):
            name = module.rpartition(".")[0].replace("/", ".")
            assert name in reached(TESTS / test), f"{test} does not reach {module}"
