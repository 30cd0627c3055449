"""Holds the one-way import rule of the house: each package may import only those to its left."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parent.parent / "src"

MAY_IMPORT: dict[str, set[str]] = {
    "_fast": set(),
    "pravega_wire": {"_fast"},
    "bookkeeper_client": {"_fast"},
    "segstore": {"_fast", "pravega_wire"},
    "pravega_controller": {"_fast", "pravega_wire"},
    "pravega_blocking": {"_fast", "pravega_wire"},
    "pravega_spark": {"_fast", "pravega_wire", "pravega_blocking"},
    "pravega_admin": {
        "_fast",
        "pravega_wire",
        "segstore",
        "pravega_controller",
        "pravega_blocking",
        "pravega_spark",
    },
}


def imported_packages(source: Path) -> set[str]:
    tree = ast.parse(source.read_text(), filename=str(source))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}: imports are absolute in this house"
            assert node.module is not None
            names.add(node.module)
    return {name.partition(".")[0] for name in names} & MAY_IMPORT.keys()


def test_every_package_under_src_is_in_the_layering_table() -> None:
    packages = {path.parent.name for path in SRC.glob("*/__init__.py")}
    assert packages <= MAY_IMPORT.keys()


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_imports_go_one_way(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package}
    for source in sorted((SRC / package).rglob("*.py")):
        strangers = imported_packages(source) - allowed
        assert not strangers, f"{source.relative_to(SRC)} may not import {sorted(strangers)}"


def test_cython_sources_import_nothing_of_the_house() -> None:
    for source in sorted((SRC / "_fast").glob("*.pyx")):
        for line in source.read_text().splitlines():
            words = line.split()
            if words[:1] in (["import"], ["cimport"], ["from"]):
                assert words[1].partition(".")[0] not in MAY_IMPORT.keys() - {"_fast"}, line
