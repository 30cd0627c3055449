"""Holds the one-way import rule of the house, between the packages and inside the segment store.

A package may import only what its row names, and a row names only what stands above it: so there
is no circle, and a new package has to be given a place.
"""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parent.parent / "src"

MAY_IMPORT: dict[str, set[str]] = {
    "_fast": set(),
    "pravega_wire": {"_fast"},
    "zookeeper_client": set(),
    "bookkeeper_client": {"_fast", "zookeeper_client"},
    "pravega_cluster": {"pravega_wire", "zookeeper_client"},
    "segstore": {
        "_fast",
        "pravega_wire",
        "zookeeper_client",
        "bookkeeper_client",
        "pravega_cluster",
    },
    "pravega_controller": {"_fast", "pravega_wire", "zookeeper_client", "pravega_cluster"},
    "pravega_blocking": {"_fast", "pravega_wire"},
    "pravega_spark": {"_fast", "pravega_wire", "pravega_blocking"},
    "pravega_admin": {
        "_fast",
        "pravega_wire",
        "zookeeper_client",
        "pravega_cluster",
        "segstore",
        "pravega_controller",
        "pravega_blocking",
        "pravega_spark",
    },
}

INSIDE_SEGSTORE: dict[str, set[str]] = {
    "errors": set(),
    "runtime": {"errors"},
    "tiers": {"errors"},
    "tiers.memory": {"errors", "tiers"},
    "tiers.noop": {"errors", "tiers"},
    "tiers.journal": {"errors", "runtime", "tiers"},
    "tiers.bookkeeper": {"errors", "runtime", "tiers"},
    "tiers.files": {"errors", "runtime", "tiers"},
    "tiers.s3": {"errors", "runtime", "tiers"},
    "tiers.hdfs": {"errors", "runtime", "tiers"},
    "chunks": {"errors", "runtime", "tiers"},
    "model": {"errors", "tiers"},
    "api": {"errors", "tiers", "chunks", "model"},
    "cache": set(),
    "throttling": set(),
    "read_index": {"errors", "runtime", "tiers", "chunks", "model", "api", "cache"},
    "attributes": {"errors", "runtime", "chunks", "model"},
    "durable_log": {
        "errors",
        "runtime",
        "tiers",
        "chunks",
        "model",
        "cache",
        "throttling",
        "read_index",
        "attributes",
    },
    "writer": {
        "errors",
        "runtime",
        "tiers",
        "chunks",
        "model",
        "read_index",
        "attributes",
        "durable_log",
    },
    "inactive": {"errors", "model", "api", "read_index", "attributes", "durable_log", "writer"},
    "container": {
        "errors",
        "runtime",
        "tiers",
        "chunks",
        "model",
        "api",
        "cache",
        "throttling",
        "read_index",
        "attributes",
        "durable_log",
        "writer",
        "inactive",
    },
    "tables": {"errors", "tiers", "model", "api"},
    "process": {
        "errors",
        "runtime",
        "tiers",
        "tiers.journal",
        "tiers.bookkeeper",
        "tiers.files",
        "tiers.s3",
        "tiers.hdfs",
        "chunks",
        "model",
        "api",
        "cache",
        "throttling",
        "inactive",
        "writer",
        "container",
        "tables",
    },
    "load": {"errors", "tiers", "model", "api", "process"},
    "network": {"errors", "runtime", "chunks", "model", "api", "tables", "process", "load"},
    "repair": {
        "errors",
        "runtime",
        "tiers",
        "tiers.journal",
        "tiers.files",
        "chunks",
        "model",
        "attributes",
        "tables",
        "process",
    },
}
"""The packages and modules of ``segstore``, each with those that it may import, from the lowest
to the highest. ``segstore.testing``, which puts stores together for tests, may import all."""

INSIDE_FAST: dict[str, set[str]] = {
    "": set(),
    "wire": {""},
    "log": {""},
    "cache": {""},
    "btree": {"", "cache"},
    "native_io": {""},
}
"""The folders of ``_fast``, each with those that it may import from. The first is ``_fast`` itself:
checksums, hashes and numbers. The last one's modules call the kernel; no other does."""


def imported_modules(source: Path) -> set[str]:
    """Return the dotted names that a module imports.

    Of a package, the names that are taken from it.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text(), filename=str(source))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def place_of(module: str) -> str:
    """Return the row of a module of ``segstore``: that of its package, or its own."""
    words = module.split(".")[1:]
    return max(
        (row for row in INSIDE_SEGSTORE if words[: row.count(".") + 1] == row.split(".")),
        key=len,
        default=".".join(words[:1]),
    )


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
    for source in sorted((SRC / "_fast").rglob("*.pyx")):
        for line in source.read_text().splitlines():
            words = line.split()
            if words[:1] in (["import"], ["cimport"], ["from"]):
                assert words[1].partition(".")[0] not in MAY_IMPORT.keys() - {"_fast"}, line


def test_the_rows_of_the_segment_store_name_only_what_stands_above() -> None:
    above: set[str] = set()
    for row, allowed in INSIDE_SEGSTORE.items():
        assert allowed <= above, f"{row} names {sorted(allowed - above)} which stands below it"
        above.add(row)


def test_every_module_of_the_segment_store_has_a_row() -> None:
    for source in sorted((SRC / "segstore").rglob("*.py")):
        module = ".".join(source.relative_to(SRC).with_suffix("").parts)
        if source.name != "__init__.py" and not module.startswith("segstore.testing."):
            assert place_of(module) in INSIDE_SEGSTORE, module


def test_no_row_of_the_segment_store_allows_what_nothing_uses() -> None:
    used: dict[str, set[str]] = {row: set() for row in INSIDE_SEGSTORE}
    for _, row, other in imports_inside_segstore():
        used[row].add(other)
    assert used == INSIDE_SEGSTORE


def test_imports_inside_the_segment_store_go_one_way() -> None:
    for module, row, other in imports_inside_segstore():
        assert other in INSIDE_SEGSTORE[row], f"{module} may not import {other}"


def imports_inside_segstore() -> list[tuple[str, str, str]]:
    """Return each import of another row: the module, its row, the other row."""
    found = []
    for source in sorted((SRC / "segstore").rglob("*.py")):
        module = ".".join(source.relative_to(SRC).with_suffix("").parts)
        if source == SRC / "segstore" / "__init__.py" or module.startswith("segstore.testing."):
            continue
        for name in sorted(imported_modules(source)):
            if name.startswith("segstore."):
                row, other = place_of(module), place_of(name)
                if row != other:
                    found.append((module, row, other))
    return found


def fast_imports() -> dict[str, set[str]]:
    """Return the modules of ``_fast``, each with the modules of ``_fast`` that it imports."""
    pattern = re.compile(
        r"^\s*from\s+_fast\.([\w.]+)\s+c?import\b|^\s*c?import\s+_fast\.([\w.]+)", re.M
    )
    sources = {
        source: ".".join(source.relative_to(SRC / "_fast").with_suffix("").parts)
        for source in sorted((SRC / "_fast").rglob("*.p*"))
        if source.suffix in (".pyx", ".pxd")
    }
    imports: dict[str, set[str]] = {}
    for source, module in sources.items():
        text = source.read_text()
        assert not re.search(r"^\s*from\s+_fast\s+c?import\b", text, re.M), source
        found = {one or other for one, other in pattern.findall(text)}
        assert found <= set(sources.values()), f"{source} imports a folder"
        imports.setdefault(module, set()).update(found - {module})
    return imports


def test_imports_inside_the_extensions_go_one_way() -> None:
    def folder_of(module: str) -> str:
        return module.rpartition(".")[0]

    imports = fast_imports()
    tuple(TopologicalSorter(imports).static_order())
    for module, others in imports.items():
        folder = folder_of(module)
        strangers = {folder_of(other) for other in others} - INSIDE_FAST[folder] - {folder}
        assert not strangers, f"_fast.{module} may not import {sorted(strangers)}"


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    modules = {
        ".".join(source.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): source
        for source in SRC.rglob("*.py")
    }
    imports: dict[str, set[str]] = {}
    for module, source in modules.items():
        found = set()
        for name in imported_modules(source):
            known = name if name in modules else name.rpartition(".")[0]
            if known in modules and known != module:
                found.add(known)
        imports[module] = found
    tuple(TopologicalSorter(imports).static_order())
